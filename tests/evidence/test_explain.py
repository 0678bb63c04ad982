"""What `fedatoms explain` measures is what it says: replays are the run, averages and variances are those of loops."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.cases import some_now
from support.small import clients_of, difference, identical, play, small_net
from torch import Tensor

from fedatoms import fuse
from fedatoms.algorithms import ALGORITHMS, algorithm
from fedatoms.algorithms.base import replace_params
from fedatoms.cli import main
from fedatoms.core.randomness import generator
from fedatoms.engine.evaluation import score
from fedatoms.engine.exchange import Exchange, fast_slow
from fedatoms.engine.round import advance
from fedatoms.engine.runtime import layout_of, prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.training import Training
from fedatoms.evidence.explain import study
from fedatoms.evidence.explain.aggregates import Apart, compare_aggregates, mean_model, mean_of_filters
from fedatoms.evidence.explain.factors import Factors, factors_of, filters, layers_of
from fedatoms.evidence.explain.files import read, write
from fedatoms.evidence.explain.forks import Forked, check_fork, fork, refactor
from fedatoms.evidence.explain.latent import product_of, score_latent
from fedatoms.evidence.explain.replayed_round import Replay, open_run, replay
from fedatoms.evidence.explain.scores import Scores, judge_of, of_plain_network, scores_of
from fedatoms.evidence.explain.study import explain
from fedatoms.evidence.explain.twin import check_twin, plain_accuracies
from fedatoms.evidence.explain.values import Explain
from fedatoms.evidence.explain.variance import parts_of, variance_of
from fedatoms.evidence.explain.words import findings
from fedatoms.experiment.build import simulation
from fedatoms.experiment.fields import Experiment
from fedatoms.nn.pure import with_params
from fedatoms.personal import personal
from fedatoms.runs.execute import resume, run
from fedatoms.runs.lock import locked

TINY = Experiment(clients=10, fraction=0.3, rounds=2, epochs=1, batch_size=32, threads=1, parametrisation="atoms")
BRISK = Training(epochs=3, batch_size=4, lr=0.3, momentum=0.5)


def a_simulation(atoms: int = 9, **changes: object) -> Simulation:
    sizes = changes.pop("sizes", (5, 7, 23, 8))
    return Simulation(small_net(atoms=atoms, norm=True), clients_of(sizes), **{"training": BRISK, **changes})


def a_round(sim: Simulation) -> Replay:
    return replay(prepare(sim), play(sim, 1))


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs on digits, with atoms and plain."""
    out = tmp_path_factory.mktemp("runs")
    run(replace(TINY, out=str(out), name="atoms"))
    run(replace(TINY, out=str(out), name="plain", parametrisation="plain"))
    return out


@pytest.mark.parametrize(("name", "way"), some_now(ALGORITHMS, ["one_by_one", "vectorised"], every=2, begin=1))
def test_a_replayed_round_is_the_engines_own_and_its_clients_have_the_engines_mean(name: str, way: str) -> None:
    sim = a_simulation(algorithm=algorithm(name), map=way, fraction=0.75)
    state = play(sim, 1)
    done, (after, _) = replay(prepare(sim), state), advance(prepare(sim), state)
    assert identical(done.after.server.params, after.server.params)
    assert len(done.models) == len(done.clients) == 3
    weighed = [
        {name: p * leaf for name, leaf in model.items()} for p, model in zip(done.weights, done.models, strict=True)
    ]
    mean = {name: sum(each[name] for each in weighed) for name in layout_of(sim).labels}
    assert difference(mean, {name: mean_model(done)[name] for name in layout_of(sim).labels}) < 1e-12


def test_only_the_phase_that_is_uploaded_is_heard() -> None:
    sim = a_simulation(personal=personal("local-atoms", None))
    done = a_round(sim)
    assert len(done.models) == len(done.clients)
    assert any(not torch.equal(done.models[0][name], done.before.server.params[name]) for name in layout_of(sim).labels)


def test_a_replay_from_the_checkpoint_is_what_the_run_itself_had_next(folder: Path, tmp_path: Path) -> None:
    opened = open_run(folder / "atoms", {}, tmp_path / "scratch")
    longer = run(replace(TINY, out=str(tmp_path), name="longer", rounds=3))
    assert opened.state.round == 2
    assert identical(
        replay(opened.runtime, opened.state).after.server.params, load_file(longer.folder / "model.safetensors")
    )


def test_a_replay_only_reads_the_run_also_if_a_checkpoint_is_damaged(tmp_path: Path) -> None:
    found = run(replace(TINY, out=str(tmp_path), name="run", checkpoint_every=1)).folder
    (found / "checkpoint" / "000002.json").write_text("{")
    before = sorted(found.rglob("*"))
    opened = open_run(found, {}, tmp_path / "scratch")
    assert opened.state.round == 1 and "checkpoint 000002 is damaged" in opened.notes[0]
    assert sorted(found.rglob("*")) == before


def test_a_run_that_is_running_is_not_resumed_for_its_first_checkpoint(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "atoms", tmp_path / "run", ignore=shutil.ignore_patterns("checkpoint", "result.json"))
    with pytest.raises(ValueError, match=r"no checkpoint to replay from\. Go on with `fedatoms run --resume"):
        open_run(tmp_path / "run", {}, tmp_path / "scratch")
    with (
        locked(tmp_path / "run"),
        pytest.raises(ValueError, match=r"It is running \(process .*\): wait for its first\."),
    ):
        open_run(tmp_path / "run", {}, tmp_path / "scratch")


@pytest.mark.parametrize("atoms", [4, 9, 12])
def test_both_averages_are_those_of_plain_loops(atoms: int) -> None:
    sim = a_simulation(atoms)
    done = a_round(sim)
    for layer in layers_of(sim.model):
        p, each = done.weights, [filters(model, layer) for model in done.models]
        crossed = torch.zeros_like(each[0])
        for i in range(len(each)):
            for j in range(len(each)):
                crossed += p[i] * p[j] * filters(product_of(done, [layer], i, j), layer)
        own = sum(share * theta for share, theta in zip(p, each, strict=True))
        clients = factors_of(layer, done)
        assert close(clients.a @ clients.d, crossed) and close(filters(mean_model(done), layer), crossed)
        assert close(clients.shift, own - crossed)
        assert close(mean_of_filters(done, layers_of(sim.model))[layer.weight].flatten(2).flatten(0, 1), own)
        found = compare_aggregates(done, [layer], judge_of(prepare(sim), done.clients)).apart
        move = crossed - filters(done.before.server.params, layer)
        assert found.ratio == pytest.approx(float((own - crossed).norm() / move.norm()))


def test_the_network_without_latent_clients_is_the_plain_one_with_the_same_rest() -> None:
    sim = a_simulation()
    done, layers = a_round(sim), layers_of(sim.model)
    off, plain = mean_of_filters(done, layers), fuse(with_params(sim.model, mean_model(done)))
    assert off.keys() == dict(plain.state_dict()).keys()
    found, judge = (
        compare_aggregates(done, layers, judge_of(prepare(sim), done.clients)),
        judge_of(prepare(sim), done.clients),
    )
    assert found.on == scores_of(judge, mean_model(done)) != found.off == scores_of(of_plain_network(judge), off)
    factors = {layer.weight for layer in layers}
    assert all(torch.equal(leaf, off[name]) for name, leaf in plain.state_dict().items() if name not in factors)
    assert not any(torch.equal(leaf, off[name]) for name, leaf in plain.state_dict().items() if name in factors)


@pytest.mark.parametrize("changes", [{"sizes": (23,)}, {"training": BRISK._replace(lr=0.0)}], ids=["alone", "at rest"])
def test_one_client_or_no_step_leaves_no_difference(changes: dict[str, object]) -> None:
    sim = a_simulation(**changes)
    done = a_round(sim)
    found = compare_aggregates(done, layers_of(sim.model), judge_of(prepare(sim), done.clients))
    assert found.apart.difference == found.apart.ratio == 0
    assert found.on.loss == pytest.approx(found.off.loss, rel=1e-12) and found.on.accuracy == found.off.accuracy


def test_in_a_fast_round_there_are_no_latent_clients() -> None:
    sim = a_simulation(exchange=Exchange(fast_slow({"atoms", "head"}, {"coefficients", "rest", "statistics"}, 2)))
    slow, fast = replay(prepare(sim), play(sim, 2)), a_round(sim)
    apart = [
        compare_aggregates(each, layers_of(sim.model), judge_of(prepare(sim), each.clients)).apart
        for each in (slow, fast)
    ]
    assert apart[0].difference > 0 == apart[1].difference < apart[1].move


def test_scores_are_the_engines_on_the_test_set_and_on_the_clients_training_images() -> None:
    sim = a_simulation(fraction=0.5)
    done = a_round(sim)
    judge, params = judge_of(prepare(sim), done.clients), mean_model(done)
    found, rows = scores_of(judge, params), torch.cat([sim.data.parts[client] for client in done.clients])
    assert (found.accuracy, found.loss) == score(prepare(sim), params)[:2]
    with torch.no_grad():
        logits = prepare(sim).network.predict(params, sim.data.x[rows])
    assert found.train_loss == pytest.approx(float(torch.nn.functional.cross_entropy(logits, sim.data.y[rows])))
    plain = dict(fuse(with_params(sim.model, params)).state_dict())
    assert scores_of(of_plain_network(judge), plain).loss == pytest.approx(found.loss)


def test_real_clients_stand_on_the_diagonal_and_have_the_averaged_rest() -> None:
    sim = a_simulation()
    done, layers = a_round(sim), layers_of(sim.model)
    judge = judge_of(prepare(sim), done.clients)
    found = score_latent(done, layers, judge, most=10, seed=0)
    assert [each.atoms for each in found.real] == done.clients and len(found.latent) == found.of == 12
    for place, each in enumerate(found.real):
        rest = {name: leaf for name, leaf in mean_model(done).items() if not name.endswith(("atoms", "coefficients"))}
        assert each.scores == scores_of(judge, {**done.models[place], **rest})
    bound = max(each.scores.loss for each in found.real)
    assert found.bounded == sum(each.scores.loss <= bound for each in found.latent) / 12
    assert found.whole.loss == pytest.approx(sum(score(prepare(sim), model).loss for model in done.models) / 4)


def test_of_many_clients_the_same_few_are_crossed_for_the_same_seed() -> None:
    sim = a_simulation()
    done, layers = a_round(sim), layers_of(sim.model)
    draws = [
        score_latent(done, layers, judge_of(prepare(sim), done.clients), most=2, seed=seed) for seed in (0, 0, 1, 2, 3)
    ]
    assert draws[0] == draws[1] and any(draw != draws[0] for draw in draws[2:])
    assert [len(draws[0].real), len(draws[0].latent), draws[0].of] == [2, 2, 12]


def drawn_clients(draws: int, clients: int, noise: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draws coefficients and atoms around fixed means, independently: (draws, C, N, M) and (draws, C, M, K)."""
    g = torch.Generator().manual_seed(0)
    a, d = (torch.randn(*shape, dtype=torch.float64, generator=g) for shape in ((6, 3), (3, 4)))
    eps, delta = (noise * torch.randn(draws, clients, *mean.shape, dtype=torch.float64, generator=g) for mean in (a, d))
    return a, d, a + eps, d + delta


def around_mean(coefficients: Tensor, atoms: Tensor, p: Tensor) -> Factors:
    a, d = (torch.tensordot(p, each, dims=1) for each in (coefficients, atoms))
    return Factors(a, d, coefficients - a, atoms - d, p)


def test_the_parts_of_a_variance_are_those_of_a_loop() -> None:
    _, _, alpha, atoms = drawn_clients(draws=1, clients=4, noise=0.5)
    p = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    clients = around_mean(alpha[0], atoms[0], p)
    a, d, eps, delta, _ = clients
    first = second = crossed = 0.0
    for i in range(4):
        first += float(p[i] * (eps[i] @ d + a @ delta[i]).square().sum())
        second += float(p[i] * (eps[i] @ delta[i]).square().sum())
        for j in range(4):
            crossed += float(p[i] * p[j] * (eps[i] @ delta[j]).square().sum())
    s = float(p.square().sum())
    spread = sum(float(each * (1 - 2 * each + s) ** 2) for each in p)  # of a deviation from the mean, squared
    mixed = 2 * crossed / (1 - s) ** 2 * (s * (1 - s) + sum(float(each * (each - s) ** 2) for each in p))
    expected = (
        s * (first - mixed) / (1 - s),
        s * second / spread,
        s**2 * crossed / (1 - s) ** 2,
    )
    assert parts_of(clients) == pytest.approx(expected)


@pytest.mark.parametrize("noise", [0.05, 1.0])
@pytest.mark.parametrize(
    "sizes", [(1, 1, 1, 1, 1), (1, 1, 2, 2, 4), (1, 1, 1, 1, 4)], ids=["alike", "unequal", "one large"]
)
def test_variances_are_those_that_many_draws_of_independent_clients_have(noise: float, sizes: tuple[int, ...]) -> None:
    a, d, alpha, atoms = drawn_clients(draws=2000, clients=5, noise=noise)
    p = torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
    mean = lambda each: torch.einsum("c,bcij->bij", p, each)  # noqa: E731
    off, on = mean(alpha @ atoms) - a @ d, mean(alpha) @ mean(atoms) - a @ d
    true_off, true_on = (float(each.square().sum((1, 2)).mean()) for each in (off, on))
    found = [parts_of(around_mean(*each, p)) for each in zip(alpha, atoms, strict=True)]
    first, second_off, second_on = torch.tensor(found, dtype=torch.float64).mean(0).tolist()
    share, noises = float(p.square().sum()), noise**2 * len(a) * float(d.square().sum())
    true_first = share * (noises + noise**2 * d.shape[1] * float(a.square().sum()))
    assert first == pytest.approx(true_first, rel=0.03)
    assert first + second_on == pytest.approx(true_on, rel=0.03)
    assert first + second_off == pytest.approx(true_off, rel=0.03)
    assert (true_on < 0.9 * true_off) == (noise == 1)  # to first order there is nothing to gain


def test_drawn_variances_are_those_of_the_very_samples() -> None:
    sim = a_simulation(training=BRISK._replace(lr=1.0))
    done, layers = a_round(sim), layers_of(sim.model)
    found = variance_of(done, layers, seed=3, draws=7)
    chosen = torch.randint(4, (7, 4), generator=generator(3, "resample", done.before.round))
    both: dict[str, list[Tensor]] = {"off": [], "on": []}
    for sample in chosen:
        p = done.weights[sample] / done.weights[sample].sum()
        clients = [done.models[k] for k in sample]
        mean = {
            name: sum(w * model[name] for w, model in zip(p, clients, strict=True)) for name in layout_of(sim).labels
        }
        both["on"].append(torch.cat([filters(mean, layer).flatten() for layer in layers]))
        thetas = [torch.cat([filters(model, layer).flatten() for layer in layers]) for model in clients]
        both["off"].append(sum(w * theta for w, theta in zip(p, thetas, strict=True)))
    unbiased = 1 - float(done.weights.square().sum())
    for kind, drawn in (("off", found.drawn_off), ("on", found.drawn_on)):
        samples = torch.stack(both[kind])
        direct = float((samples - samples.mean(0)).square().sum(1).mean()) / unbiased
        assert drawn * found.size == pytest.approx(direct)
    assert found.ratio == found.on / found.off and found.drawn_ratio == found.drawn_on / found.drawn_off


def test_one_client_has_no_variance_to_speak_of() -> None:
    sim = a_simulation(sizes=(9,))
    assert variance_of(a_round(sim), layers_of(sim.model), seed=0) is None


@pytest.mark.parametrize("atoms", [9, 12])
def test_a_server_with_enough_atoms_holds_the_mean_of_filters_exactly(atoms: int) -> None:
    sim = a_simulation(atoms)
    done, layers = a_round(sim), layers_of(sim.model)
    params, lost = refactor(done, layers)
    off = mean_of_filters(done, layers)
    assert lost < 1e-9
    for layer in layers:
        assert close(filters(params, layer), off[layer.weight].flatten(2).flatten(0, 1))
        assert torch.equal(params[layer.atoms], done.after.server.params[layer.atoms])


def test_with_fewer_atoms_it_comes_as_near_as_they_allow_and_says_what_is_lost() -> None:
    sim = a_simulation(atoms=3)
    done, layers = a_round(sim), layers_of(sim.model)
    params, lost = refactor(done, layers)
    off, missed, shifts = mean_of_filters(done, layers), 0.0, 0.0
    for layer in layers:
        rest = off[layer.weight].flatten(2).flatten(0, 1) - filters(params, layer)
        assert close(rest @ params[layer.atoms].flatten(1).T, torch.zeros(1, dtype=torch.float64))
        missed += float(rest.square().sum())
        shifts += float(factors_of(layer, done).shift.square().sum())
    assert lost == pytest.approx((missed / shifts) ** 0.5) and 0.1 < lost < 1


def test_a_fork_with_latent_clients_is_the_run_resumed(folder: Path, tmp_path: Path) -> None:
    opened = open_run(folder / "atoms", {}, tmp_path / "scratch")
    found = fork(opened.runtime, opened.state, layers_of(opened.runtime.sim.model), 2)
    run(replace(TINY, out=str(tmp_path), name="twin"))
    resumed = resume(tmp_path / "twin", {"rounds": 4})
    assert found.accuracy_on[-1] == resumed.accuracy["server"].final
    assert found.round == 2 and len(found.loss_off) == 2 and found.loss_on != found.loss_off


def test_a_fork_without_latent_clients_scores_the_mean_of_filters() -> None:
    sim = a_simulation()
    state, layers = play(sim, 1), layers_of(sim.model)
    done = replay(prepare(sim), state)
    off = scores_of(of_plain_network(judge_of(prepare(sim), done.clients)), mean_of_filters(done, layers))
    assert fork(prepare(sim), state, layers, 1).loss_off == pytest.approx([off.loss])


def test_a_fork_is_the_same_wherever_clients_states_are(tmp_path: Path) -> None:
    exchange = Exchange(fast_slow({"atoms"}, {"coefficients", "head", "rest", "statistics"}, 2), slow_local="keep")
    sims = [a_simulation(exchange=exchange, client_state=place, folder=tmp_path) for place in ("device", "disk")]
    memory, disk = (fork(prepare(sim), play(sim, 1), layers_of(sim.model), 5) for sim in sims)
    assert memory.loss_on != memory.loss_off and memory == disk


@pytest.mark.parametrize("name", ALGORITHMS)
def test_only_a_server_that_just_averages_is_forked(name: str) -> None:
    sim = a_simulation(algorithm=algorithm(name))
    if algorithm(name).aggregate is replace_params:
        check_fork(sim, name)
    else:
        with pytest.raises(ValueError, match=f"{name}.*leave --fork out"):
            check_fork(sim, name)


def test_a_run_is_explained_from_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in (folder / "atoms").rglob("*") if path.is_file()}
    words = ["--rounds", "2", "--fork", "1", "--plain", str(folder / "plain"), "--crossed", "2"]
    assert main(["explain", str(folder / "atoms"), *words]) == 0
    said, file = capsys.readouterr(), folder / "atoms" / "explain.json"
    measured, said_of_file = json.loads(file.read_text()), findings(read(file))
    file.unlink()
    assert {path: path.read_bytes() for path in (folder / "atoms").rglob("*") if path.is_file()} == before
    assert [each["round"] for each in measured["rounds"]] == [2, 3] and measured["round"] == 2
    assert said_of_file == measured["found"]
    assert measured["provenance"]["torch"] and "out" not in measured["experiment"] | measured["settings"]
    assert measured["rounds"][0]["aggregates"]["apart"]["ratio"] > 0
    assert measured["rounds"][0]["variance"]["ratio"] < 1
    unwrapped = " ".join(said.out.split())
    assert len(measured["found"]) == 6 and all(sentence in unwrapped for sentence in measured["found"])
    shown = ("atoms from round 3 on", "round 4: scoring latent clients", "conv1", "Against the plain run")
    assert all(words in unwrapped for words in shown)
    assert not said.err


def test_what_is_said_follows_the_numbers(folder: Path) -> None:
    done = explain(folder / "atoms", Explain(rounds=1, crossed=2))
    (first,) = done.rounds
    on, off = Scores(60.0, 1.5, 1.0), Scores(58.0, 1.25, 1.0)
    aggregates = replace(first.aggregates, apart=Apart(difference=1.0, move=8.0), on=on, off=off)
    forked = Forked(2, accuracy_on=[50.0, 60.0], accuracy_off=[51.0, 58.0], loss_on=[], loss_off=[], lost=0.25)
    done = replace(done, rounds=[replace(first, aggregates=aggregates)])
    said, all_said = findings(done), findings(replace(done, plain=[50.0], fork=forked))
    assert "differ by 12.50 % of the round's move" in said[0] and "(2 of 6, drawn)" in said[2]
    assert "60.00 % with latent clients, 58.00 % without (+2.00 points" in said[1] and "1.5000 and 1.2500" in said[1]
    assert "--plain" in said[-2] and "--fork N" in said[-1]
    assert "+10.00 points: +2.00 points from latent" in all_said[-2] and "+8.00 points from the para" in all_said[-2]
    assert "After 2 rounds: 60.00 % with latent clients, 58.00 % without (+2.00 points; " in all_said[-1]
    assert "mean over the rounds +0.50" in all_said[-1]
    assert "25 %" in all_said[-1] and "25 %" not in " ".join(findings(replace(done, fork=replace(forked, lost=0.0))))
    assert "server of feddyn" in findings(replace(done, experiment=replace(TINY, algorithm="feddyn")))[-1]


def test_a_file_is_read_as_it_was_written(folder: Path, tmp_path: Path) -> None:
    done = explain(folder / "atoms", Explain(rounds=1, crossed=2, fork=1, seed=3))
    write(done, tmp_path / "it.json", [])
    again = read(tmp_path / "it.json")
    assert replace(again, experiment=done.experiment) == done  # the file does not say where things lie
    assert replace(again.experiment, out=done.experiment.out) == done.experiment


def test_a_plain_run_is_scored_in_its_own_next_rounds(folder: Path, tmp_path: Path) -> None:
    plain = open_run(folder / "plain", {}, tmp_path / "scratch")
    state, _ = advance(plain.runtime, plain.state)
    assert state.selected is not None
    assert plain_accuracies(plain, 1) == [score(plain.runtime, state.selected).accuracy]


def broken(change: Callable[[Path], object]) -> Callable[[Path, Path], Path]:
    def make(folder: Path, tmp_path: Path) -> Path:
        run(replace(TINY, out=str(tmp_path), name="it", rounds=1))
        change(tmp_path / "it")
        return tmp_path / "it"

    return make


def without_checkpoint(it: Path) -> None:
    for path in (it / "checkpoint").glob("*.json"):
        path.unlink()


REFUSED: dict[str, tuple[Callable[[Path, Path], Path], list[str], str]] = {
    "plain": (
        lambda folder, _: folder / "plain",
        [],
        "plain network, which has no atoms. Explain a run with --para",
    ),
    "no run": (lambda folder, _: folder, [], "holds no run"),
    "rounds": (lambda folder, _: folder / "atoms", ["--rounds", "0"], "--rounds 0 is less than 1"),
    "many": (lambda folder, _: folder / "atoms", ["--rounds", "9" * 20], f"--rounds {'9' * 20} is more than 1e6"),
    "fork": (lambda folder, _: folder / "atoms", ["--fork", "-1"], "--fork -1 is less than 0. Use 0 for none."),
    "threads": (lambda folder, _: folder / "atoms", ["--threads", "-1"], "--threads -1 is less than 0. Use 0 for"),
    "cores": (lambda folder, _: folder / "atoms", ["--threads", "9999"], "--threads 9999 is more than this machine's"),
    "out": (lambda folder, _: folder / "atoms", ["--out", "it.txt"], "--out it.txt is not a .json file"),
    "not plain": (lambda folder, _: folder / "atoms", ["--plain", "{atoms}"], "is decomposed too"),
    "no checkpoint": (broken(without_checkpoint), [], "has no checkpoint to replay from. Make the run again"),
    "nodes": (broken(lambda it: (it / "nodes").mkdir()), [], "is a run on nodes"),
    "another round": (broken(lambda it: None), ["--plain", "{plain}"], "has run 2 rounds, the other run 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_explained_is_refused_in_one_line(
    case: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, words, reason = REFUSED[case]
    places = {f"{{{name}}}": str(folder / name) for name in ("atoms", "plain")}
    assert main(["explain", str(make(folder, tmp_path)), *(places.get(word, word) for word in words)]) == 2
    said = capsys.readouterr().err
    assert reason in said and said.count("\n") == 1


@pytest.mark.parametrize("method", ["fedper", "fedpac", "local"])
def test_a_method_whose_server_has_no_whole_model_is_refused(method: str, tmp_path: Path) -> None:
    run(replace(TINY, personal=method, out=str(tmp_path), name="it", rounds=1, last_epochs=0))
    with pytest.raises(ValueError, match=f"--personal {method} a part of the model never leaves a client"):
        explain(tmp_path / "it")


def test_a_twin_with_another_learning_rate_is_refused(folder: Path, tmp_path: Path) -> None:
    atoms, plain = (open_run(folder / name, {}, tmp_path / name) for name in ("atoms", "plain"))
    other = plain._replace(experiment=replace(plain.experiment, lr=0.2))
    check_twin(folder / "plain", plain, atoms)
    with pytest.raises(ValueError, match="differs in --lr as well"):
        check_twin(folder / "plain", other, atoms)


def test_states_on_disk_stay_as_they_are(tmp_path: Path) -> None:
    done = run(replace(TINY, out=str(tmp_path), name="it", algorithm="scaffold", client_state="disk"))
    before = sorted(path.name for path in done.folder.rglob("*"))
    found = explain(done.folder, Explain(rounds=1, crossed=0))
    assert found.rounds[0].latent is None and sorted(path.name for path in done.folder.rglob("*")) == before


def test_ctrl_c_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*anything: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "score_latent", stop)
    assert main(["explain", str(folder / "atoms")]) == 130
    assert not (folder / "atoms" / "explain.json").exists()


def test_the_bounds_are_shown_with_what_they_assume(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--bounds", "--clients", "50", "--beta", "1/2"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert all(
        words in said for words in ("Theorem 5.5: 10 of 50", "Theorem F.1: all 50", "derived", "convex", "0.502")
    )
    assert main(["explain", "--bounds", "--convexity", "2"]) == 2
    assert "mu <= L" in capsys.readouterr().err


def test_the_layers_of_a_network_are_named_once_where_they_are_tied() -> None:
    model = small_net(atoms=4)
    model.conv1.atoms = model.conv2.atoms
    assert [layer.atoms for layer in layers_of(model)] == ["conv1.atoms", "conv1.atoms"]
    assert len(layers_of(simulation(TINY).model)) == 2


def test_a_replay_has_the_uploads_as_the_server_reads_them() -> None:
    sim = Simulation(small_net(atoms=4), clients_of(), uploads="4-bit")
    done = replay(prepare(sim), play(sim, 1))
    for name, leaf in done.after.server.params.items():
        mean = sum(weight * model[name] for weight, model in zip(done.weights, done.models, strict=True))
        assert torch.allclose(mean, leaf, rtol=0, atol=1e-12), name
