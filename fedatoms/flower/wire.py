"""What crosses between server and nodes: trees of tensors as Flower's arrays, and a few words about them.

Flower's arrays are NumPy's own format, read with pickle forbidden.
"""

import json
from collections.abc import Mapping
from typing import NamedTuple, cast

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedatoms.core.options import GROUPS, Group
from fedatoms.core.trees import Memory
from fedatoms.engine.evaluate import Score

Words = dict[str, int | float | str | bytes | bool | list[int] | list[float] | list[str] | list[bytes] | list[bool]]
Numbers = dict[str, int | float | list[int] | list[float]]
MODEL = "params"
UNSAID = -1  # samples of a node that does not say how many it has, as an older app, or says no whole number


class Order(NamedTuple):
    """What a node is asked: to do its part of a round, or to score its model.

    ``base`` is the state that it starts from: the one it had after the last round in which its answer was taken in, 0
    for none. ``versions`` are the server's; groups of which ``down`` has nothing are held by the node already.
    """

    run: str
    round: int
    base: int
    versions: Mapping[Group, int]
    down: Memory
    last_epochs: int = 0  # of a last local pass before scoring


class Answer(NamedTuple):
    """A node's part of a round."""

    round: int
    samples: int
    loss: float
    upload: Memory


class Tested(NamedTuple):
    """How well a node's model does on so many test images of its own."""

    samples: int
    score: Score


class Lacks(NamedTuple):
    """A node that cannot do its part: it does not hold what it was not sent, or its own state is ``lost``."""

    round: int
    groups: list[str]
    lost: bool


class Place(NamedTuple):
    """Which client a node is, and of which experiment: one with another trajectory has another app.

    Its numbers of samples, to train on and to be tested on, are the most that its answers may weigh.
    """

    client: int
    trajectory: str
    samples: int
    tests: int


def pack(memory: Memory) -> ArrayRecord:
    """Writes trees as one record, with paths for keys; those of the model, the most, begin with the slash.

    >>> list(pack({"params": {"w": torch.zeros(2)}, "control": {"w": torch.zeros(2)}}))
    ['/w', 'control/w']
    """
    return ArrayRecord(
        {
            f"{kind if kind != MODEL else ''}/{name}": Array(leaf.detach().cpu().contiguous().numpy())
            for kind, tree in memory.items()
            for name, leaf in tree.items()
        }
    )


def unpack(record: ArrayRecord) -> Memory:
    """Inverts ``pack``; a kind without leaves is not there.

    >>> unpack(pack({"params": {"a.b": torch.ones(1)}, "statistics": {}}))
    {'params': {'a.b': tensor([1.])}}
    """
    memory: Memory = {}
    for key, array in record.items():
        kind, _, name = key.partition("/")
        memory.setdefault(kind or MODEL, {})[name] = torch.from_numpy(array.numpy().copy())
    return memory


def write_order(order: Order) -> RecordDict:
    """Makes the content of a message to a node; versions go in the order of ``GROUPS``, whose names both sides know.

    States and versions are told as ages, which do not grow with the rounds.
    """
    now = order.round
    ages = [now - order.versions[group] if group in order.versions else None for group in GROUPS]
    words = json.dumps([order.run, now, now - order.base, ages, order.last_epochs], separators=(",", ":"))
    return RecordDict({"arrays": pack(order.down), "config": ConfigRecord({"order": words})})


def read_order(content: RecordDict) -> Order:
    """Inverts ``write_order``.

    >>> order = Order("run", 3, 2, {"atoms": 3, "rest": 1}, {"params": {"w": torch.ones(1)}})
    >>> read_order(write_order(order)) == order
    True
    """
    run, now, base, ages, last_epochs = json.loads(str(content.config_records["config"]["order"]))
    versions = {group: now - age for group, age in zip(GROUPS, ages, strict=True) if age is not None}
    return Order(run, now, now - base, versions, unpack(content.array_records["arrays"]), last_epochs)


def write_answer(answer: Answer) -> RecordDict:
    """Makes the content of a node's reply, in the form that Flower's own strategies read too."""
    metrics = MetricRecord({"num-examples": answer.samples, "loss": answer.loss})
    return RecordDict(
        {"arrays": pack(answer.upload), "metrics": metrics, "config": ConfigRecord({"round": answer.round})}
    )


def write_score(tested: Tested) -> RecordDict:
    """Makes the content of a node's reply to a question for its score."""
    score = tested.score
    metrics: Numbers = {"num-examples": tested.samples, "accuracy": score.accuracy, "loss": score.loss}
    return RecordDict({"metrics": MetricRecord(metrics)})


def write_lacks(lacks: Lacks) -> RecordDict:
    """Makes the content of the reply of a node that must be sent more."""
    words: Words = {"round": lacks.round, "lacks": lacks.groups, "lost": lacks.lost}
    return RecordDict({"config": ConfigRecord(words)})


def write_place(place: Place) -> RecordDict:
    """Makes the content of a node's reply to the question who it is."""
    words: Words = {"partition-id": place.client, "trajectory": place.trajectory}
    counts: Words = {"num-examples": place.samples, "num-tests": place.tests}
    return RecordDict({"config": ConfigRecord({**words, **counts})})


def read_place(content: RecordDict) -> Place:
    """Inverts ``write_place``.

    >>> read_place(write_place(Place(3, "0a1b", 50, 10)))
    Place(client=3, trajectory='0a1b', samples=50, tests=10)
    """
    words = content.config_records["config"]
    client, trajectory = int(str(words["partition-id"])), str(words["trajectory"])
    said = [words.get(name) for name in ("num-examples", "num-tests")]
    samples, tests = (count if isinstance(count, int) and not isinstance(count, bool) else UNSAID for count in said)
    return Place(client, trajectory, samples, tests)


def read_answer(content: RecordDict) -> Answer | Lacks:
    """Inverts ``write_answer`` and ``write_lacks``.

    >>> read_answer(write_answer(Answer(3, 50, 0.5, {"params": {"w": torch.ones(1)}})))
    Answer(round=3, samples=50, loss=0.5, upload={'params': {'w': tensor([1.])}})
    >>> read_answer(write_lacks(Lacks(3, ["atoms"], lost=False)))
    Lacks(round=3, groups=['atoms'], lost=False)
    """
    if (lacks := _read_lacks(content)) is not None:
        return lacks
    metrics, number = content.metric_records["metrics"], int(str(content.config_records["config"]["round"]))
    samples, loss = int(str(metrics["num-examples"])), float(str(metrics["loss"]))  # what a node says may be anything
    return Answer(number, samples, loss, unpack(content.array_records["arrays"]))


def read_score(content: RecordDict) -> Tested | Lacks:
    """Inverts ``write_score`` and ``write_lacks``.

    >>> read_score(write_score(Tested(10, Score(50.0, 0.5)))).samples
    10
    """
    if (lacks := _read_lacks(content)) is not None:
        return lacks
    metrics = content.metric_records["metrics"]
    accuracy, loss = (float(str(metrics[name])) for name in ("accuracy", "loss"))
    return Tested(int(str(metrics["num-examples"])), Score(accuracy, loss))


def _read_lacks(content: RecordDict) -> Lacks | None:
    words = content.config_records.get("config")
    if words is None or "lacks" not in words:
        return None
    groups = [str(group) for group in cast(list[str], words["lacks"])]
    return Lacks(int(str(words["round"])), groups, words["lost"] is True)


class Size(NamedTuple):
    """Bytes of a message: those of its tensors, which the ledger counts, and all others (keys, headers, words)."""

    arrays: int
    rest: int


def size_of(content: RecordDict) -> Size:
    """Weighs a message as Flower's ``message_size_mod`` does.

    >>> size_of(RecordDict({"arrays": pack({"params": {"w": torch.zeros(2)}})})).arrays
    8
    """
    arrays = sum(_bytes_of(array) for record in content.array_records.values() for array in record.values())
    return Size(arrays, sum(record.count_bytes() for record in content.values()) - arrays)


def _bytes_of(array: Array) -> int:
    try:
        return array.numpy().nbytes
    except Exception:  # it only says that it is an array: all of it came for nothing
        return len(array.data)
