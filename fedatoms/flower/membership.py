"""Maps clients to nodes, and sends them messages with a timeout."""

import hashlib
import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import httpx
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedatoms.core.lookup import counted
from fedatoms.flower.roster import Entry, why_not_on
from fedatoms.flower.wire import NOT_GIVEN, NodeInfo, read_node_info

log = logging.getLogger("flwr")
POLL = 0.2  # seconds between two polls
QUESTION = 60.0  # seconds at least; Flower then reports a question as lost, and it is asked again
LONGEST = 500  # characters of what a node says, in a log
OF_KEY = 16  # characters of a key's checksum that tell a holder
NODE_KEYS: Mapping[str, bool | None] = {"auto": None, "fixed": True, "new": False}


class Holder(NamedTuple):
    """The node that owns a client: a checksum of its key, and the id that Flower gave it when it first joined."""

    key: str
    node: int


class Membership(NamedTuple):
    """The node of each client that is online, and the open questions to nodes whose client is not known yet.

    ``clients`` is the number of clients in the run. A node's app must have the server's ``trajectory``, and a node may
    report at most ``most`` samples. Where nodes keep their keys, a client belongs to its holder; with a ``roster``, to
    the key that it names.
    """

    clients: int
    trajectory: str
    most: int
    node_keys: str = "auto"
    holders: Mapping[int, Holder] = {}
    roster: Mapping[int, Entry] | None = None
    tells_sizes: bool = True  # False: how much data a client has is not logged
    nodes: Mapping[int, int] = {}
    infos: Mapping[int, NodeInfo] = {}  # what the node of each client reported when it joined
    asked: Mapping[int, str] = {}  # node -> Flower's id of the question; empty once it has been answered
    strangers: Mapping[int, str] = {}  # node -> why it is no client, as it last was


def find_nodes(grid: Grid, members: Membership, wanted: Iterable[int], wait: float) -> Membership:
    """Finds the nodes of clients; waits for those wanted, but no longer than ``wait`` seconds.

    New nodes are asked for their ``partition-id`` and their number of samples: a node that is restarted may have
    another one. A node that does not answer delays no other.
    """
    until, wanted = time.monotonic() + wait, set(wanted)
    members = members._replace(asked={node: question for node, question in members.asked.items() if question})
    while True:
        with _retrying():
            members = _poll(grid, members, ttl=max(QUESTION, wait))  # to count samples, a node reads them
        if wanted <= members.nodes.keys() or time.monotonic() > until:
            return members
        time.sleep(POLL)


def absence(members: Membership, wait: float) -> str:
    """Says what keeps clients away although nodes are online; empty if no other node is."""
    late = sum(bool(question) for question in members.asked.values())
    if late:
        return (
            f"{counted(late, 'node')} online did not say within wait={wait:g} seconds which client that is: Python "
            f"still starts, or samples are counted. Raise wait in the run config"
        )
    if members.strangers:
        node, why = min(members.strangers.items())
        others = len(members.strangers) - 1
        return f"{f'{others + 1} nodes online take no part; ' if others else ''}node {node} {why.rstrip('.')}"
    return ""


def keys_stay(grid: Grid, node_keys: str) -> bool:
    """Says whether nodes keep their keys over a restart, as they do if the keys are registered with the SuperLink.

    Flower does not tell a registered key from one that a node generated when it started. But a SuperLink checks
    registered keys only with TLS: without TLS all keys are new, with TLS they are assumed to be registered.
    """
    known = NODE_KEYS[node_keys]
    return getattr(grid, "_insecure", None) is False if known is None else known


def describe_ownership(grid: Grid, node_keys: str) -> str:
    """Says whether clients are bound to the keys that first held them."""
    if keys_stay(grid, node_keys):
        return "clients belong to the keys of the nodes that first hold them"
    return f'clients belong to no key (node-keys="{node_keys}"): any node that is let in can be any client'


def _poll(grid: Grid, members: Membership, ttl: float) -> Membership:
    binding = members.roster is not None or keys_stay(grid, members.node_keys)
    there = _keys_of(grid) if binding else dict.fromkeys(grid.get_node_ids(), None)
    nodes = {client: node for client, node in members.nodes.items() if node in there}
    asked = {node: question for node, question in members.asked.items() if node in there}
    if newcomers := sorted(there.keys() - asked.keys() - set(nodes.values())):
        questions = [_question(node, ttl) for node in newcomers]
        asked |= dict(zip(newcomers, grid.push_messages(questions), strict=False))  # none, if Flower cannot send
    questioned = {question: node for node, question in asked.items() if question}
    replies = list(grid.pull_messages(list(questioned))) if questioned else []
    answered = {reply.metadata.reply_to_message_id for reply in replies}
    asked |= {node: "" for node, question in asked.items() if question in answered}
    strangers = {node: why for node, why in members.strangers.items() if node in there}
    members = members._replace(nodes=nodes, asked=asked, strangers=strangers)
    for node, reply in sorted(by_sender(replies, questioned).items()):
        members = _admit(members, node, reply, there[node])
    return members


def _keys_of(grid: Grid) -> dict[int, str | None]:
    """Returns the nodes that are online, each with a checksum of its public key, by which Flower checks signatures."""
    return {info.node_id: hashlib.sha256(info.public_key).hexdigest() for info in grid.get_nodes()}


def _question(node: int, ttl: float) -> Message:
    return Message(RecordDict({"config": ConfigRecord()}), node, MessageType.QUERY, ttl=ttl)


def _admit(members: Membership, node: int, reply: Message, key: str | None) -> Membership:
    """Adds a node as the client that it claims to be, or logs why it cannot be that client."""
    if not reply.has_content():
        return _turned_away(members, node, f"cannot take part: {reason_of(reply)}")
    try:
        info = read_node_info(reply.content)
        if not 0 <= info.client < members.clients:
            raise ValueError(f"{info.client} is not one of {members.clients} clients")
    except (KeyError, ValueError) as error:
        return _turned_away(members, node, f"does not say which partition-id it has: {error!r}")
    if (why := _why_not(members, node, info, key)) is not None:
        return _turned_away(members, node, why)
    sizes = f" with {info.samples} samples and {info.tests} test images" if members.tells_sizes else ""
    log.info("client %d (node %d) joins%s", info.client, node, sizes)
    if key is not None and not _holds(members, info.client, key):
        log.info("client %d belongs to the key %s of node %d from now on", info.client, key[:OF_KEY], node)
        members = members._replace(holders={**members.holders, info.client: Holder(key[:OF_KEY], node)})
    strangers = {each: why for each, why in members.strangers.items() if each != node}
    nodes, infos = {**members.nodes, info.client: node}, {**members.infos, info.client: info}
    return members._replace(nodes=nodes, infos=infos, strangers=strangers)


def _turned_away(members: Membership, node: int, why: str) -> Membership:
    log.warning("node %d %s", node, printable(why))
    return members._replace(strangers={**members.strangers, node: printable(why)})


def _holds(members: Membership, client: int, key: str) -> bool:
    holder = members.holders.get(client)
    return holder is not None and holder.key == key[:OF_KEY]


def _why_not(members: Membership, node: int, info: NodeInfo, key: str | None) -> str | None:
    """Says why a node cannot be the client that it claims to be; of two with one claim, the first is taken."""
    if info.trajectory != members.trajectory:
        return "runs another experiment than the server. Install the same app on both."
    if NOT_GIVEN in (info.samples, info.tests):
        return "does not say how many samples it has. Install the server's version of fedatoms on it."
    if info.samples < 1 or info.tests < 0:
        return f"says that it has {info.samples} samples and {info.tests} test images. Look at its data."
    first = members.infos.get(info.client, info)
    counts = ((info.samples, first.samples, "samples"), (info.tests, first.tests, "test images"))
    for count, before, what in counts:
        if count > members.most:
            return f"says that it has {count} {what}, but max-examples is {members.most}. If it is right, raise that."
        if count > before:
            return (
                f"says that it has {count} {what}, more than the {before} with which client {info.client} joined. If "
                f"it has new data, stop the run and continue with resume=true."
            )
    if members.roster is not None and (why := why_not_on(members.roster, info, key)):
        return why
    holder = members.holders.get(info.client)
    if members.roster is None and key and holder and not _holds(members, info.client, key):
        return (
            f"says that it is client {info.client}, which belongs to another key, {holder.key} of node {holder.node}. "
            f'To accept it, resume with resume=true free="{info.client}" in the run config; if nodes have no '
            f'registered keys, with node-keys="new".'
        )
    if (other := members.nodes.get(info.client, node)) != node:
        return f"has the partition-id {info.client} of node {other}. Give each its own."
    return None


def by_sender(replies: Iterable[Message], asked: Mapping[str, int]) -> dict[int, Message]:
    """Returns each reply by who was asked; ``asked`` maps Flower's id of a message to its recipient.

    Only the recipient knows that id. The ``src_node_id`` of a reply cannot be trusted: Flower checks the one on the
    envelope, but hands on the one inside.
    """
    known = [(asked.get(reply.metadata.reply_to_message_id), reply) for reply in replies]
    return {who: reply for who, reply in reversed(known) if who is not None}  # of copies, the first


def reason_of(reply: Message) -> str:
    """Returns why a node could not answer, without the words that Flower puts around an exception."""
    found = re.search(r"<class '[\w.]+'>:<['\"](.*)['\"]>", said := reply.error.reason or "", re.DOTALL)
    return found[1] if found else said


def printable(words: str, most: int = LONGEST) -> str:
    """Returns what a node may have written as one short line, so that it cannot fill the log, or forge lines of it.

    >>> printable("no such leaf\\nround 9: loss 0.1")
    'no such leaf round 9: loss 0.1'
    """
    return "".join(each if each.isprintable() else " " for each in words[:most])


def ask(grid: Grid, messages: list[Message], timeout: float) -> list[Message]:
    """Sends messages and returns the replies that come in time; Flower's own loop polls every three seconds only."""
    until = time.monotonic() + timeout
    waiting = {each for each in grid.push_messages(messages) if each} if messages else set()
    replies: list[Message] = []
    while waiting:
        with _retrying():
            for reply in grid.pull_messages(waiting):
                replies.append(reply)
                waiting.discard(reply.metadata.reply_to_message_id)
        if not waiting or time.monotonic() > until:
            break
        time.sleep(POLL)
    return replies


@contextmanager
def _retrying() -> Iterator[None]:
    """Lets a poll fail, as another follows; Flower itself waits for a SuperLink that cannot be reached."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        log.warning("the SuperLink failed to answer, and is asked again: %s", error)
