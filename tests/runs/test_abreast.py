"""Runs abreast: whatever trains in one block with them, models, scores, records and files are those of single runs."""

import itertools
import json
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.cases import some_of
from support.signals import interruptible
from support.small import all_scores, clients_of, difference, small_net
from torch import nn

from fedatoms.algorithms import ALGORITHMS, algorithm
from fedatoms.cli import main
from fedatoms.data.federations import Federation
from fedatoms.engine import abreast as joining
from fedatoms.engine import loop
from fedatoms.engine.abreast import beside
from fedatoms.engine.exchange import FAST, SLOW, Exchange, fast_slow
from fedatoms.engine.execution import cuda_graph
from fedatoms.engine.execution.blocks import in_blocks
from fedatoms.engine.finetune import last_pass
from fedatoms.engine.loop import Progress, Watch, begin, rounds
from fedatoms.engine.peers import ALONE
from fedatoms.engine.runtime import Runtime, prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.state import State
from fedatoms.engine.training import Training
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import run_folder
from fedatoms.optimisers import adamw, constant, cosine
from fedatoms.personal import personal
from fedatoms.runs import abreast
from fedatoms.runs.abreast import Abreast, NotBeside
from fedatoms.runs.comparison import existing, run_missing
from fedatoms.runs.results import read_result
from fedatoms.runs.rounds import read_rounds

TRAINING = Training(epochs=2, batch_size=10, lr=0.05, lr_decay=0.9, momentum=0.5, weight_decay=1e-3, clip=1.0)
SAME = 1e-12
TINY = Experiment(
    clients=10, fraction=0.3, rounds=3, epochs=1, batch_size=32, checkpoint_every=2, threads=1, map="vectorised"
)


def simulation(**changes: object) -> Simulation:
    sim = Simulation(
        small_net(norm=True, dropout=True, atoms=4),
        clients_of((1, 7, 23, 4)),
        exchange=Exchange(fast_slow(FAST, SLOW, 2)),
        training=TRAINING._replace(atoms_decay=3.0),
        failures=0.3,
        map="vectorised",
    )
    return replace(sim, **changes)


def seeds(sim: Simulation, count: int = 3) -> list[Simulation]:
    """Returns runs of several seeds, each with its own initial model and numbers."""
    nets = [small_net(norm=True, dropout=True, atoms=4, seed=seed) for seed in range(count)]
    numbers = [sim.training._replace(lr=0.05 * (1 + s), atoms_lr=1.0 + s, lr_decay=1 - 0.1 * s) for s in range(count)]
    return [replace(sim, seed=s, model=nets[s], training=numbers[s]) for s in range(count)]


def watched(
    sim: Simulation, until: int, made: Callable[[Simulation], Runtime] = prepare, every: int = 1
) -> list[Progress]:
    runtime = made(sim)
    return list(rounds(runtime, begin(runtime), until, every))


def together(sims: Sequence[Simulation], until: int = 4, every: int = 1) -> list[list[Progress]]:
    """Trains runs abreast, and fails if they did not share blocks to the end."""
    group = Abreast[list[Progress]]()
    made = partial(group.prepare, peers=ALONE)
    with warnings.catch_warnings(action="error"):
        over = group.run([partial(watched, sim, until, made, every) for sim in sims])
    assert not group._apart
    return [each.result() for each in over]


def trees_of(state: State) -> dict[str, dict[str, torch.Tensor]]:
    found = {"params": state.server.params, **state.server.memory, "sum": state.last_sum or {}}
    for client, row in state.clients.rows.items():
        parts = {**row.memory, "own": row.own, "last": row.last}
        found |= {f"{client} {name}": tree for name, tree in parts.items()}
    return {name: tree for name, tree in found.items() if tree}


def agree(one: State, other: State) -> bool:
    mine, others = trees_of(one), trees_of(other)
    return mine.keys() == others.keys() and all(difference(mine[name], others[name]) < SAME for name in mine)


def check_same(alone: Sequence[Progress], shared: Sequence[Progress]) -> None:
    for one, other in zip(alone, shared, strict=True):
        assert agree(one.state, other.state)
        assert (one.state.versions, dict(one.state.held)) == (other.state.versions, dict(other.state.held))
        mine, others = (each.record._replace(seconds=0.0, loss=0.0) for each in (one, other))
        assert mine == others  # clients, failures and bytes
        assert one.record.loss == pytest.approx(other.record.loss, abs=SAME, nan_ok=True)
        assert one.scores.keys() == other.scores.keys()
        for name, score in one.scores.items():
            assert score.value == other.scores[name].value
            assert score.loss == pytest.approx(other.scores[name].loss, abs=SAME)


def compiled_in_blocks_of(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets runs share the map of a GPU, without the compiler, and blocks that may be smaller than a round."""
    monkeypatch.setattr(cuda_graph, "compile_graph", lambda graph, example: graph)
    monkeypatch.setattr(abreast, "map_of", lambda *runs: in_blocks(cuda_graph.compiled, lambda *first: size))


@pytest.mark.parametrize("name", some_of(ALGORITHMS, "fedavg", "scaffold"))
def test_three_seeds_in_one_block_are_three_runs(name: str) -> None:
    """With other rates each, fast and slow rounds, failures, dropout, BatchNorm, and clients of any size."""
    sims = seeds(simulation(algorithm=algorithm(name), score=all_scores(algorithm(name))))
    for alone, shared in zip([watched(sim, 4) for sim in sims], together(sims), strict=True):
        check_same(alone, shared)


STRONG = [name for name, method in ALGORITHMS.items() if method.strength]


def strengths(name: str, sim: Simulation, score: tuple[str, ...]) -> list[Simulation]:
    """Returns runs that differ in nothing but the strength of an algorithm."""
    values = (0.02, 0.3, 0.9)
    return [replace(sim, algorithm=algorithm(name, value), score=score) for value in values]


@pytest.mark.parametrize("name", some_of(STRONG, "fedprox", "feddyn"))
def test_runs_of_three_strengths_in_one_block_are_three_runs(name: str) -> None:
    sims = strengths(name, simulation(), all_scores(algorithm(name)))
    alone = [watched(sim, 4) for sim in sims]
    if name != "fedexp":  # whose epsilon matters where clients hardly move
        models = [each[-1].state.server.params for each in alone]
        assert min(difference(one, other) for one, other in itertools.combinations(models, 2)) > 1e-6
    for one, shared in zip(alone, together(sims), strict=True):
        check_same(one, shared)


def test_an_algorithm_that_is_made_of_ours_and_changed_keeps_its_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (
        "from fedatoms.algorithms import algorithm\ndef own(a=0.9): return algorithm('feddyn', a)._replace(decay=0.0)\n"
    )
    Path("changed_feddyn.py").write_text(text)
    own = algorithm("changed_feddyn:own")
    assert own.strength is None and algorithm("feddyn").strength is not None
    sims = seeds(simulation(algorithm=own, score=("server",)))
    for alone, shared in zip([watched(sim, 3) for sim in sims], together(sims, 3), strict=True):
        check_same(alone, shared)


def test_strengths_in_a_block_are_those_of_single_runs_where_steps_enlarge_the_last_bits() -> None:
    """AdamW makes whole steps of what should cancel, in float32."""
    one = simulation(model=small_net(norm=True, dropout=True, atoms=4).float(), score=("server",), failures=0.0)
    training = one.training._replace(optimiser=adamw(), lr=0.003, momentum=0.0)
    sims = [replace(one, algorithm=algorithm("feddyn", a), training=training) for a in (0.02, 0.05)]
    for alone, shared in zip([watched(sim, 3) for sim in sims], together(sims, 3), strict=True):
        assert difference(alone[-1].state.server.params, shared[-1].state.server.params) < 1e-5


@pytest.mark.parametrize("name", some_of(STRONG, "feddyn"))
def test_so_they_are_in_compiled_blocks_that_go_on_as_runs_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sims = strengths(name, simulation(), ("server",))
    alone = [watched(sim, rounds) for sim, rounds in zip(sims, (1, 3, 2), strict=True)]
    compiled_in_blocks_of(5, monkeypatch)
    group = Abreast[list[Progress]]()
    made = partial(group.prepare, peers=ALONE)
    works = [partial(watched, sim, len(one), made) for sim, one in zip(sims, alone, strict=True)]
    for one, shared in zip(alone, group.run(works), strict=True):
        check_same(one, shared.result())


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("fedavg", 5),
        *(pytest.param(name, size, marks=pytest.mark.slow) for name in ("feddc", "moon") for size in (5, 12)),
    ],
)
def test_so_they_are_in_compiled_blocks_of_any_size(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sims = seeds(simulation(algorithm=algorithm(name), score=("server", "all")))
    alone = [watched(sim, 3) for sim in sims]
    compiled_in_blocks_of(size, monkeypatch)
    for one, shared in zip(alone, together(sims, 3), strict=True):
        check_same(one, shared)


def launched_ahead(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lets rounds run ahead as on a GPU; returns those after which the next one had been launched."""
    asked, launched, launch = loop.runs_ahead, list[int](), loop._launched_if_possible

    def noted(runtime: Runtime, state: State) -> loop.Launched | None:
        launched.append(state.round)
        return launch(runtime, state)

    def as_on_a_gpu(runtime: Runtime) -> bool:
        return asked(runtime._replace(sim=replace(runtime.sim, device="cuda")))

    monkeypatch.setattr(loop, "runs_ahead", as_on_a_gpu)
    monkeypatch.setattr(loop, "_launched_if_possible", noted)
    return launched


@pytest.mark.parametrize("name", some_of(ALGORITHMS, "scaffold"))
def test_so_they_are_if_all_launch_their_rounds_ahead(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sims = seeds(simulation(algorithm=algorithm(name), score=all_scores(algorithm(name))))
    alone = [watched(sim, 5, every=3) for sim in sims]
    compiled_in_blocks_of(12, monkeypatch)  # a block that the next one overwrites
    ahead = launched_ahead(monkeypatch)
    for one, shared in zip(alone, together(sims, 5, every=3), strict=True):
        check_same(one, shared)
    assert sorted(ahead) == [1, 1, 1, 2, 2, 2, 4, 4, 4]  # not before scores, nor after the last


METHODS = {
    "controls of the first round": {
        "training": TRAINING._replace(controls="first"),
        "algorithm": algorithm("scaffold"),
    },
    "controls of the first round of a warm-up": {
        "training": TRAINING._replace(controls="first", schedule=constant(warmup=2)),
        "algorithm": algorithm("scaffold"),
    },
    "schedules of rounds and steps": {"training": TRAINING._replace(schedule=cosine(rounds=4, steps="cosine"))},
    "adamw": {"training": TRAINING._replace(momentum=0.0, optimiser=adamw(epsilon=1e-3))},  # smaller: noise would grow
    "accumulation": {"training": TRAINING._replace(batch_size=4, accumulate=3)},
    "kept slow parts": {"exchange": Exchange(fast_slow(FAST, SLOW, 2), slow_local="keep")},
    "frozen slow parts": {"exchange": Exchange(fast_slow(FAST, SLOW, 2), slow_local="freeze")},
    "local atoms": {"personal": personal("local-atoms"), "score": ("server", "personal")},
    "ditto": {"personal": personal("ditto"), "score": ("server", "personal")},
    "fedpac": {"personal": personal("fedpac"), "score": ("server", "personal")},
}


@pytest.mark.parametrize("what", some_of(METHODS, "schedules of rounds and steps", "kept slow parts", "local atoms"))
def test_whatever_clients_do_runs_can_share_blocks(what: str) -> None:
    sims = seeds(simulation(**METHODS[what]))
    for alone, shared in zip([watched(sim, 3) for sim in sims], together(sims, 3), strict=True):
        check_same(alone, shared)


def test_runs_may_have_other_clients_and_other_numbers_of_them() -> None:
    def dealt(data: Federation, sizes: Sequence[int], seed: int) -> Federation:
        order = torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(seed))
        return data._replace(parts=list(order.split(list(sizes))), test_parts=[torch.arange(12)] * len(sizes))

    one = simulation(score=("server", "all"))
    parts = [(1, 7, 23, 4), (30, 5), (3, 3, 3, 3, 23)]
    sims = [replace(sim, data=dealt(sim.data, parts[s], s)) for s, sim in enumerate(seeds(one))]
    for alone, shared in zip([watched(sim, 4) for sim in sims], together(sims), strict=True):
        check_same(alone, shared)


def test_a_last_pass_of_all_clients_is_shared_too() -> None:
    sims = seeds(simulation(personal=personal("local-atoms"), fraction=0.5))

    def work(made: Callable[[Simulation], Runtime], sim: Simulation) -> State:
        runtime = made(sim)
        for progress in rounds(runtime, begin(runtime), 2):
            state = progress.state
        return last_pass(runtime, state, epochs=2)[1]

    group = Abreast[State]()
    over = group.run([partial(work, partial(group.prepare, peers=ALONE), sim) for sim in sims])
    assert not group._apart
    for sim, each in zip(sims, over, strict=True):
        assert agree(work(prepare, sim), each.result())


def test_a_run_that_diverges_fails_alone_and_in_its_own_words() -> None:
    sims = seeds(simulation(failures=0.0))
    sims[1] = replace(sims[1], training=sims[1].training._replace(lr=1e5, clip=0.0, weight_decay=1e-3))
    sims = [replace(sim, training=sim.training._replace(clip=0.0)) for sim in sims]
    with pytest.raises(FloatingPointError) as alone:
        watched(sims[1], 4)
    group = Abreast[list[Progress]]()
    first, second, third = group.run([partial(watched, sim, 4, partial(group.prepare, peers=ALONE)) for sim in sims])
    assert str(second.error) == str(alone.value) and not group._apart
    check_same(watched(sims[0], 4), first.result())
    check_same(watched(sims[2], 4), third.result())


def test_those_that_are_left_go_on_in_smaller_blocks_and_the_last_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    real = joining.map_of
    monkeypatch.setattr(abreast, "map_of", lambda runs, count: made.append(count) or real(runs, count))
    sims, until = seeds(simulation(), 4), (1, 2, 3, 5)
    group = Abreast[list[Progress]]()
    prepared = partial(group.prepare, peers=ALONE)
    over = group.run([partial(watched, sim, end, prepared) for sim, end in zip(sims, until, strict=True)])
    assert made == [4, 2] and group._apart
    for sim, end, each in zip(sims, until, over, strict=True):
        check_same(watched(sim, end), each.result())


def test_where_blocks_cannot_be_shared_each_run_trains_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(size: int) -> Callable[..., Iterator[object]]:
        raise RuntimeError("vmap: no such thing. Please.")

    monkeypatch.setattr(abreast, "map_of", lambda *runs: in_blocks(full, lambda *first: 3))
    sims = seeds(simulation())
    group = Abreast[list[Progress]]()
    with pytest.warns(UserWarning, match=r"runs cannot share blocks \(vmap: no such thing\)") as warned:
        over = group.run([partial(watched, sim, 2, partial(group.prepare, peers=ALONE)) for sim in sims])
    assert len(warned) == 1
    for sim, each in zip(sims, over, strict=True):
        check_same(watched(sim, 2), each.result())


class Drawn(nn.Module):
    """A layer that draws what is no parameter."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.noise = torch.randn(3, generator=torch.Generator().manual_seed(seed))
        self.fc = nn.Linear(36, 3).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x.flatten(1)) + self.noise


def frozen(seed: int) -> nn.Module:
    model = small_net(seed=seed)
    model.get_submodule("conv1").requires_grad_(False)
    return model


def test_only_runs_with_the_same_layers_pool_and_frozen_parameters_share_blocks() -> None:
    sim = simulation(exchange=Simulation(small_net(), clients_of()).exchange)
    first = prepare(sim)
    assert beside(first, replace(sim, seed=1)) is not None
    assert beside(first, replace(sim, model=small_net(atoms=4))) is None
    assert beside(first, replace(sim, data=clients_of((1, 7, 23, 4), seed=1))) is None
    assert beside(first, replace(sim, map="one_by_one")) is None
    assert beside(first, replace(sim, block=2)) is None
    for other, same in ((frozen(0), True), (frozen(1), False)):
        held = prepare(replace(sim, model=frozen(0)))
        assert (beside(held, replace(sim, model=other)) is not None) == same
    for other, same in ((Drawn(0), True), (Drawn(1), False)):
        drawn = prepare(replace(sim, model=Drawn(0)))
        assert (beside(drawn, replace(sim, model=other)) is not None) == same
    group = Abreast[None]()
    group.prepare(sim, ALONE)
    with pytest.raises(NotBeside):
        group.prepare(replace(sim, model=small_net()), ALONE)


def test_runs_hold_one_pool_of_samples() -> None:
    one, other = seeds(simulation(), 2)
    first = prepare(one)
    second = beside(first, replace(other, data=clients_of((1, 7, 23, 4))))
    assert second is not None and second.data.x is first.data.x and second.predict is first.predict


# runs on disk


@contextmanager
def unseen(label: str, rounds: int) -> Iterator[Watch]:
    yield lambda progress: None


def files_of(folder: Path) -> tuple[list[object], list[float]]:
    """Returns what a run leaves but for times and provenance: what is exact, and what is rounded."""
    result, rows = read_result(folder), read_rounds(folder)
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    names = [path for path in files if path.parts[0] != "checkpoint"]  # which has the round of a stop in its names
    scores = [score["accuracy"] for row in rows for score in row["scores"].values()]
    return [result.bytes_up, result.bytes_down, names], [*scores, *(row["loss"] for row in rows)]


def check_folders(one: Path, other: Path) -> None:
    (exact, rounded), (others, its) = files_of(one), files_of(other)
    assert exact == others and rounded == pytest.approx(its)
    assert difference(*(load_file(folder / "model.safetensors") for folder in (one, other))) < 1e-5


GRIDS = {
    "seeds": [replace(TINY, seed=s) for s in range(3)],
    "rates": [replace(TINY, lr=lr, atoms_lr=2 * lr, parametrisation="atoms") for lr in (0.05, 0.1, 0.2)],
    "clients": [replace(TINY, partition="dirichlet", dirichlet=a, clients=c) for a, c in ((0.3, 10), (5.0, 20))],
    "local atoms": [replace(TINY, personal="local-atoms", parametrisation="atoms", seed=s) for s in range(2)],
}


@pytest.mark.parametrize("what", some_of(GRIDS, "rates"))
def test_folders_are_those_of_single_runs(what: str, tmp_path: Path) -> None:
    here = {way: [replace(one, out=str(tmp_path / way)) for one in GRIDS[what]] for way in ("turn", "block")}
    run_missing(here["turn"], unseen)
    results = run_missing(here["block"], unseen, together=3)
    assert [result.provenance["abreast"] for result in results] == [len(results)] * len(results)
    for one, other in zip(*here.values(), strict=True):
        check_folders(run_folder(one), run_folder(other))


def stopping(when: int, error: type[BaseException]) -> Callable[[str, int], object]:
    """Shows runs, and raises an error in the second one after so many rounds."""

    @contextmanager
    def shown(label: str, rounds: int) -> Iterator[Watch]:
        def watch(progress: Progress) -> None:
            if label.startswith("[2/") and progress.state.round == when:
                raise error("stopped")

        yield watch

    return shown


def test_stop_and_resume_of_all_equals_no_stop(tmp_path: Path) -> None:
    whole, parts = ([replace(one, out=str(tmp_path / out)) for one in GRIDS["seeds"]] for out in ("whole", "parts"))
    run_missing(whole, unseen, together=3)
    with pytest.raises(KeyboardInterrupt):
        run_missing(parts, stopping(1, KeyboardInterrupt), together=3)
    for one in parts:
        assert list((run_folder(one) / "checkpoint").glob("*.json"))  # each has saved where it was
        assert not (run_folder(one) / "lock").exists() and existing(one) is None
    run_missing(parts, unseen, together=3)
    for one, other in zip(whole, parts, strict=True):
        check_folders(run_folder(one), run_folder(other))


def test_the_others_go_on_if_one_fails_and_those_done_are_not_run_again(tmp_path: Path) -> None:
    grid = [replace(one, out=str(tmp_path)) for one in GRIDS["seeds"]]
    with pytest.raises(ValueError, match="stopped"):
        run_missing(grid, stopping(1, ValueError), together=3)
    assert [existing(one) is not None for one in grid] == [True, False, True]
    assert "stopped" in json.loads((run_folder(grid[1]) / "failure.json").read_text())["error"]
    seen: list[str] = []

    @contextmanager
    def noted(label: str, rounds: int) -> Iterator[Watch]:
        seen.append(label)
        yield lambda progress: None

    run_missing(grid, noted, together=3)
    assert [label[:5] for label in seen] == ["[2/3]"]


def test_what_cannot_share_a_block_comes_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = itertools.chain([True], itertools.repeat(False))
    real = abreast.beside
    monkeypatch.setattr(abreast, "beside", lambda first, sim: None if next(refused) else real(first, sim))
    grid = [replace(one, out=str(tmp_path)) for one in GRIDS["seeds"]]
    results = run_missing(grid, unseen, together=3)
    assert [result.experiment.seed for result in results] == [0, 1, 2]
    assert [result.provenance["abreast"] for result in results] == [2, 1, 2]


def test_compare_trains_seeds_in_one_block_and_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "compare --clients 10 --rounds 2 --epochs 1 --threads 1 --map vectorised --seeds 0,1 --out".split()
    tables = []
    for out, more in (("block", []), ("turn", ["--together", "1"])):
        assert main([*words, out, *more]) == 0
        tables.append([line for line in capsys.readouterr().out.splitlines() if "±" in line and "%" in line])
    found = {way: [read_result(path.parent) for path in Path(way).rglob("result.json")] for way in ("block", "turn")}
    assert {way: {each.provenance["abreast"] for each in those} for way, those in found.items()} == {
        "block": {2},
        "turn": {1},
    }
    assert tables[0] == tables[1]


def test_runs_together_must_be_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["compare", "--seeds", "0,1"], ["reproduce", "iid", "--quick"], ["tune", "--over", "lr=0.1,0.2"]):
        assert main([*words, "--together", "0"]) == 2
        assert capsys.readouterr().err == (
            "fedatoms: --together 0 is less than 1. Use --together 8, or 1 for one run after the other.\n"
        )


def test_an_interruption_reaches_a_run_that_goes_on_alone() -> None:
    """The last one of a group, say: it waits for nobody, but gives its turn back after each round all the same."""
    group, done = Abreast[None](), list[int]()

    def work() -> None:
        runtime = group.prepare(simulation(), ALONE)
        for progress in rounds(runtime, begin(runtime), 40):
            done.append(progress.state.round)
            if len(done) == 3:
                os.kill(os.getpid(), signal.SIGINT)

    with interruptible(), pytest.raises(KeyboardInterrupt):
        group.run([work])
    assert 3 <= len(done) < 10


def test_a_run_counts_those_that_joined_it_and_tables_show_its_share_of_their_time(tmp_path: Path) -> None:
    here = [replace(one, out=str(tmp_path)) for one in GRIDS["seeds"]]
    run_missing(here, unseen, together=3)
    result = read_result(run_folder(here[0]))
    assert result.provenance["abreast"] == 3
    assert result.own_seconds == result.seconds / 3
