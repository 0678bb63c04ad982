"""Runs on disk: an experiment in, a folder with its rounds, checkpoints, model and result out."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

from fedatoms.core.files import remove_partials
from fedatoms.core.lookup import as_word, counted
from fedatoms.core.outside import naming
from fedatoms.core.run_files import CHECKPOINT, CLIENTS, EXPERIMENT, RESULT, rounds_file
from fedatoms.engine.attacks import malicious
from fedatoms.engine.loop import Progress, Watch, begin, rounds
from fedatoms.engine.peers import ALONE, Peers
from fedatoms.engine.runtime import Runtime, prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.state import State
from fedatoms.experiment.build import configure, simulation, yours
from fedatoms.experiment.checks import check
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import load_run, sealed_fields, to_json
from fedatoms.experiment.identities import resumable, run_folder, trajectory, why_so_long
from fedatoms.experiment.weights import pinned
from fedatoms.runs.checkpoints import Checkpoints, Loaded, load_checkpoint
from fedatoms.runs.last_round import go_back
from fedatoms.runs.loading import write_model
from fedatoms.runs.lock import WAY_OUT, locked
from fedatoms.runs.personal_models import finish_personal
from fedatoms.runs.provenance import provenance_of
from fedatoms.runs.remote import RESUME, is_remote
from fedatoms.runs.results import Result, result_of, write_json, write_result
from fedatoms.runs.rounds import (
    Row,
    Writer,
    is_sealed,
    keep_rounds,
    read_lines,
    read_rounds,
    read_segments,
    rounds_of_result,
    row_of,
)
from fedatoms.runs.spent import lost, privacy_of_run, spending
from fedatoms.runs.states import has_begun, noting_failure
from fedatoms.runs.together import is_due, lead
from fedatoms.runs.watchers import check_watchers, watching

Say = Callable[[str], None]
Known = Callable[[], Result | None]


class Engine(NamedTuple):
    """How a run is carried out: by default, this process trains all clients."""

    simulation: Callable[[Experiment, Path], Simulation] = simulation
    rounds: Callable[[Runtime, State, int, int], Iterator[Progress]] = rounds
    personal: Callable[[Experiment, Runtime, State, Path], dict[str, float]] = finish_personal
    extra: Callable[[list[Row]], Mapping[str, object]] = lambda rows: {}  # further keys of the result
    # what to do about a folder that holds a run already, or that another process writes
    if_exists: str = "Continue it with `fedatoms run --resume {folder}`, or use another `name`."
    if_locked: str = WAY_OUT
    peers: Peers = ALONE  # processes that train the run together; this one is number 0, the others ``assist`` it
    prepare: Callable[[Simulation, Peers, int], Runtime] = lambda sim, peers, rounds: prepare(sim, peers=peers)
    abreast: Callable[[], int] = lambda: 1  # how many runs this process trains at the same time
    ready: Callable[[], None] = lambda: None  # waits for what a private round needs, before it is counted


def run(
    experiment: Experiment,
    *,
    watch: Watch | None = None,
    say: Say = lambda line: None,
    engine: Engine | None = None,
    known: Known = lambda: None,
) -> Result:
    """Runs an experiment in a new folder ``out/name``, of which it is the only writer; ``watch`` sees every round.

    ``known`` is asked once nobody else writes the folder: a result that it returns is the run's, and nothing is run.
    """
    _check_experiment(experiment)
    experiment = pinned(experiment)
    folder, engine = run_folder(experiment), engine or Engine()
    sim = engine.simulation(experiment, folder / CLIENTS)  # bad input fails here: nothing is written
    check_watchers(experiment)
    with locked(folder, engine.if_locked):
        if (found := known()) is not None:
            return found
        remove_partials(folder)
        if has_begun(folder):
            raise ValueError(f"{folder} already holds {_way_out(folder, experiment, engine)}")
        configure(experiment)
        with naming(yours(experiment)):  # an experiment that cannot be run fails here: it leaves no folder
            runtime = engine.prepare(sim, engine.peers, experiment.rounds)
            fresh = Loaded(begin(runtime), 0.0, [])
        write_json(folder / EXPERIMENT, sealed_fields(experiment))
        _tell_attack(sim, say)
        lead(engine.peers, folder, 0)
        return _finish(_Run(experiment, runtime, folder, engine, watch), fresh, keep_rounds(folder, []))


def resume(
    folder: Path,
    changes: Mapping[str, object],
    *,
    watch: Watch | None = None,
    say: Say = lambda line: None,
    engine: Engine | None = None,
    known: Known = lambda: None,
) -> Result:
    """Continues a run from its last checkpoint; ``changes`` may ask for more rounds or another device."""
    engine = engine or Engine()
    if engine.rounds is rounds and is_remote(folder):
        raise ValueError(f"{folder} is a run on nodes, which hold its clients' states. Continue it with {RESUME}.")
    new = _changed(folder, changes)
    sim = engine.simulation(new, folder / CLIENTS)
    check_watchers(new)
    with locked(folder, engine.if_locked):
        if (found := known()) is not None:
            return found
        remove_partials(folder)
        configure(new)
        runtime = engine.prepare(sim, engine.peers, new.rounds)
        _tell_attack(sim, say)
        loaded, seal = _last_checkpoint(new, runtime, folder, say)
        lead(engine.peers, folder, loaded.state.round)
        return _finish(_Run(new, runtime, folder, engine, watch), loaded, seal)


def _way_out(folder: Path, experiment: Experiment, engine: Engine) -> str:
    """Says what run a folder holds, and what to do instead of starting one there."""
    if not (folder / EXPERIMENT).exists():
        return f"a run. Its {EXPERIMENT} is missing: restore that file, or use another `name`."
    old = load_run(folder)
    mine, theirs, free = to_json(experiment), to_json(old), resumable(old) - {"aggregation", "eval_every"}
    other = [f"`{name}`" for name in mine if name not in free and mine[name] != theirs[name]]
    if other:
        return f"a run with another {', '.join(other)}. Use another `name`."
    more = f" --rounds {experiment.rounds}" if experiment.rounds > old.rounds else ""
    return f"a run. {engine.if_exists.format(folder=f'{as_word(folder)}{more}')}"


def _which(every: int) -> str:
    return "round" if every == 1 else f"{every} rounds"


def _tell_attack(sim: Simulation, say: Say) -> None:
    if sim.attack is not None:
        liars, clients = len(malicious(sim.attack, len(sim.data.parts), sim.seed)), len(sim.data.parts)
        say(f"{liars} of {counted(clients, 'client')} {'attacks' if liars == 1 else 'attack'}: {sim.attack.name}")


def _check_experiment(experiment: object) -> None:
    if not isinstance(experiment, Experiment):
        use = f"fedatoms.preset({experiment!r})" if isinstance(experiment, str) else "fedatoms.Experiment(rounds=40)"
        raise ValueError(f"experiment={shorten(repr(experiment), 60)} is not an experiment. Use {use}.")


def _changed(folder: Path, changes: Mapping[str, object]) -> Experiment:
    """Returns the experiment of a resumed run; what shapes its parameters may not change."""
    old = load_run(folder)
    new = replace(old, **{**changes, "name": folder.name, "out": str(folder.parent)})  # type: ignore[arg-type]
    check(new)
    if trajectory(new) != trajectory(old):
        fixed = [f"`{name}`" for name in changes if name not in resumable(old) - {"weights"}]
        why = f" {why_so_long(old)}" if fixed == ["`rounds`"] else ""
        raise ValueError(f"{', '.join(fixed)} cannot change in a resumed run{why}. Leave it out, or start a new run.")
    _check_same_result(folder, old, new)
    return new


def _check_same_result(folder: Path, old: Experiment, new: Experiment) -> None:
    """Refuses what a result would say of all of a run's rounds, and what only those after its resumption have."""
    if new.aggregation != old.aggregation:
        raise ValueError(f"aggregation={new.aggregation}: a run of two rules is of neither. Start a run of its own.")
    if new.eval_every != old.eval_every:
        raise ValueError(
            f"eval_every={new.eval_every}: {folder} is scored after every {_which(old.eval_every)}, and that cannot "
            f"change in a resumed run: its mean would be over other rounds. Leave it out, or start a new run."
        )


def _last_checkpoint(new: Experiment, runtime: Runtime, folder: Path, say: Say) -> tuple[Loaded, int]:
    """Loads what a run continues from, and drops the rounds after it; returns the seal of the last one, too."""
    loaded = load_checkpoint(folder / CHECKPOINT, runtime, trajectory=trajectory(new))
    for note in loaded.notes:
        say(note)
    _check_rounds(new, folder, loaded.state.round, (folder / RESULT).exists())
    rows = _rows_until(folder, loaded.state.round, say)
    not_due = len(rows) % new.eval_every > 0  # as it was one of more
    if 0 < len(rows) == new.rounds and not_due and not rows[-1]["scores"]:
        loaded = go_back(new, runtime, folder, len(rows))
        say(f"round {len(rows)} has no score: running again from round {loaded.state.round}")
    return loaded, _cut_to(rows[: loaded.state.round], new, runtime, folder, say)


def _cut_to(rows: list[Row], new: Experiment, runtime: Runtime, folder: Path, say: Say) -> int:
    """Makes a folder that of a run of these rounds, which goes on as a new experiment; returns the last one's seal."""
    done = len(rows)
    if said := lost(folder, runtime.sim, done):
        say(said)
    if done == new.rounds and (folder / RESULT).exists():
        say(f"{folder} is complete after {counted(done, 'round')}. Ask for more with rounds=N.")
    if done < rounds_of_result(folder):  # an older checkpoint had to do: the result comes anew
        (folder / RESULT).unlink()
    seal = keep_rounds(folder, rows)  # first: lines of an older version must not lie beside a sealed experiment
    write_json(folder / EXPERIMENT, sealed_fields(new))
    return seal


def _check_rounds(new: Experiment, folder: Path, done: int, has_result: bool) -> None:
    if done == 0 and has_result:
        raise ValueError(f"{folder} has a result but no checkpoint to continue from. Start again with a new `name`.")
    if done > new.rounds:
        raise ValueError(f"rounds={new.rounds}: {folder} has run {counted(done, 'round')} already. Use {done} or more.")


def _rows_until(folder: Path, done: int, say: Say) -> list[Row]:
    """Returns the rounds before a checkpoint: those of the run's file, or else those that lie beside the checkpoint."""
    found, path = read_lines(folder), rounds_file(folder)
    if done == 0 and found.rows:
        say(f"{folder} has no checkpoint yet: beginning again at round 0")
    if len(found.rows) >= done:
        return found.rows[:done]
    why = found.damage or f"{path} has {len(found.rows)} of the {done} rounds of the checkpoint"
    kept = read_segments(folder, done)
    if len(kept.rows) < done:
        lost = "the second copy beside the checkpoints is missing"
        reason = kept.damage or (lost if is_sealed(folder) else "runs of older versions have no second copy")
        raise ValueError(f"{why}, and the rounds cannot be rebuilt: {reason}. Restore that file.")
    say(f"{why}: its {done} rounds are rebuilt from those beside the checkpoint")
    return kept.rows


class _Run(NamedTuple):
    experiment: Experiment
    runtime: Runtime
    folder: Path
    engine: Engine
    watch: Watch | None


def _finish(run: _Run, loaded: Loaded, seal: int) -> Result:
    """Runs the rounds that are left, then writes the model and the result."""
    experiment, runtime, folder, engine, _ = run
    began = time.perf_counter() - loaded.seconds
    with noting_failure(folder), naming(yours(experiment)):
        state = _train(run, loaded, began, seal)
        personal = engine.personal(experiment, runtime, state, folder) if experiment.personal != "none" else None
        result = result_of(
            experiment,
            folder,
            seconds=None if runtime.sim.privacy else time.perf_counter() - began,
            parameters=sum(leaf.numel() for leaf in runtime.network.parameters.values()),
            provenance=provenance_of(runtime.sim.device, engine.peers.size, engine.abreast()),
        )
        extra = {**engine.extra(read_rounds(folder)), **privacy_of_run(folder, runtime.sim, state.round)}
        checksum = write_model(folder, runtime.sim, state)
        return write_result(replace(result, personal=personal, extra=extra, model_sha256=checksum))


def _train(run: _Run, loaded: Loaded, began: float, seal: int) -> State:
    """Runs the rounds that are left, with a line for each; saves checkpoints, also at the end and on Ctrl-C."""
    (experiment, runtime, folder, engine, watch), state = run, loaded.state
    checkpoints = Checkpoints(folder / CHECKPOINT, trajectory(experiment), loaded, engine.peers)

    def save_state() -> None:
        lines.save(state.round)
        checkpoints.save(state, time.perf_counter() - began)
        settle()

    with Writer(folder, state.round, seal) as lines, watching(experiment, folder, state.round) as (show, settle):
        try:
            done, until = state.round, experiment.rounds
            coming = engine.rounds(runtime, state, until, experiment.eval_every)
            for progress in spending(folder, runtime.sim, coming, done, until, engine.ready):
                if state is loaded.state and done % experiment.eval_every:
                    lines.unscore()
                lines.append(row_of(progress))
                state = progress.state  # after its line: a checkpoint never knows more rounds than the file
                checkpoints.note(state.clients)
                show(progress)
                if is_due(experiment, state.round):
                    save_state()
                if watch is not None:
                    watch(progress)
            save_state()
        except KeyboardInterrupt:  # of a save, too
            save_state()
            raise
    return state
