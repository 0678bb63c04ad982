"""Explains a run: replays and measures its rounds, and adds a plain run and a fork if asked."""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from fedatoms.core.lookup import counted
from fedatoms.core.options import check_numbers
from fedatoms.core.outputs import check_output
from fedatoms.evidence.explain.aggregates import compare_aggregates
from fedatoms.evidence.explain.factors import Layer, layers_of
from fedatoms.evidence.explain.files import FILE
from fedatoms.evidence.explain.forks import check_fork, fork
from fedatoms.evidence.explain.latent import score_latent
from fedatoms.evidence.explain.replayed_round import Opened, Replay, Tick, open_run, replay
from fedatoms.evidence.explain.scores import judge_of
from fedatoms.evidence.explain.settings import Explain
from fedatoms.evidence.explain.twin import check_twin, plain_accuracies
from fedatoms.evidence.explain.values import Explanation, Round
from fedatoms.evidence.explain.variance import variance_of
from fedatoms.experiment.files import load_run
from fedatoms.runs.provenance import provenance_of

Tell = Callable[[str, int, int], None]  # progress callback: the part, how much of it is done, of how much


def explain(
    run: Path | str,
    settings: Explain | None = None,
    *,
    tell: Tell = lambda *what: None,
    say: Callable[[str], None] = lambda line: None,
) -> Explanation:
    """Replays rounds of a run with a decomposed network, and measures what latent clients change in them.

    ``tell`` is a progress callback, ``say`` receives problems of a checkpoint.
    """
    run, settings = Path(run), settings or Explain()
    check(run, settings)
    with tempfile.TemporaryDirectory(prefix="fedatoms-") as scratch:
        opened, plain = _open_both(run, settings, Path(scratch))
        for note in (*opened.notes, *(plain.notes if plain else ())):
            say(note)
        layers, runtime, start, rounds = (
            layers_of(opened.runtime.sim.model),
            opened.runtime,
            opened.state,
            settings.fork,
        )
        return Explanation(
            run=run.name,
            experiment=opened.experiment,
            settings=settings,
            round=start.round,
            images=len(runtime.data.test_y),
            rounds=_measured(opened, layers, settings, tell),
            plain=plain_accuracies(plain, settings.rounds, partial(tell, "the plain run")) if plain else None,
            fork=fork(runtime, start, layers, rounds, partial(tell, "with and without latent clients"))
            if rounds
            else None,
            provenance=provenance_of(runtime.sim.device),
        )


def check(run: Path, settings: Explain) -> None:
    """Refuses runs and settings that cannot be explained, before anything is computed."""
    experiment = load_run(run)
    if (kind := experiment.parametrisation) != "atoms":
        what = "a plain network" if kind == "plain" else f"a network of {kind}"
        raise ValueError(f"{run} has {what}, which has no atoms. Explain a run with --parametrisation atoms.")
    check_numbers(settings, "explain")
    out = out_of(run, settings)
    if out.suffix != ".json" or not out.parent.is_dir():
        raise ValueError(
            f"--out {out} is not a .json file in a folder that exists. Use for example --out explain.json."
        )
    check_output(out, place=run / FILE)


def out_of(run: Path, settings: Explain) -> Path:
    """Returns the file of the explanation.

    >>> out_of(Path("runs/mine"), Explain()).as_posix()
    'runs/mine/explain.json'
    """
    return Path(settings.out) if settings.out else run / FILE


def _open_both(run: Path, settings: Explain, scratch: Path) -> tuple[Opened, Opened | None]:
    """Loads the run and its plain twin, if any, and refuses a mismatch before anything is trained."""
    opened, plain = _open(run, settings, scratch / "run"), None
    if settings.fork:
        check_fork(opened.runtime.sim, opened.experiment.algorithm)
    if settings.plain:
        plain = _open(Path(settings.plain), settings, scratch / "plain")
        check_twin(Path(settings.plain), plain, opened)
    return opened, plain


def _open(run: Path, settings: Explain, scratch: Path) -> Opened:
    asked = {name: getattr(settings, name) for name in ("data_dir", "device", "threads")}
    opened = open_run(run, {name: value for name, value in asked.items() if value is not None}, scratch)
    if not (scale := opened.runtime.sim.objective.scale).is_accuracy:
        raise ValueError(
            f"{run} is scored by {scale.axis}, but explanations count images that are right. Explain a run with "
            f"--objective classification."
        )
    if opened.runtime.layout.private:
        raise ValueError(
            f"{run}: with --personal {opened.experiment.personal} a part of the model never leaves a client, so the "
            f"server has no whole model to score. Explain a run with --personal none, or with a method that sends all."
        )
    return opened


def _measured(opened: Opened, layers: Sequence[Layer], settings: Explain, tell: Tell) -> list[Round]:
    state, found = opened.state, []
    for _ in range(settings.rounds):
        name = f"round {state.round + 1}"
        tell(f"{name}: training", 0, 0)
        done = replay(opened.runtime, state)
        state = done.after
        if done.clients:  # else all of them failed, and nothing moved
            found.append(_measure(opened, done, layers, settings, partial(tell, f"{name}: scoring latent clients")))
    if not found:
        raise ValueError(f"no client reported in {counted(settings.rounds, 'round')}. Replay more with --rounds.")
    return found


def _measure(opened: Opened, done: Replay, layers: Sequence[Layer], settings: Explain, tick: Tick) -> Round:
    judge, latent = judge_of(opened.runtime, done.clients), None
    if min(settings.crossed, len(done.clients)) > 1:
        latent = score_latent(done, layers, judge, most=settings.crossed, seed=settings.seed, tick=tick)
    return Round(
        round=done.before.round,
        clients=done.clients,
        aggregates=compare_aggregates(done, layers, judge),
        latent=latent,
        variance=variance_of(done, layers, seed=settings.seed),
    )
