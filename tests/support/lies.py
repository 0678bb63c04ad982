"""What a hostile node may answer: functions of its honest reply and of the order, for a grid and for real nodes."""

import json
from collections.abc import Callable
from io import BytesIO

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable

Lie = Callable[[Message, Message], Message | None]


def round_of(message: Message) -> int | None:
    """Returns the round that a node is asked to do its part of, or None if it is asked something else."""
    if message.metadata.message_type != MessageType.TRAIN:
        return None
    return json.loads(message.content.config_records["config"]["order"])[1]


def with_arrays(change: Callable[[dict[str, Array]], dict[str, Array]]) -> Callable[[Message, Message], Message]:
    """Makes a lie about the arrays of an answer."""

    def lie(reply: Message, message: Message) -> Message:
        arrays = change(dict(reply.content.array_records["arrays"]))
        return Message(RecordDict({**reply.content, "arrays": ArrayRecord(arrays)}), reply_to=message)

    return lie


def with_leaf(change: Callable[[np.ndarray], np.ndarray], kind: str = "") -> Callable[..., Message]:
    """Makes a lie about one array of an answer."""

    def one(arrays: dict[str, Array]) -> dict[str, Array]:
        name = next(name for name in arrays if name.startswith(f"{kind}/"))
        return {**arrays, name: Array(change(arrays[name].numpy()))}

    return with_arrays(one)


def with_variance(value: float) -> Callable[..., Message]:
    """Makes a lie about a running variance."""

    def one(arrays: dict[str, Array]) -> dict[str, Array]:
        name = next(name for name in arrays if name.endswith(".running_var"))
        return {**arrays, name: Array(spoilt(value)(arrays[name].numpy()))}

    return with_arrays(one)


def with_words(record: str, **words: object) -> Callable[[Message, Message], Message]:
    """Makes a lie about what an answer says of itself."""

    def lie(reply: Message, message: Message) -> Message:
        old = reply.content[record]
        new = type(old)({**old, **{name.replace("_", "-"): value for name, value in words.items()}})
        return Message(RecordDict({**reply.content, record: new}), reply_to=message)

    return lie


def spoilt(value: float) -> Callable[[np.ndarray], np.ndarray]:
    """Puts a value into an array."""

    def change(leaf: np.ndarray) -> np.ndarray:
        new = leaf.copy()
        new.flat[0] = value
        return new

    return change


def pickled(arrays: dict[str, Array]) -> dict[str, Array]:
    """Puts an array of objects, which only pickle could read, in place of the first."""
    data, name = BytesIO(), next(iter(arrays))
    np.save(data, np.array([{"any": "object"}]), allow_pickle=True)
    return {**arrays, name: Array(dtype="float32", shape=(1,), stype="numpy.ndarray", data=data.getvalue())}


def garbled(data: bytes) -> Callable[[dict[str, Array]], dict[str, Array]]:
    """Puts other bytes in place of the first array."""
    raw = {"dtype": "float32", "shape": (1,), "stype": "numpy.ndarray", "data": data}
    return lambda arrays: {**arrays, next(iter(arrays)): Array(**raw)}


LIES: dict[str, Lie] = {
    "no answer": lambda reply, message: None,
    "an error": lambda reply, message: Message(Error(2, "out of memory"), reply_to=message),
    "no content": lambda reply, message: Message(RecordDict(), reply_to=message),
    "nan": with_leaf(spoilt(float("nan"))),
    "inf": with_leaf(spoilt(float("inf"))),
    "nan in a control": with_leaf(spoilt(float("nan")), "control"),
    "a wrong shape": with_leaf(lambda leaf: leaf[None]),
    "a wrong type": with_leaf(lambda leaf: leaf.astype(np.float64)),
    "a type that torch lacks": with_leaf(lambda leaf: leaf.astype(np.complex256)),
    "words for numbers": with_leaf(lambda leaf: leaf.astype(str)),
    "a missing leaf": with_arrays(lambda arrays: dict([*arrays.items()][1:])),
    "an extra leaf": with_arrays(lambda arrays: {**arrays, "/more": Array(np.zeros(1, np.float32))}),
    "a kind that nobody asked for": with_arrays(lambda arrays: {**arrays, "odd/w": Array(np.zeros(1, np.float32))}),
    "an object": with_arrays(pickled),
    "no bytes": with_arrays(garbled(b"")),
    "an archive": with_arrays(garbled(b"PK\x03\x04")),
    "a wrong round": with_words("config", round=0),
    "no samples": with_words("metrics", num_examples=0),
    "not a number of samples": with_words("metrics", num_examples=float("nan")),
    "half a sample": with_words("metrics", num_examples=11.5),
    "one sample more than it has": with_words("metrics", num_examples=13),
    "samples that outweigh all others": with_words("metrics", num_examples=10**12),
    "a negative variance": with_variance(-1.0),
    "a variance just below zero": with_variance(-1e-30),
    "a loss that is not a number": with_words("metrics", loss=float("nan")),
    "a loss that no sum can hold": with_words("metrics", loss=1e308),
    "a loss that drowns all others": with_words("metrics", loss=1e30),
    "a loss below zero": with_words("metrics", loss=-1.0),
    "another order's nonce": with_words("config", nonce="0" * 32),
    "no nonce": with_words("config", nonce=""),
    "a record that nobody asked for": lambda reply, message: Message(
        RecordDict({**reply.content, "more": ArrayRecord({"w": Array(np.zeros(9, np.float32))})}), reply_to=message
    ),
    "an update that is far too long": with_leaf(lambda leaf: leaf + 1000),
    "a control that is far too long": with_leaf(lambda leaf: leaf + 1e6, "control"),
    "statistics that are far away": with_leaf(lambda leaf: leaf + 1e6, "statistics"),
    "a lack that never ends": lambda reply, message: Message(
        RecordDict({"config": ConfigRecord({**reply.content["config"], "lacks": ["atoms"], "lost": False})}),
        reply_to=message,
    ),
}


REPLAY = "a replay that names this round"
DEPLOYED = {  # the lies of a deployed node, and what the server's line says of each
    "nan": "is not finite",
    "inf": "is not finite",
    "nan in a control": "'control/",
    "a wrong shape": "instead of torch.float32",
    "a wrong type": "is torch.float64",
    "words for numbers": "it cannot be read",
    "a missing leaf": "is missing",
    "an extra leaf": "'params/more' is not asked for",
    "a kind that nobody asked for": "it has 'odd', which nobody asked for",
    "an object": "it cannot be read",
    "no bytes": "it cannot be read",
    "a record that nobody asked for": "it has a record 'more', which nobody asked for",
    "a wrong round": "it is about round",
    "another order's nonce": "it answers another order than this one",
    "no samples": "it says 0 samples",
    "samples that outweigh all others": "more than the",
    "a loss that is not a number": "its loss is nan",
    "a loss that drowns all others": "its loss is 1e+30, more than",
    "a loss below zero": "no loss is less than 0",
    "an update that is far too long": "has norm",
    REPLAY: "it answers another order than this one",
    "an error": "it failed: out of memory",
    "a control that is far too long": "its update of 'control' has norm",
    "a lack that never ends": "it lacks atoms although it was sent all",
}
HONEST = 3  # clients, the first; the others lie in every round


def lie_of(client: int, number: int, liars: int) -> str:
    """Returns the name of the lie that a hostile client tells in a round, each another one."""
    names = sorted(DEPLOYED, key=lambda name: name == REPLAY)  # it needs a round before it
    return names[number * liars + client - HONEST]


def lying(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Lets a deployed node do its part and then answer something else."""
    reply, number = call_next(message, context), round_of(message)
    client, clients = (int(context.node_config[name]) for name in ("partition-id", "num-partitions"))
    if client < HONEST or number is None:
        return reply
    if number == 0:  # kept for a replay
        context.state["arrays"], context.state["config"] = reply.content["arrays"], reply.content["config"]
    name = lie_of(client, number, clients - HONEST)
    if name == REPLAY:
        old = {**reply.content, **context.state}
        return with_words("config", round=number)(Message(RecordDict(old), reply_to=message), message)
    return LIES[name](reply, message) or reply
