"""Runs an experiment on Flower with the simulator's loop, checkpoints and files."""

import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedatoms.core import ledger
from fedatoms.core.lookup import find
from fedatoms.core.options import Scored
from fedatoms.core.run_files import MODEL
from fedatoms.engine.evaluation import Score, evaluate
from fedatoms.engine.loop import Progress, diverged
from fedatoms.engine.runtime import Runtime
from fedatoms.engine.server import sample_size
from fedatoms.engine.spec import Simulation
from fedatoms.engine.state import Record, State
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import load_run, to_json
from fedatoms.experiment.identities import resumable, run_name, trajectory
from fedatoms.experiment.parse import is_private
from fedatoms.flower.checks import FEWEST
from fedatoms.flower.judging import POLICIES
from fedatoms.flower.last_words import outlived
from fedatoms.flower.membership import NODE_KEYS, ask, describe_ownership
from fedatoms.flower.patience import OF_SERVER, eagerly
from fedatoms.flower.private_files import private, shut
from fedatoms.flower.private_rounds import about_nodes, check_private, log_cost, written
from fedatoms.flower.roster import load_roster
from fedatoms.flower.server_state import ServerState, load_holders, load_state, save_holders, save_state
from fedatoms.flower.strategy import FedAtoms, NotFinite, TooFew
from fedatoms.flower.task import Settings, Task, configured, server_simulation
from fedatoms.runs.execute import Engine, resume, run
from fedatoms.runs.loading import write_model
from fedatoms.runs.personal_models import score_after, score_before
from fedatoms.runs.remote import NODES
from fedatoms.runs.results import Result
from fedatoms.runs.rounds import Row, read_lines

log = logging.getLogger("flwr")
CONTINUE = "Continue it with --run-config 'resume=true', or use another name."
WAY_OUT = "Wait for it, or end it (flwr list, flwr stop), or use another name."


def server_app(task: Task) -> ServerApp:
    """Makes the app that runs on the server: a run in a folder, as in the simulator, with nodes as clients."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        experiment, settings = configured(task, context.run_config)
        try:
            with outlived(grid), eagerly(OF_SERVER):
                result = federate(task, grid, experiment, settings)
            log.info("complete after %d rounds: see %s", experiment.rounds, result.folder.resolve())
        except (TooFew, NotFinite) as error:  # it can be resumed: Flower would call it failed, with a traceback
            log.error("stopped in %s", error)

    return app


def federate(task: Task, grid: Grid, experiment: Experiment, settings: Settings) -> Result:
    """Runs an experiment on the nodes of a grid, or resumes it; every round ends with a checkpoint."""
    find(settings.node_keys, NODE_KEYS, "node-keys")
    find(settings.far_unjudged, POLICIES, "far-unjudged")
    load_roster(settings.roster, experiment.clients)
    _freed(settings, experiment)
    _check_numbers(experiment, settings)
    if is_private(experiment):
        check_private(settings)
    experiment = replace(experiment, checkpoint_every=1, name=run_name(experiment))
    folder = Path(experiment.out) / experiment.name
    nodes = _Nodes(task, grid, experiment, settings)
    engine = Engine(nodes.simulation, nodes.rounds, nodes.personal, nodes.extra, CONTINUE, WAY_OUT, ready=nodes.ready)
    watch = log_cost if is_private(experiment) else None
    if settings.resume:
        _check_same(load_run(folder), experiment, folder)
    with private():
        if settings.resume:
            changes = {name: getattr(experiment, name) for name in ("rounds", "eval_every", "aggregation")}
            return resume(folder, changes, watch=watch, engine=engine, say=lambda line: log.info("%s", line))
        return run(experiment, watch=watch, engine=engine)


def _check_numbers(experiment: Experiment, settings: Settings) -> None:
    """Refuses to wait for more nodes than there are, or to judge where a round has too few."""
    most = sample_size(experiment.clients, 1.0 if is_private(experiment) else experiment.fraction)
    if settings.min_train_nodes > most:
        raise ValueError(
            f"min-train-nodes={settings.min_train_nodes}, but a round has {most} clients. Use {most} or less."
        )
    if settings.far and POLICIES[settings.far_unjudged] and most < FEWEST:
        raise ValueError(
            f'far-unjudged="refuse", but a round has {most} clients, and it takes {FEWEST} to judge. Leave it out.'
        )


def _check_same(old: Experiment, new: Experiment, folder: Path) -> None:
    if trajectory(old) != trajectory(new):
        before = to_json(old)
        others = [name for name, value in to_json(new).items() if name not in resumable(old) and value != before[name]]
        raise ValueError(f"{folder} holds a run with other settings ({', '.join(others)}). Use those, or another name.")


class _Nodes:
    """The nodes of a grid in the place of the simulator's clients, as the functions of an ``Engine``."""

    def __init__(self, task: Task, grid: Grid, experiment: Experiment, settings: Settings) -> None:
        self.task, self.grid, self.experiment, self.settings = task, grid, experiment, settings
        self.folder = Path(experiment.out) / experiment.name
        self.strategy: FedAtoms | None = None  # made when the rounds begin
        self.last: State | None = None  # that the run has kept
        self.for_last_scores = 0  # bytes

    def simulation(self, experiment: Experiment, _: Path) -> Simulation:
        return server_simulation(self.task, experiment)

    def rounds(self, runtime: Runtime, state: State, until: int, eval_every: int) -> Iterator[Progress]:
        shut(self.folder)  # not before: this process is the only one that writes it
        about = about_nodes(self.folder / NODES, private=runtime.sim.privacy is not None)
        self.strategy = strategy = FedAtoms(runtime, self._open_state(state), self.settings, about)
        self.last = state
        strategy.summary()
        log.info("%s", describe_ownership(self.grid, self.settings.node_keys))
        return self._rounds(strategy, until, eval_every)

    def ready(self) -> None:
        """Finds the nodes before a private round is counted."""
        assert self.strategy is not None, "rounds come first"
        with self._stopping(self.strategy):
            self.strategy.await_nodes(self.grid)

    def _rounds(self, strategy: FedAtoms, until: int, eval_every: int) -> Iterator[Progress]:
        try:
            with self._stopping(strategy):
                for progress in _rounds(strategy, self.grid, until, eval_every, self._save_holders, own=self._personal):
                    save_state(self.folder / NODES, strategy.known)
                    self.last = progress.state
                    yield progress
        finally:
            _log_refused(read_lines(self.folder).rows)

    @contextmanager
    def _stopping(self, strategy: FedAtoms) -> Iterator[None]:
        """Writes the model so far where a run stops, and says how it goes on."""
        try:
            yield
        except (TooFew, NotFinite) as error:
            assert self.last is not None, "rounds come first"
            write_model(self.folder, strategy.runtime.sim, self.last)
            way = f"{strategy.way_out()}, and continue with resume=true in the run config."
            if isinstance(error, NotFinite):
                way = (
                    "Nothing of the round is kept: resume=true in the run config tries it again. If it stops again, "
                    'start a new run with a lower lr or, if a node may lie, with aggregation="median".'
                )
            raise type(error)(f"{error}. The model so far is {self.folder / MODEL}. {way}") from None

    def personal(self, experiment: Experiment, runtime: Runtime, state: State, folder: Path) -> dict[str, float]:
        assert self.strategy is not None, "rounds come first"
        score, size = _scores(self.strategy, self.grid, experiment.last_epochs, self._save_holders)
        own = {} if score is None else {**score_before(folder, experiment.rounds), **score_after(score)}
        self.for_last_scores = size
        return own

    def extra(self, rows: list[Row]) -> dict[str, object]:
        counts = [cast(dict[str, int], _column(row, "beside")) for row in rows]
        last = {"scores": self.for_last_scores} if self._personal else {}
        return {"bytes_beside": ledger.add(*counts, last) or None}

    @property
    def _personal(self) -> bool:
        return self.experiment.personal != "none"

    def _open_state(self, state: State) -> ServerState:
        """Loads the server state of a run; clients that are freed belong to no key from now on."""
        folder, which = self.folder / NODES, trajectory(self.experiment)
        known = load_state(folder, state, which) if state.round else ServerState(state, secrets.token_hex(4), which)
        held, freed = load_holders(folder), _freed(self.settings, self.experiment)
        for client in sorted(freed & held.keys()):
            log.info("client %d no longer belongs to the key %s of node %d", client, *held[client])
        known = known._replace(holders={client: each for client, each in held.items() if client not in freed})
        self._save_holders(known)
        return known

    def _save_holders(self, known: ServerState) -> None:
        """Writes which key owns each client, before anything is sent to them."""
        if known.holders != load_holders(self.folder / NODES):
            save_holders(self.folder / NODES, known.holders)


SaveHolders = Callable[[ServerState], None]


def _rounds(
    strategy: FedAtoms, grid: Grid, until: int, eval_every: int, save: SaveHolders, *, own: bool
) -> Iterator[Progress]:
    nothing, runtime = (ArrayRecord(), ConfigRecord()), strategy.runtime
    while (number := strategy.known.state.round) < until:
        messages = strategy.configure_train(number + 1, *nothing, grid)
        save(strategy.known)
        _, metrics = strategy.aggregate_train(number + 1, ask(grid, [*messages], strategy.settings.timeout))
        state, record = strategy.known.state, strategy.record
        assert record is not None and metrics is not None, "a round leaves its record"
        scores: dict[Scored, Score] = {}
        if state.round % eval_every == 0 or state.round == until:
            scores = evaluate(runtime, state) if len(runtime.data.test_y) else {}
            if what := diverged(runtime, scores):
                raise NotFinite(f"round {number + 1}: {what}, although all answers were finite")
            if own:
                score, size = _scores(strategy, grid, 0, save)
                scores |= {} if score is None else {"personal": score}
                record = record._replace(extra={**record.extra, "beside": {**record.extra["beside"], "scores": size}})
        if runtime.sim.privacy is None:  # else what may be told is told when it is counted
            log.info("round %d: loss %.4f, %d clients, %s", number + 1, record.loss, record.clients, written(scores))
            log.info("round %d: bytes of arrays and headers, %s%s", number + 1, _sizes(metrics), _beside(record))
        yield Progress(state, record, scores)


def _scores(strategy: FedAtoms, grid: Grid, last_epochs: int, save: SaveHolders) -> tuple[Score | None, int]:
    """Asks for the scores of nodes' own models; returns the mean score and the bytes of arrays that were sent."""
    config = ConfigRecord({"last-epochs": last_epochs})
    messages = strategy.configure_evaluate(0, ArrayRecord(), config, grid)
    save(strategy.known)
    strategy.aggregate_evaluate(0, ask(grid, [*messages], strategy.settings.timeout))
    return strategy.score, strategy.for_scores


def _freed(settings: Settings, experiment: Experiment) -> frozenset[int]:
    """Parses which clients an operator frees from their keys."""
    words = settings.free.replace(",", " ").split()
    if not all(word.isdecimal() and int(word) < experiment.clients for word in words):
        raise ValueError(
            f'free={settings.free!r} in the run config: each must be one of {experiment.clients} clients. Use free="0" '
            f'or free="0, 2".'
        )
    if words and not settings.resume:
        raise ValueError(f"free={settings.free!r} without resume=true: a new run holds no client. Leave it out.")
    return frozenset(int(word) for word in words)


def _sizes(metrics: MetricRecord) -> str:
    return ", ".join(f"{metrics[f'bytes-{way}']} + {metrics[f'headers-{way}']} {way}" for way in ("up", "down"))


def _beside(record: Record) -> str:
    words = {"refused": "of those up refused", "scores": "more down for scores"}
    return "".join(f", {size} {words[what]}" for what, size in record.extra["beside"].items())


def _column(row: Row, name: str) -> dict[str, object]:
    """Reads an extra column of a round; it is only written if it is not empty."""
    return cast(dict[str, object], dict(row).get(name, {}))


def _log_refused(rows: list[Row]) -> None:
    """Logs in one line which clients' answers were refused, how often, and the last reason."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        for client, reason in _column(row, "refused").items():
            reasons.setdefault(client, []).append(f"in round {row['round'] + 1}, {reason}")
    if reasons:
        each = "; ".join(f"{len(all_)} of client {client}, the last {all_[-1]}" for client, all_ in reasons.items())
        log.warning("answers that were refused and never averaged: %s", each)
