"""Messages between server and nodes: trees of tensors as Flower's arrays, with a few fields beside them.

Flower's arrays are NumPy's own format, read with pickle forbidden.
"""

import json
from collections.abc import Mapping
from typing import NamedTuple, cast

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from fedatoms.core.options import GROUPS, Group
from fedatoms.core.trees import Memory

Words = dict[str, int | float | str | bytes | bool | list[int] | list[float] | list[str] | list[bytes] | list[bool]]
Numbers = dict[str, int | float | list[int] | list[float]]
MODEL = "params"
SHAPE = "-shape"  # after the name of a mean that is more than one number
NOT_GIVEN = -1  # samples of a node that reports no integer, as one with an older app


class Order(NamedTuple):
    """What a node is asked to do: its part of a round, or to score its model.

    ``base`` is the state that it starts from: the one after its last accepted answer, 0 for none. ``versions`` are the
    server's; groups that are not in ``down`` are held by the node already.
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
    sent: Memory | None = None  # the upload as it came, if it was in few bits


class Tested(NamedTuple):
    """What a node's own model scores, and the number of its own test images.

    ``numbers`` are means over these images by name: the loss, and of each metric what a mean over nodes is made of.
    """

    samples: int
    numbers: Mapping[str, Tensor]


class Missing(NamedTuple):
    """The reply of a node that cannot do its part: groups that it neither holds nor was sent, or a ``lost`` state."""

    round: int
    groups: list[str]
    lost: bool


class NodeInfo(NamedTuple):
    """Which client a node is, and of which experiment: a node with another trajectory runs another app.

    Its numbers of training and test samples are the largest weights that its answers may have.
    """

    client: int
    trajectory: str
    samples: int
    tests: int


class Size(NamedTuple):
    """Bytes of a message: those of its tensors, which the ledger counts, and all others (keys, headers, fields)."""

    arrays: int
    rest: int


def pack(memory: Memory) -> ArrayRecord:
    """Writes trees as one record, with paths as keys; those of the model, which are most, begin with the slash.

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
        memory.setdefault(kind or MODEL, {})[name] = torch.tensor(array.numpy())  # see core.files.read_file
    return memory


def write_order(order: Order) -> RecordDict:
    """Makes the content of a message to a node; versions go in the order of ``GROUPS``, whose names both sides know.

    States and versions are written as ages, which do not grow with the rounds.
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
    """Makes the content of a node's reply with its score."""
    metrics: Numbers = {"num-examples": tested.samples}
    for name, mean in tested.numbers.items():
        metrics[name] = mean.flatten().tolist() if mean.dim() else float(mean)
        if mean.dim():
            metrics[f"{name}{SHAPE}"] = list(mean.shape)
    return RecordDict({"metrics": MetricRecord(metrics)})


def write_missing(missing: Missing) -> RecordDict:
    """Makes the content of the reply of a node that lacks something."""
    words: Words = {"round": missing.round, "lacks": missing.groups, "lost": missing.lost}
    return RecordDict({"config": ConfigRecord(words)})


def write_node_info(info: NodeInfo) -> RecordDict:
    """Makes the content of a node's reply when it joins."""
    words: Words = {"partition-id": info.client, "trajectory": info.trajectory}
    counts: Words = {"num-examples": info.samples, "num-tests": info.tests}
    return RecordDict({"config": ConfigRecord({**words, **counts})})


def read_node_info(content: RecordDict) -> NodeInfo:
    """Inverts ``write_node_info``.

    >>> read_node_info(write_node_info(NodeInfo(3, "0a1b", 50, 10)))
    NodeInfo(client=3, trajectory='0a1b', samples=50, tests=10)
    """
    words = content.config_records["config"]
    client, trajectory = int(str(words["partition-id"])), str(words["trajectory"])
    counts = [words.get(name) for name in ("num-examples", "num-tests")]
    samples, tests = (each if isinstance(each, int) and not isinstance(each, bool) else NOT_GIVEN for each in counts)
    return NodeInfo(client, trajectory, samples, tests)


def read_answer(content: RecordDict) -> Answer | Missing:
    """Inverts ``write_answer`` and ``write_missing``.

    >>> read_answer(write_answer(Answer(3, 50, 0.5, {"params": {"w": torch.ones(1)}})))
    Answer(round=3, samples=50, loss=0.5, upload={'params': {'w': tensor([1.])}}, sent=None)
    >>> read_answer(write_missing(Missing(3, ["atoms"], lost=False)))
    Missing(round=3, groups=['atoms'], lost=False)
    """
    if (missing := _read_missing(content)) is not None:
        return missing
    metrics, number = content.metric_records["metrics"], int(str(content.config_records["config"]["round"]))
    samples, loss = int(str(metrics["num-examples"])), float(str(metrics["loss"]))  # a node may send any value
    return Answer(number, samples, loss, unpack(content.array_records["arrays"]))


def read_score(content: RecordDict) -> Tested | Missing:
    """Inverts ``write_score`` and ``write_missing``.

    >>> means = {"accuracy": torch.tensor(50.0), "mIoU": torch.ones(2, 2)}
    >>> read_score(write_score(Tested(10, means))).numbers["mIoU"].shape
    torch.Size([2, 2])
    """
    if (missing := _read_missing(content)) is not None:
        return missing
    metrics = content.metric_records["metrics"]
    names = [name for name in metrics if name != "num-examples" and not name.endswith(SHAPE)]
    numbers = {name: torch.tensor(metrics[name], dtype=torch.float64) for name in names}
    shaped = {name: each.reshape(_shape(metrics, name)) if each.dim() else each for name, each in numbers.items()}
    return Tested(int(str(metrics["num-examples"])), shaped)


def size_of(content: RecordDict) -> Size:
    """Counts the bytes of a message as Flower's ``message_size_mod`` does.

    >>> size_of(RecordDict({"arrays": pack({"params": {"w": torch.zeros(2)}})})).arrays
    8
    """
    arrays = sum(_bytes_of(array) for record in content.array_records.values() for array in record.values())
    return Size(arrays, sum(record.count_bytes() for record in content.values()) - arrays)


def _shape(metrics: MetricRecord, name: str) -> list[int]:
    return [int(size) for size in cast(list[int], metrics[f"{name}{SHAPE}"])]


def _read_missing(content: RecordDict) -> Missing | None:
    words = content.config_records.get("config")
    if words is None or "lacks" not in words:
        return None
    groups = [str(group) for group in cast(list[str], words["lacks"])]
    return Missing(int(str(words["round"])), groups, words["lost"] is True)


def _bytes_of(array: Array) -> int:
    try:
        return array.numpy().nbytes
    except Exception:  # a malformed array: count what was received
        return len(array.data)
