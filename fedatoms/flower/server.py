"""A run on Flower is a run in a folder, as in the simulator: the same loop, checkpoints and results, by other hands."""

import logging
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedatoms.experiment import HOW_LONG, HOW_NOT_WHAT, Experiment, load_run, run_name, to_json, trajectory
from fedatoms.flower.books import Books, load_books, save_books
from fedatoms.flower.roll import ask
from fedatoms.flower.strategy import AGGREGATIONS, FedAtoms, TooFew
from fedatoms.flower.task import Settings, Task, configured, server_simulation
from fedatoms.names import find
from fedatoms.runs import Engine, Result, resume, run, write_model
from fedatoms.scoring import Progress, Score, evaluate
from fedatoms.simulation import Scored, Simulation, State

log = logging.getLogger("flwr")
SAME = HOW_NOT_WHAT | set(HOW_LONG)  # what a resumed run may change


def server_app(task: Task) -> ServerApp:
    """Makes the app that runs on the server: a run in a folder, as the simulator's, with nodes for clients."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        experiment, settings = configured(task, context.run_config)
        federate(task, grid, experiment, settings)

    return app


def federate(task: Task, grid: Grid, experiment: Experiment, settings: Settings) -> Result:
    """Runs an experiment on the nodes of a grid, or resumes it; every round ends with a checkpoint."""
    find(settings.aggregation, AGGREGATIONS, "aggregation")
    if settings.min_train_nodes > (most := max(round(experiment.fraction * experiment.clients), 1)):
        raise ValueError(
            f"min-train-nodes={settings.min_train_nodes}, but a round has {most} clients. Use {most} or less."
        )
    experiment = replace(experiment, checkpoint_every=1, name=run_name(experiment))
    folder = Path(experiment.out) / experiment.name
    engine = _engine(task, grid, experiment, settings)
    if not settings.resume:
        if (folder / "experiment.json").exists():
            raise ValueError(
                f"{folder} already holds a run. Go on with it by --run-config 'resume=true', or use another name."
            )
        return run(experiment, engine=engine)
    if trajectory(load_run(folder)) != trajectory(experiment):
        old = to_json(load_run(folder))
        others = [name for name, value in to_json(experiment).items() if name not in SAME and value != old[name]]
        raise ValueError(f"{folder} holds a run with other settings ({', '.join(others)}). Use those, or another name.")
    changes = {"rounds": experiment.rounds, "eval_every": experiment.eval_every}
    return resume(folder, changes, engine=engine, say=lambda line: log.info("%s", line))


def _engine(task: Task, grid: Grid, experiment: Experiment, settings: Settings) -> Engine:
    folder, strategies = Path(experiment.out) / experiment.name, list[FedAtoms]()

    def rounds(sim: Simulation, state: State, until: int, eval_every: int) -> Iterator[Progress]:
        strategy = FedAtoms(sim, _open_books(folder, state, experiment), settings)
        strategies.append(strategy)
        strategy.summary()
        try:
            for progress in _rounds(strategy, grid, until, eval_every, own=experiment.personal != "none"):
                save_books(folder / "nodes", strategy.books)
                yield progress
        except TooFew:
            write_model(folder, sim, strategy.books.state)
            raise

    def personal(experiment: Experiment, sim: Simulation, state: State, _: Path) -> dict[str, float]:
        score = _scores(strategies[0], grid, experiment.last_epochs)
        if score is None:
            return {}
        rest = {"worst tenth": score.worst, "spread": score.spread}
        return {
            "after the last pass": score.accuracy,
            **{name: value for name, value in rest.items() if value is not None},
        }

    return Engine(lambda experiment, _: server_simulation(task, experiment), rounds, personal)


def _rounds(strategy: FedAtoms, grid: Grid, until: int, eval_every: int, *, own: bool) -> Iterator[Progress]:
    nothing, sim = (ArrayRecord(), ConfigRecord()), strategy.sim
    while (number := strategy.books.state.round) < until:
        messages = strategy.configure_train(number + 1, *nothing, grid)
        _, metrics = strategy.aggregate_train(number + 1, ask(grid, [*messages], strategy.settings.timeout))
        state, record = strategy.books.state, strategy.record
        assert record is not None and metrics is not None, "a round leaves its record"
        scores: dict[Scored, Score] = {}
        if state.round % eval_every == 0 or state.round == until:
            scores = evaluate(sim, state) if len(sim.data.test_y) else {}
            if own and (score := _scores(strategy, grid, 0)) is not None:
                scores["personal"] = score
        log.info("round %d: loss %.4f, %d clients, %s", number, record.loss, record.clients, _said(scores))
        log.info("round %d: bytes of arrays and headers, %s", number, _sizes(metrics))
        yield Progress(state, record, scores)


def _scores(strategy: FedAtoms, grid: Grid, last_epochs: int) -> Score | None:
    config = ConfigRecord({"last-epochs": last_epochs})
    messages = strategy.configure_evaluate(0, ArrayRecord(), config, grid)
    found = strategy.aggregate_evaluate(0, ask(grid, [*messages], strategy.settings.timeout))
    return None if found is None else Score(**{name: float(str(value)) for name, value in found.items()})


def _open_books(folder: Path, state: State, experiment: Experiment) -> Books:
    if state.round:
        return load_books(folder / "nodes", state, trajectory(experiment))
    return Books(state, f"{run_name(experiment)}-{secrets.token_hex(4)}", trajectory(experiment))


def _sizes(metrics: MetricRecord) -> str:
    return ", ".join(f"{metrics[f'bytes-{way}']} + {metrics[f'headers-{way}']} {way}" for way in ("up", "down"))


def _said(scores: dict[Scored, Score]) -> str:
    return ", ".join(f"{name} {score.accuracy:.2f} %" for name, score in scores.items()) or "not scored"
