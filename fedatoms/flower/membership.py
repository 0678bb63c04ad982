"""Maps clients to nodes, and sends them messages with a timeout."""

import hashlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import httpx
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedatoms.flower.wire import UNSAID, Place, read_place

log = logging.getLogger("flwr")
POLL = 0.2  # seconds between two looks
QUESTION = 60.0  # seconds at least; then Flower says that a question is lost, and it is asked anew
NODE_KEYS: Mapping[str, bool | None] = {"auto": None, "fixed": True, "new": False}


class Holder(NamedTuple):
    """To whom a client belongs: the key of a node, as a checksum, and Flower's id of that node when it first came."""

    key: str
    node: int


class Membership(NamedTuple):
    """The node of each client that is there, and the questions to nodes that have not said yet whose they are.

    There are so many ``clients``, and the app of each must be that of the server, with the same ``trajectory``. None
    may have more than ``most`` samples. A client belongs to its holder, if nodes have keys that stay theirs.
    """

    clients: int
    trajectory: str
    most: int
    node_keys: str = "auto"
    holders: Mapping[int, Holder] = {}
    nodes: Mapping[int, int] = {}
    places: Mapping[int, Place] = {}  # what the node of each client said of itself
    asked: Mapping[int, str] = {}  # node -> Flower's id of the question, empty once it has no client


def meet(grid: Grid, members: Membership, wanted: Iterable[int], wait: float) -> Membership:
    """Looks which clients are there; waits for those wanted, but no longer than ``wait`` seconds.

    New nodes are asked for their ``partition-id`` and how many samples they have, since a node that is restarted may
    have another number; one that does not answer holds nobody up.
    """
    until, wanted = time.monotonic() + wait, set(wanted)
    members = members._replace(asked={node: question for node, question in members.asked.items() if question})
    while True:
        with _patience():
            members = _look(grid, members, ttl=max(QUESTION, wait))  # to count samples, a node reads them
        if wanted <= members.nodes.keys() or time.monotonic() > until:
            return members
        time.sleep(POLL)


def keys_stay(grid: Grid, node_keys: str) -> bool:
    """Says whether a node has the same key after a restart: it was registered with the SuperLink, as with TLS.

    No field of a node tells a registered key from one that the node made for itself at its start. But a SuperLink
    checks registered keys only with TLS, so that without it all are new. With TLS they are taken for registered.
    """
    known = NODE_KEYS[node_keys]
    return getattr(grid, "_insecure", None) is False if known is None else known


def whose_clients(grid: Grid, node_keys: str) -> str:
    """Says whether clients are kept for the keys that first held them."""
    if keys_stay(grid, node_keys):
        return "clients belong to the keys of the nodes that first hold them"
    return f'clients belong to no key (node-keys="{node_keys}"): any node that is let in can be any client'


def _look(grid: Grid, members: Membership, ttl: float) -> Membership:
    there = _keys_of(grid) if keys_stay(grid, members.node_keys) else dict.fromkeys(grid.get_node_ids(), None)
    nodes = {client: node for client, node in members.nodes.items() if node in there}
    asked = {node: question for node, question in members.asked.items() if node in there}
    if strangers := sorted(there.keys() - asked.keys() - set(nodes.values())):
        questions = [_question(node, ttl) for node in strangers]
        asked |= dict(zip(strangers, grid.push_messages(questions), strict=False))  # none, if Flower cannot send
    questioned = {question: node for node, question in asked.items() if question}
    replies = list(grid.pull_messages(list(questioned))) if questioned else []
    answered = {reply.metadata.reply_to_message_id for reply in replies}
    asked |= {node: "" for node, question in asked.items() if question in answered}
    members = members._replace(nodes=nodes, asked=asked)
    for node, reply in sorted(by_sender(replies, questioned).items()):
        members = _welcome(members, node, reply, there[node])
    return members


def _keys_of(grid: Grid) -> dict[int, str | None]:
    """Returns the nodes that are there, each with a checksum of its public key, whose owner signs all that it sends."""
    return {info.node_id: hashlib.sha256(info.public_key).hexdigest()[:16] for info in grid.get_nodes()}


def _question(node: int, ttl: float) -> Message:
    return Message(RecordDict({"config": ConfigRecord()}), node, MessageType.QUERY, ttl=ttl)


def _welcome(members: Membership, node: int, reply: Message, key: str | None) -> Membership:
    """Adds a node that says which client it is, unless it cannot be that; then says why not."""
    if not reply.has_content():
        log.warning("node %d cannot take part: %s", node, reply.error.reason)
        return members
    try:
        place = read_place(reply.content)
        if not 0 <= place.client < members.clients:
            raise ValueError(f"{place.client} is not one of {members.clients} clients")
    except (KeyError, ValueError) as error:
        log.warning("node %d does not say which partition-id it has: %r", node, error)
        return members
    if (why := _why_not(members, node, place, key)) is not None:
        log.warning("node %d %s", node, why)
        return members
    counts = (place.samples, place.tests)
    log.info("client %d (node %d) joins with %d samples and %d test images", place.client, node, *counts)
    if key is not None and place.client not in members.holders:
        log.info("client %d belongs to the key %s of node %d from now on", place.client, key, node)
        members = members._replace(holders={**members.holders, place.client: Holder(key, node)})
    return members._replace(nodes={**members.nodes, place.client: node}, places={**members.places, place.client: place})


def _why_not(members: Membership, node: int, place: Place, key: str | None) -> str | None:
    """Says why a node is not the client that it says; of two that may be the same, the first is."""
    if place.trajectory != members.trajectory:
        return "runs another experiment than the server. Install the same app on both."
    if UNSAID in (place.samples, place.tests):
        return "does not say how many samples it has. Install the server's version of fedatoms on it."
    if place.samples < 1 or place.tests < 0:
        return f"says that it has {place.samples} samples and {place.tests} test images. Look at its data."
    first = members.places.get(place.client, place)
    counts = ((place.samples, first.samples, "samples"), (place.tests, first.tests, "test images"))
    for count, before, what in counts:
        if count > members.most:
            return f"says that it has {count} {what}, but max-examples is {members.most}. If it is right, raise that."
        if count > before:
            return (
                f"says that it has {count} {what}, more than the {before} with which client {place.client} joined. If "
                f"it has new data, stop the run and go on with resume=true."
            )
    holder = members.holders.get(place.client)
    if key is not None and holder is not None and holder.key != key:
        return (
            f"says that it is client {place.client}, which belongs to another key, {holder.key} of node {holder.node}. "
            f'To let it be, go on with resume=true free="{place.client}" in the run config; if nodes have no '
            f'registered keys, with node-keys="new".'
        )
    if (other := members.nodes.get(place.client, node)) != node:
        return f"has the partition-id {place.client} of node {other}. Give each its own."
    return None


def by_sender(replies: Iterable[Message], asked: Mapping[str, int]) -> dict[int, Message]:
    """Returns the replies by those who were asked: message -> whom, by Flower's id of the message.

    Only they know that id. The number of a sender, ``src_node_id``, is the sender's own word: Flower checks the one on
    the envelope, and hands on the one inside.
    """
    known = [(asked.get(reply.metadata.reply_to_message_id), reply) for reply in replies]
    return {who: reply for who, reply in known if who is not None}


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
