"""Runs on disk: an experiment in, a folder with its rounds, checkpoints, model and result out."""

import hashlib
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple, NotRequired, TypedDict, cast

from safetensors.torch import save

from fedatoms.core.files import replace_file, write_file
from fedatoms.core.trees import restrict
from fedatoms.engine.evaluate import Progress, Score, personal_score, rounds
from fedatoms.engine.loop import Watch
from fedatoms.engine.round import begin, last_pass
from fedatoms.engine.spec import Record, Simulation, State
from fedatoms.experiment import fields as experiments
from fedatoms.experiment.build import configure, simulation
from fedatoms.experiment.fields import HOW_LONG, HOW_NOT_WHAT, LOCAL, Experiment, run_name, trajectory
from fedatoms.runs.checkpoints import Loaded, load_checkpoint, save_checkpoint
from fedatoms.runs.lock import WAY_OUT, locked
from fedatoms.runs.provenance import provenance
from fedatoms.runs.tensorboard import check_tensorboard, tensorboard

_ON_FLOWER = Record._field_defaults
WINDOW = 100  # the headline is the mean of the evaluations in the last so many rounds


class Row(TypedDict):
    """A line of rounds.jsonl: a record of the round, and the scores if there was an evaluation."""

    round: int
    loss: float | None  # None: no client reported
    clients: int
    failed: int
    up: dict[str, int]
    down: dict[str, int]
    seconds: float
    scores: dict[str, dict[str, float]]
    refused: NotRequired[dict[str, str]]  # these two only on Flower, and only if there are any: see ``Record``
    beside: NotRequired[dict[str, int]]


class Summary(NamedTuple):
    """Accuracies of a scored model in per cent: mean over the last 100 rounds, the final one, the best one."""

    headline: float
    final: float
    best: float


@dataclass(frozen=True)
class Result:
    """What a run gave."""

    experiment: Experiment
    accuracy: dict[str, Summary]
    bytes_up: dict[str, int]
    bytes_down: dict[str, int]
    seconds: float
    seconds_per_round: float
    parameters: int
    provenance: dict[str, object]
    folder: Path
    personal: dict[str, float] | None = None  # accuracies of clients' own models, see ``_personal``
    bytes_beside: dict[str, int] | None = None  # on Flower, see ``Record``
    model_sha256: str | None = None  # of model.safetensors; older results have none


Say = Callable[[str], None]
Unless = Callable[[], Result | None]


class Ending(NamedTuple):
    """How a run of a personalised method ends: accuracies of clients' own models, and bytes that crossed for them."""

    accuracy: dict[str, float]
    beside: Mapping[str, int] = {}


class Engine(NamedTuple):
    """Who trains: by default this process, all clients. ``personal`` ends a run of a personalised method."""

    simulation: Callable[[Experiment, Path], Simulation] = simulation
    rounds: Callable[[Simulation, State, int, int], Iterator[Progress]] = rounds
    personal: Callable[[Experiment, Simulation, State, Path], Ending] | None = None
    go_on: str = "Continue it with `fedatoms run --resume {folder}`, or use another --name."  # of a run that is there
    way_out: str = WAY_OUT  # of a folder that another process writes


def run(
    experiment: Experiment,
    *,
    watch: Watch | None = None,
    engine: Engine | None = None,
    unless: Unless = lambda: None,
) -> Result:
    """Runs an experiment into a new folder ``out/name``, alone; ``watch`` sees every round.

    ``unless`` is asked once nobody else writes the folder: a result that it knows is returned, and nothing is run.
    """
    folder, engine = Path(experiment.out) / run_name(experiment), engine or Engine()
    check_tensorboard(experiment)
    sim = engine.simulation(experiment, folder / "checkpoint" / "clients")  # bad input fails here: nothing is written
    with locked(folder, engine.way_out):
        if (found := unless()) is not None:
            return found
        if (folder / "experiment.json").exists():
            raise ValueError(f"{folder} already holds a run. {engine.go_on.format(folder=folder)}")
        configure(experiment)
        replace_file(folder / "experiment.json", _json(experiments.to_json(experiment)))
        return _finish(experiment, sim, Loaded(begin(sim), 0.0, []), folder, watch, engine)


def resume(
    folder: Path,
    changes: Mapping[str, object],
    *,
    watch: Watch | None = None,
    say: Say = lambda line: None,
    engine: Engine | None = None,
    unless: Unless = lambda: None,
) -> Result:
    """Continues a run from its last checkpoint, for more rounds or on another device if ``changes`` says so."""
    if engine is None and (folder / "nodes").is_dir():
        raise ValueError(
            f"{folder} is a run on nodes, which hold its clients' states. Go on with `flwr run` and resume=true in its "
            f"run config."
        )
    engine = engine or Engine()
    old = experiments.load_run(folder)
    new = replace(old, **{**changes, "name": folder.name, "out": str(folder.parent)})  # type: ignore[arg-type]
    experiments.check(new)
    fixed = [f"--{name.replace('_', '-')}" for name in changes if name not in HOW_NOT_WHAT | set(HOW_LONG)]
    if trajectory(new) != trajectory(old):
        raise ValueError(f"{', '.join(fixed)} cannot change in a resumed run. Leave it out, or start a new run.")
    sim = engine.simulation(new, folder / "checkpoint" / "clients")
    with locked(folder, engine.way_out):
        if (found := unless()) is not None:
            return found
        configure(new)
        return _finish(new, sim, _last_checkpoint(new, sim, folder, say), folder, watch, engine)


def read_rounds(folder: Path) -> list[Row]:
    """Reads what happened in each round of a run; a last line that was cut off is left out."""
    path = folder / "rounds.jsonl"
    return list(_whole_lines(path)) if path.exists() else []


def read_result(folder: Path | str) -> Result:
    """Reads a finished run."""
    folder = Path(folder)
    fields = json.loads((folder / "result.json").read_text())
    accuracy = {name: Summary(**summary) for name, summary in fields.pop("accuracy").items()}
    return Result(experiments.from_json(fields.pop("experiment")), accuracy, folder=folder, **fields)


def described(experiment: Experiment) -> dict[str, object]:
    """Writes an experiment as plain values, without where things lie on this machine.

    >>> "data_dir" in described(Experiment())
    False
    """
    return {name: value for name, value in experiments.to_json(experiment).items() if name not in LOCAL}


def summarise(rows: list[Row]) -> dict[str, Summary]:
    """Returns the accuracies of each scored model.

    >>> rows = [{"round": r, "scores": {"server": {"accuracy": a}}} for r, a in enumerate([10.0, 30.0, 20.0])]
    >>> summarise(rows)
    {'server': Summary(headline=20.0, final=20.0, best=30.0)}
    """
    curves = accuracy_curves(rows)
    first = len(rows) - WINDOW
    summaries = {}
    for name, curve in curves.items():
        recent = [accuracy for t, accuracy in curve if t >= first]
        summaries[name] = Summary(sum(recent) / len(recent), curve[-1][1], max(accuracy for _, accuracy in curve))
    return summaries


def accuracy_curves(rows: list[Row]) -> dict[str, list[tuple[int, float]]]:
    """Returns (round, accuracy) of each scored model.

    >>> accuracy_curves([{"round": 4, "scores": {"all": {"accuracy": 50.0}}}])
    {'all': [(4, 50.0)]}
    """
    curves: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for name, score in row["scores"].items():
            curves.setdefault(name, []).append((row["round"], score["accuracy"]))
    return curves


def _last_checkpoint(new: Experiment, sim: Simulation, folder: Path, say: Say) -> Loaded:
    """Loads what a run goes on from, and forgets the rounds after it."""
    loaded = load_checkpoint(folder / "checkpoint", sim, trajectory=trajectory(new))
    done = loaded.state.round
    for note in loaded.notes:
        say(note)
    if done == 0 and (folder / "result.json").exists():
        raise ValueError(f"{folder} has a result but no checkpoint to go on from. Start again with a new --name.")
    if done == 0 and read_rounds(folder):
        say(f"{folder} has no checkpoint yet: beginning again at round 0")
    if done > new.rounds:
        raise ValueError(f"--rounds {new.rounds}: {folder} has run {done} rounds already. Use {done} or more.")
    if [row["round"] for row in read_rounds(folder)][:done] != list(range(done)):
        raise ValueError(
            f"{folder / 'rounds.jsonl'} lacks some of the {done} rounds of the checkpoint. Restore that file."
        )
    if done == new.rounds and (folder / "result.json").exists():
        say(f"{folder} is complete after {done} rounds. Ask for more with --rounds.")
    replace_file(folder / "experiment.json", _json(experiments.to_json(new)))
    _forget_rounds(folder / "rounds.jsonl", done)
    return loaded


def _finish(
    experiment: Experiment, sim: Simulation, loaded: Loaded, folder: Path, watch: Watch | None, engine: Engine
) -> Result:
    """Runs the rounds that are left, then writes the model and the result."""
    state, before, began, source = loaded.state, loaded.seconds, time.perf_counter(), provenance(sim.device)
    watchers = [each for each in (watch, tensorboard(experiment, folder, state.round)) if each is not None]

    def save_state() -> None:
        spent = before + time.perf_counter() - began
        save_checkpoint(folder / "checkpoint", state, trajectory=trajectory(experiment), seconds=spent)

    try:
        with (folder / "rounds.jsonl").open("a") as lines:
            for progress in engine.rounds(sim, state, experiment.rounds, experiment.eval_every):
                lines.write(json.dumps(_row(progress)) + "\n")
                lines.flush()
                state = progress.state  # after its line: a checkpoint never knows more rounds than the file
                if state.round % experiment.checkpoint_every == 0 and state.round < experiment.rounds:
                    os.fsync(lines.fileno())  # also when the power fails
                    save_state()
                for each in watchers:
                    each(progress)
    except KeyboardInterrupt:
        save_state()
        raise
    save_state()
    own = (engine.personal or _personal)(experiment, sim, state, folder) if experiment.personal != "none" else None
    result = _result(experiment, sim, folder, before + time.perf_counter() - began, source)
    if own is not None:
        beside = _sum([result.bytes_beside or {}, own.beside])
        result = replace(result, personal=own.accuracy, bytes_beside=beside or None)
    return _write(replace(result, model_sha256=write_model(folder, sim, state)))


def write_model(folder: Path, sim: Simulation, state: State) -> str:
    """Writes the server's model of a run, and returns its checksum."""
    images = json.dumps({"classes": sim.data.classes, "shape": list(sim.data.x.shape[1:])})
    tensors = {name: leaf.cpu().contiguous() for name, leaf in state.server.params.items()}  # tied ones once
    data = save(tensors, metadata={"images": images})  # one key: their order is random
    replace_file(folder / "model.safetensors", data)
    return hashlib.sha256(data).hexdigest()


def _result(experiment: Experiment, sim: Simulation, folder: Path, seconds: float, source: dict[str, object]) -> Result:
    rows = read_rounds(folder)
    return Result(
        experiment=experiment,
        accuracy=summarise(rows),
        bytes_up=_sum(row["up"] for row in rows),
        bytes_down=_sum(row["down"] for row in rows),
        bytes_beside=_sum(row.get("beside", {}) for row in rows) or None,
        seconds=seconds,
        seconds_per_round=statistics.median(row["seconds"] for row in rows),
        parameters=sum(leaf.numel() for leaf in sim.network.parameters.values()),
        provenance=source,
        folder=folder,
    )


def own_models_until(folder: Path, rounds: int) -> dict[str, float]:
    """Says how good clients' own models were in the last rounds of so many, before a last pass."""
    curve = accuracy_curves(read_rounds(folder)).get("personal", [])
    recent = [accuracy for t, accuracy in curve if t >= rounds - 10]
    return {"last round": recent[-1], "mean of the last ten": sum(recent) / len(recent)} if recent else {}


def own_models_after(score: Score) -> dict[str, float]:
    """Says how good clients' own models are in the end."""
    assert score.worst is not None and score.spread is not None
    return {"after the last pass": score.accuracy, "worst tenth": score.worst, "spread": score.spread}


def _personal(experiment: Experiment, sim: Simulation, state: State, folder: Path) -> Ending:
    """Gives every client a last local pass, writes what is its own, and says how good their models are."""
    if experiment.last_epochs:  # else there is no pass, and what follows is the last round's
        sim, state = last_pass(sim, state, experiment.last_epochs)
    score = personal_score(sim, state)
    for client in range(len(sim.data.parts)):
        row = state.clients.read(client)
        own = state.server.params if row is None else row.own  # who never took part has the server's, as in its score
        write_file(folder / "personal" / f"{client:06d}.safetensors", restrict(own, sim.own))
    return Ending({**own_models_until(folder, experiment.rounds), **own_models_after(score)})


def _write(result: Result) -> Result:
    fields = {**asdict(result), "accuracy": {name: summary._asdict() for name, summary in result.accuracy.items()}}
    fields["experiment"] = described(result.experiment)
    replace_file(fields.pop("folder") / "result.json", _json(fields))
    return result


def _row(progress: Progress) -> Row:
    scores = {
        str(name): {field: value for field, value in score._asdict().items() if value is not None}
        for name, score in progress.scores.items()
    }
    record = {name: value for name, value in progress.record._asdict().items() if value or name not in _ON_FLOWER}
    return cast(Row, {**record, "loss": record["loss"] if progress.record.clients else None, "scores": scores})


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for count in counts:
        for name, size in count.items():
            total[name] = total.get(name, 0) + size
    return total


def _whole_lines(path: Path) -> Iterator[Row]:
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return


def _forget_rounds(path: Path, first: int) -> None:
    rows = [row for row in _whole_lines(path) if row["round"] < first] if path.exists() else []
    replace_file(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def _json(fields: Mapping[str, object]) -> bytes:
    return (json.dumps(fields, indent=2) + "\n").encode()
