"""Who is there: which node has which part of the data, and messages to them with an end to the waiting."""

import logging
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedatoms.flower.wire import read_place

log = logging.getLogger("flwr")
POLL = 0.2  # seconds between two looks
QUESTION = 60.0  # seconds; then Flower says that a question is lost, and it is asked anew


class Roll(NamedTuple):
    """The node of each client that is there, and the questions to nodes that have not said yet whose they are."""

    nodes: Mapping[int, int] = {}
    asked: Mapping[int, str] = {}  # node -> Flower's id of the question, empty once it has no client


def meet(grid: Grid, roll: Roll, wanted: Iterable[int], wait: float, clients: int) -> Roll:
    """Looks who of so many clients is there; waits for those wanted, but no longer than ``wait`` seconds.

    New nodes are asked for their ``partition-id``, since a node that is restarted may have another number; one that
    does not answer holds nobody up.
    """
    until, wanted = time.monotonic() + wait, set(wanted)
    roll = roll._replace(asked={node: question for node, question in roll.asked.items() if question})
    while True:
        roll = _look(grid, roll, clients)
        if wanted <= roll.nodes.keys() or time.monotonic() > until:
            return roll
        time.sleep(POLL)


def _look(grid: Grid, roll: Roll, clients: int) -> Roll:
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
    return Roll(_welcome(nodes, replies, clients), asked)


def _question(node: int) -> Message:
    return Message(RecordDict({"config": ConfigRecord()}), node, MessageType.QUERY, ttl=QUESTION)


def _welcome(here: Mapping[int, int], replies: list[Message], clients: int) -> dict[int, int]:
    """Adds nodes that say which client they are; of two that say the same the first stays."""
    known = dict(here)
    for reply in sorted(replies, key=lambda reply: reply.metadata.src_node_id):
        node = reply.metadata.src_node_id
        if not reply.has_content():
            log.warning("node %d cannot take part: %s", node, reply.error.reason)
            continue
        try:
            client = read_place(reply.content)
            if not 0 <= client < clients:
                raise ValueError(f"{client} is not one of {clients} clients")
        except (KeyError, ValueError) as error:
            log.warning("node %d does not say which partition-id it has: %r", node, error)
            continue
        if (other := known.setdefault(client, node)) != node:
            log.warning("node %d has the partition-id %d of node %d. Give each its own.", node, client, other)
    return known


def ask(grid: Grid, messages: list[Message], timeout: float) -> list[Message]:
    """Sends messages and returns the replies that come in time; Flower's own loop looks every three seconds only."""
    until = time.monotonic() + timeout
    waiting = {each for each in grid.push_messages(messages) if each} if messages else set()
    replies: list[Message] = []
    while waiting:
        for reply in grid.pull_messages(waiting):
            replies.append(reply)
            waiting.discard(reply.metadata.reply_to_message_id)
        if not waiting or time.monotonic() > until:
            break
        time.sleep(POLL)
    return replies
