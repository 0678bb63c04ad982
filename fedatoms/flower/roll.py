"""Who is there: which node has which part of the data, and messages to them with an end to the waiting."""

import logging
import time
from collections.abc import Iterable, Mapping

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedatoms.flower.wire import read_place

log = logging.getLogger("flwr")
POLL = 0.2  # seconds between two looks


def meet(grid: Grid, known: Mapping[int, int], wanted: Iterable[int], wait: float) -> dict[int, int]:
    """Returns the node of each client that is there; waits for those wanted, but no longer than so many seconds.

    New nodes are asked for their ``partition-id``, since a node that is restarted may have another number.
    """
    until, wanted, asked = time.monotonic() + wait, set(wanted), set(known.values())
    while True:
        there = set(grid.get_node_ids())
        here = {client: node for client, node in known.items() if node in there}
        if strangers := there - asked:
            questions = [Message(RecordDict({"config": ConfigRecord()}), node, MessageType.QUERY) for node in strangers]
            replies = ask(grid, questions, max(until - time.monotonic(), POLL))
            here = _welcome(here, replies)
            asked |= {reply.metadata.src_node_id for reply in replies}
        known = here
        if wanted <= known.keys() or time.monotonic() > until:
            return here
        time.sleep(POLL)


def _welcome(here: Mapping[int, int], replies: list[Message]) -> dict[int, int]:
    """Adds nodes that say which client they are; of two that say the same the first stays."""
    known = dict(here)
    for reply in replies:
        node = reply.metadata.src_node_id
        if not reply.has_content():
            log.warning("node %d cannot take part: %s", node, reply.error.reason)
        elif (other := known.setdefault(client := read_place(reply.content), node)) != node:
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
