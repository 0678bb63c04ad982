"""Who is there: which node has which part of the data, and messages to them with an end to the waiting."""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import httpx
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedatoms.flower.wire import read_place

log = logging.getLogger("flwr")
POLL = 0.2  # seconds between two looks
QUESTION = 60.0  # seconds; then Flower says that a question is lost, and it is asked anew


class Roll(NamedTuple):
    """The node of each client that is there, and the questions to nodes that have not said yet whose they are.

    There are so many ``clients``, and the app of each must be that of the server, with the same ``trajectory``.
    """

    clients: int
    trajectory: str
    nodes: Mapping[int, int] = {}
    asked: Mapping[int, str] = {}  # node -> Flower's id of the question, empty once it has no client


def meet(grid: Grid, roll: Roll, wanted: Iterable[int], wait: float) -> Roll:
    """Looks which clients are there; waits for those wanted, but no longer than ``wait`` seconds.

    New nodes are asked for their ``partition-id``, since a node that is restarted may have another number; one that
    does not answer holds nobody up.
    """
    until, wanted = time.monotonic() + wait, set(wanted)
    roll = roll._replace(asked={node: question for node, question in roll.asked.items() if question})
    while True:
        with _patience():
            roll = _look(grid, roll)
        if wanted <= roll.nodes.keys() or time.monotonic() > until:
            return roll
        time.sleep(POLL)


def _look(grid: Grid, roll: Roll) -> Roll:
    there = set(grid.get_node_ids())
    nodes = {client: node for client, node in roll.nodes.items() if node in there}
    asked = {node: question for node, question in roll.asked.items() if node in there}
    if strangers := sorted(there - asked.keys() - set(nodes.values())):
        questions = [_question(node) for node in strangers]
        asked |= dict(zip(strangers, grid.push_messages(questions), strict=False))  # none, if Flower cannot send
    open_ones = [question for question in asked.values() if question]
    replies = list(grid.pull_messages(open_ones)) if open_ones else []
    answered = {reply.metadata.reply_to_message_id for reply in replies}
    asked |= {node: "" for node, question in asked.items() if question in answered}
    return _welcome(roll._replace(nodes=nodes, asked=asked), replies)


def _question(node: int) -> Message:
    return Message(RecordDict({"config": ConfigRecord()}), node, MessageType.QUERY, ttl=QUESTION)


def _welcome(roll: Roll, replies: list[Message]) -> Roll:
    """Adds nodes that say which client they are; of two that say the same the first stays."""
    known = dict(roll.nodes)
    for reply in sorted(replies, key=lambda reply: reply.metadata.src_node_id):
        node = reply.metadata.src_node_id
        if not reply.has_content():
            log.warning("node %d cannot take part: %s", node, reply.error.reason)
            continue
        try:
            client, trajectory = read_place(reply.content)
            if not 0 <= client < roll.clients:
                raise ValueError(f"{client} is not one of {roll.clients} clients")
        except (KeyError, ValueError) as error:
            log.warning("node %d does not say which partition-id it has: %r", node, error)
            continue
        if trajectory != roll.trajectory:
            log.warning("node %d runs another experiment than the server. Install the same app on both.", node)
            continue
        if (other := known.setdefault(client, node)) != node:
            log.warning("node %d has the partition-id %d of node %d. Give each its own.", node, client, other)
    return roll._replace(nodes=known)


def ask(grid: Grid, messages: list[Message], timeout: float) -> list[Message]:
    """Sends messages and returns the replies that come in time; Flower's own loop looks every three seconds only."""
    until = time.monotonic() + timeout
    waiting = {each for each in grid.push_messages(messages) if each} if messages else set()
    replies: list[Message] = []
    while waiting:
        with _patience():
            for reply in grid.pull_messages(waiting):
                replies.append(reply)
                waiting.discard(reply.metadata.reply_to_message_id)
        if not waiting or time.monotonic() > until:
            break
        time.sleep(POLL)
    return replies


@contextmanager
def _patience() -> Iterator[None]:
    """Lets a look fail, as there is a next one; a SuperLink that cannot be reached is waited for by Flower itself."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        log.warning("the SuperLink failed to answer, and is asked again: %s", error)
