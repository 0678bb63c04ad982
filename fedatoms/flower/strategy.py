"""A Flower strategy around the server state of a run: who is asked what, and whose answers are averaged."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedatoms.core.lookup import counted
from fedatoms.engine.evaluation import Score, from_numbers, over_clients
from fedatoms.engine.private_round import drawn
from fedatoms.engine.round import select
from fedatoms.engine.runtime import Runtime
from fedatoms.engine.server import not_finite, trace_of
from fedatoms.engine.state import Record
from fedatoms.flower import nonces, wire
from fedatoms.flower.checks import Refused, alike, check_answer, check_records, check_score, outliers
from fedatoms.flower.judging import POLICIES, unjudged
from fedatoms.flower.membership import Membership, absence, ask, by_sender, find_nodes, printable, reason_of
from fedatoms.flower.private_rounds import take_in_privately
from fedatoms.flower.ranges import loud_losses, loud_scores
from fedatoms.flower.roster import load_roster
from fedatoms.flower.server_state import ServerState, bytes_in, note_missing, order_for, take_in
from fedatoms.flower.task import Settings
from fedatoms.flower.wire import Answer, Missing, Order, Size, Tested
from fedatoms.objectives.base import Objective

T = TypeVar("T")
log = logging.getLogger("flwr")
REASON = 200  # characters of a reason, which may quote a node


class TooFew(RuntimeError):
    """A round with fewer accepted answers than it needs."""


class NotFinite(RuntimeError):
    """A round after which the server's model or its loss is not finite, although all answers were."""


class FedAtoms(Strategy):
    """A Flower strategy for any algorithm, schedule and personalised method of fedatoms.

    Flower's own loop over it asks nodes for scores, logs the bytes of their answers, and counts no epsilon: a private
    run needs ``server_app``, which tells ``about_nodes`` whom a round has asked.
    """

    def __init__(
        self, runtime: Runtime, known: ServerState, settings: Settings, about_nodes: logging.Logger | None = None
    ) -> None:
        self.runtime, self.known, self.settings = runtime, known, settings
        self._private = runtime.sim.privacy is not None
        if self._private and about_nodes is None:
            raise ValueError(
                "a private run by its strategy alone: nobody would count its epsilon, and the log would tell whom a "
                "round asks. Use server_app(task), or leave privacy out."
            )
        self._about_nodes = about_nodes or log
        self.record: Record | None = None  # of the last round
        self.for_scores = 0  # bytes of arrays in the last orders to score
        self.score: Score | None = None  # of nodes' own models, when it was last asked for
        most, keys = settings.max_examples, settings.node_keys
        roster = load_roster(settings.roster)
        clients, tells = len(runtime.data.parts), not self._private
        self._members = Membership(clients, known.trajectory, most, keys, known.holders, roster, tells)
        self._chosen: list[int] = []
        self._orders: dict[int, Message] = {}  # to each client that was last asked
        self._sent: list[tuple[Order, Size]] = []
        self._received: list[Size] = []
        self._refused: dict[int, str] = {}
        self._failed: set[int] = set()
        self._grid: Grid | None = None
        self._began = 0.0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draws the clients of the round as the simulator does, and sends each what it lacks."""
        self._grid, self._began, self._sent, self._received, self._refused = grid, time.perf_counter(), [], [], {}
        self._failed = set()
        sim, number = self.runtime.sim, self.known.state.round
        chosen = self._chosen = drawn(sim) if self._private else select(sim, number)[0]
        self._find_nodes(grid, () if self._private else chosen)  # to wait for some would tell that they were drawn
        there = [client for client in chosen if client in self._members.nodes]
        self._about_nodes.info("round %d: asking %d of %d clients", number + 1, len(there), len(chosen))
        for client in chosen:
            if client not in there:
                self._about_nodes.warning("round %d: client %d has no node that answers", number + 1, client)
        if len(there) < len(chosen) and (why := absence(self._members, self.settings.wait)):
            self._about_nodes.warning("round %d: %s", number + 1, why)
        self._orders = {client: self._message(client) for client in there}
        return list(self._orders.values())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Averages the accepted answers in the order of the clients; logs a line for each of the others."""
        found = self._read(replies, self._orders, _answer)
        first = {client: answer for client, answer in found.items() if isinstance(answer, Answer)}
        answers = self._accepted({**first, **self._ask_again(found)})
        state = self.known.state
        if self._private:
            known, record = take_in_privately(self.runtime, self.known, answers)
        else:
            self._check_enough(len(answers))
            known = take_in(self.runtime, self.known, answers)
            record = self._recorded(state.round, answers)
        if what := not_finite(state.server, known.state.server, trace_of(known.state.server)):
            raise NotFinite(f"round {state.round + 1}: the server's '{what}' is not finite, although all answers were")
        self.known, self.record = known, record
        return wire.pack({"params": self.known.state.server.params}), self._metrics(self.record.loss)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Asks every node that is online to score its own model on its own test images."""
        wanted = [] if self._members.nodes else self.known.base  # a run that was complete when it was resumed
        self._find_nodes(grid, wanted)
        epochs = int(str(config.get("last-epochs", 0)))
        orders = {
            client: nonces.with_nonce(
                wire.write_order(order_for(self.runtime, self.known, client, score=True, last_epochs=epochs))
            )
            for client in sorted(self._members.nodes)
        }
        self.for_scores = sum(wire.size_of(content).arrays for content in orders.values())
        self._orders = {
            client: Message(content, self._members.nodes[client], MessageType.EVALUATE, ttl=self._ttl())
            for client, content in orders.items()
        }
        return list(self._orders.values())

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Weighs the nodes' scores by their test images."""
        objective, found = self.runtime.sim.objective, self._read(replies, self._orders, self._score)
        tested = alike(objective, found)
        for client in [client for client, each in found.items() if each.samples and client not in tested]:
            self._refuse(client, "its scores have other shapes than the others'")
        for client, reason in loud_scores(objective, tested).items():
            self._refuse(client, reason)
            del tested[client]
        self.score = _mean_score(objective, [tested[client] for client in sorted(tested)])
        return None if self.score is None else MetricRecord({**self.score.parts()})

    def summary(self) -> None:
        """Logs which run this is, and its settings."""
        log.info("fedatoms: run %s, %d clients, %s", self.known.run, len(self.runtime.data.parts), self.settings)

    def await_nodes(self, grid: Grid) -> None:
        """Finds the nodes of a private round before anything is drawn; too few of them stop the run, at no cost."""
        for wanted in ([], [*range(len(self.runtime.data.parts))]):
            if not wanted or len(self._members.nodes) < self.settings.min_train_nodes:
                self._find_nodes(grid, wanted)
        if (there := len(self._members.nodes)) < (least := self.settings.min_train_nodes):
            online = f"round {self.known.state.round + 1}: {counted(there, 'node')} online"
            raise TooFew(f"{online}, but min-train-nodes is {least}")

    def way_out(self) -> str:
        """Says what to do about a round that had too few answers."""
        if (self._refused or self._failed) and not self._private:  # of whose answers nothing stops
            return "The lines above say why answers were refused or did not come: mend that"
        return absence(self._members, self.settings.wait) or "Start the missing nodes"

    def _check_enough(self, answers: int) -> None:
        """Stops a round with fewer answers than it needs; says it where there are fewer than the rule needs."""
        number, least = self.known.state.round + 1, self.settings.min_train_nodes
        if answers < least:
            refused = f" ({len(self._refused)} refused)" if self._refused else ""
            raise TooFew(
                f"round {number}: {answers} good answers from {len(self._chosen)} clients{refused}, but "
                f"min-train-nodes is {least}"
            )
        if answers < (rule := self.runtime.sim.aggregation).fewest:
            few = "round %d: %d answers, and the aggregation needs %s: the model stays as it is"
            log.warning(few, number, answers, rule.needs)

    def _find_nodes(self, grid: Grid, wanted: Iterable[int]) -> None:
        self._members = find_nodes(grid, self._members, wanted, self.settings.wait)
        self.known = self.known._replace(holders=self._members.holders)

    def _score(self, content: RecordDict, client: int) -> Tested:
        objective = self.runtime.sim.objective
        return check_score(objective, wire.read_score(content), most=self._members.infos[client].tests)

    def _message(self, client: int) -> Message:
        order = order_for(self.runtime, self.known, client)
        content = nonces.with_nonce(wire.write_order(order))
        self._sent.append((order, wire.size_of(content)))
        return Message(content, self._members.nodes[client], MessageType.TRAIN, ttl=self._ttl())

    def _ttl(self) -> float | None:
        """Limits the life of a message: a node that hung must not work through the orders of past rounds."""
        return self.settings.timeout or None

    def _read(
        self, replies: Iterable[Message], orders: Mapping[int, Message], read: Callable[[RecordDict, int], T]
    ) -> dict[int, T]:
        """Reads the reply of each client; logs which replies cannot be used, and which clients did not reply."""
        found, asked = dict[int, T](), {order.metadata.message_id: client for client, order in orders.items()}
        received = by_sender(replies, asked)
        for client, reply in received.items():
            if not reply.has_content():
                self._leave_out(client, f"it failed: {reason_of(reply)}")
                self._failed.add(client)
                continue
            try:
                self._received.append(wire.size_of(reply.content))
                check_records(reply.content)
                if why := nonces.foreign(orders[client].content, reply.content):
                    raise Refused(why)
                found[client] = read(reply.content, client)
            except Exception as error:  # a message may be malformed in any way, and must not end the run
                self._refuse(client, str(error) if isinstance(error, Refused) else f"it cannot be read: {error!r}")
        for client in sorted(orders.keys() - received.keys()):
            self._leave_out(client, f"no answer came: it is gone, or took over {self.settings.timeout:g} seconds")
        return found

    def _ask_again(self, found: dict[int, Answer | Missing]) -> dict[int, Answer | Missing]:
        """Sends the missing groups to nodes that hold less than assumed, as after a restart with an empty disk."""
        again = {}
        for client, missing in found.items():
            if isinstance(missing, Missing):
                what = "has lost its state, and starts afresh" if missing.lost else f"lacks {', '.join(missing.groups)}"
                line = "round %d: client %d (node %d) %s"
                self._about_nodes.warning(line, *self._who(client), printable(what, REASON))
                self.known = note_missing(self.known, client, missing)
                again[client] = self._message(client)
        assert self._grid is not None, "a round is configured first"
        replies = ask(self._grid, list(again.values()), self.settings.timeout)
        return self._read(replies, again, _answer)

    def _accepted(self, found: dict[int, Answer | Missing]) -> dict[int, Answer]:
        """Refuses answers that cannot be averaged, and returns the others in the order of the clients."""
        state, answers = self.known.state, dict[int, Answer]()
        for client, answer in sorted(found.items()):
            try:
                answers[client] = check_answer(self.runtime, state, answer, most=self._members.infos[client].samples)
            except Refused as error:
                self._refuse(client, str(error))
        if self._private:  # whether one answer counts must not depend on the others; each is clipped
            return answers
        self._judge(len(answers))
        before = None if self.record is None else self.record.loss
        far = {**outliers(state, answers, self.settings.far), **loud_losses(answers, before)}
        for client, reason in far.items():
            self._refuse(client, reason)
        return {client: answer for client, answer in answers.items() if client not in far}

    def _judge(self, answers: int) -> None:
        """Says when answers are too few to find one that is far from the others, and stops there if it is to."""
        if not (line := unjudged(answers, self.settings.far)):
            return
        if POLICIES[self.settings.far_unjudged]:
            raise TooFew(f'round {self.known.state.round + 1}: {line}, and far-unjudged is "refuse"')
        log.warning(
            'round %d: %s: what came is averaged, as far-unjudged is "accept"', self.known.state.round + 1, line
        )

    def _leave_out(self, client: int, reason: str) -> None:
        line = "round %d: left out client %d (node %d): %s"
        self._about_nodes.warning(line, *self._who(client), printable(reason))

    def _refuse(self, client: int, reason: str) -> None:
        reason = printable(reason, REASON)
        line = "round %d: refused the answer of client %d (node %d): %s"
        self._about_nodes.warning(line, *self._who(client), reason)
        self._refused[client] = f"node {self._members.nodes[client]}: {reason}"

    def _who(self, client: int) -> tuple[int, int, int]:
        return self.known.state.round + 1, client, self._members.nodes[client]

    def _recorded(self, number: int, answers: dict[int, Answer]) -> Record:
        loss = sum(answer.loss for answer in answers.values()) / len(answers)
        up = bytes_in(self.runtime, [each.sent or each.upload for each in answers.values()])
        down = bytes_in(self.runtime, [order.down for order, _ in self._sent])
        refused = sum(size.arrays for size in self._received) - sum(up.values())
        extra: dict[str, dict[str, object]] = {
            "refused": {str(client): why for client, why in self._refused.items()},  # client -> reason
            "beside": {"refused": refused} if refused else {},  # bytes of arrays that are in no average
        }
        seconds = time.perf_counter() - self._began
        failed = len(self._chosen) - len(answers)
        return Record(number, loss, len(answers), failed, up, down, seconds, extra)

    def _metrics(self, loss: float) -> MetricRecord:
        sizes = {
            f"{what}-{way}": sum(getattr(each, field) for each in messages)
            for way, messages in (("up", self._received), ("down", [size for _, size in self._sent]))
            for what, field in (("bytes", "arrays"), ("headers", "rest"))
        }
        return MetricRecord({"loss": loss, **sizes})


def _mean_score(objective: Objective, tested: Sequence[Tested]) -> Score | None:
    """Returns the score over all nodes' test images, if there are any."""
    if not tested:
        return None
    counts = torch.tensor([float(each.samples) for each in tested], dtype=torch.float64)
    columns = zip(*(from_numbers(objective, each.numbers) for each in tested), strict=True)
    sums = [torch.stack([mean * count for mean, count in zip(column, counts, strict=True)]) for column in columns]
    return over_clients(objective, sums, counts)


def _answer(content: RecordDict, _: int) -> Answer | Missing:
    return wire.read_answer(content)
