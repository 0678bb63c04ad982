"""An algorithm's functions as the engine calls them: what they return keeps names, shapes and types, or is refused."""

from torch import Tensor

from fedatoms.algorithms.base import Algorithm, Server, Work
from fedatoms.core.lookup import shown, some
from fedatoms.core.returned import misnamed_trees, no_tree, unlike, unlike_trees
from fedatoms.core.trees import NUMBERS, Memory, Params

STATISTICS = "statistics"  # the tree of an upload that the engine adds


def corrected(algorithm: Algorithm, gradient: Params, params: Params, server: Server, memory: Memory) -> Params:
    """Returns what an algorithm makes of a step's gradient.

    >>> import torch
    >>> sums = Algorithm(correct=lambda gradient, *others: {name: g.sum() for name, g in gradient.items()})
    >>> corrected(sums, {"w": torch.ones(2)}, {"w": torch.ones(2)}, Server({}, {}), {})
    Traceback (most recent call last):
    ...
    ValueError: the algorithm's correct returns 'w' of shape () for one of shape (2,): a correction keeps names, shapes
    and types. Use trees.apply.
    """
    made = algorithm.correct(gradient, params, server, memory)
    if wrong := unlike(made, gradient):
        raise ValueError(
            f"the algorithm's correct returns {wrong}: a correction keeps names, shapes and types. Use trees.apply."
        )
    return made


def reported(
    algorithm: Algorithm, params: Params, server: Server, memory: Memory, work: Work, *, keeps: bool = True
) -> tuple[Memory, Memory]:
    """Returns what a client uploads and what it keeps; without ``keeps`` nothing of its memory is the algorithm's.

    >>> broken = Algorithm(report=lambda params, *others: {"params": params})
    >>> reported(broken, {}, Server({}, {}), {}, Work({}, Tensor(), {}))
    Traceback (most recent call last):
    ...
    ValueError: the algorithm's report returns dict, not (upload, memory). Let it return {"params": params}, memory.
    """
    made: object = algorithm.report(params, server, memory, work)
    if not isinstance(made, tuple) or len(made) != 2:
        got = f"{len(made)} things" if isinstance(made, tuple) else type(made).__name__
        raise ValueError(
            f'the algorithm\'s report returns {got}, not (upload, memory). Let it return {{"params": params}}, memory.'
        )
    upload, kept = made
    if keeps and (wrong := unlike_trees(kept, memory)):
        raise ValueError(
            f"the algorithm's report keeps {wrong}: a client's memory has the trees of client_memory, with their "
            f"names, shapes and types. Let it return upload, memory."
        )
    return check_upload(upload, work.start), kept


def aggregated(algorithm: Algorithm, server: Server, mean: Memory, participation: float) -> Server:
    """Returns what an algorithm makes of the mean of the uploads.

    >>> broken = Algorithm(aggregate=lambda server, mean, participation: mean["params"])
    >>> aggregated(broken, Server({}, {}), {"params": {}}, 0.1)
    Traceback (most recent call last):
    ...
    ValueError: the algorithm's aggregate returns dict, not a Server. Let it return Server(params, memory).
    """
    made: object = algorithm.aggregate(server, mean, participation)
    if not isinstance(made, Server):
        raise ValueError(
            f"the algorithm's aggregate returns {type(made).__name__}, not a Server. Let it return "
            f"Server(params, memory)."
        )
    if wrong := unlike(made.params, server.params):
        raise ValueError(
            f"the algorithm's aggregate returns {wrong}: the server's parameters keep names, shapes and types. Use "
            f"trees.apply."
        )
    if wrong := unlike_trees(made.memory, server.memory):
        raise ValueError(
            f"the algorithm's aggregate remembers {wrong}: the server's memory has the trees of server_memory, with "
            f"their names, shapes and types. Let it return Server(params, server.memory), or the same trees anew."
        )
    return made


def memory_of_client(algorithm: Algorithm, params: Params) -> Memory:
    """Returns the memory of a client that never took part.

    >>> memory_of_client(Algorithm(client_memory=lambda params: params), {"w": Tensor()})
    Traceback (most recent call last):
    ...
    ValueError: the algorithm's client_memory returns as its tree 'w' Tensor instead of a tree: a memory has named
    trees with a tensor for each parameter. Let it return for example {"control": trees.zeros_like(params)}.
    """
    return _remembered("client_memory", algorithm.client_memory(params), params)


def memory_of_server(algorithm: Algorithm, params: Params) -> Memory:
    """Returns the server's memory before the first round.

    >>> memory_of_server(Algorithm(sends=("control",)), {})
    Traceback (most recent call last):
    ...
    ValueError: sends has 'control', which is no tree of the server's memory (nothing). Let server_memory make it.
    """
    memory = _remembered("server_memory", algorithm.server_memory(params), params)
    if unknown := [kind for kind in algorithm.sends if kind not in memory]:
        raise ValueError(
            f"sends has {unknown[0]!r}, which is no tree of the server's memory ({some(list(memory)) or 'nothing'}). "
            f"Let server_memory make it."
        )
    return memory


def check_upload(upload: object, params: Params) -> Memory:
    """Returns what a client uploads, if it is trees over the parameters, and numbers that are scalars.

    >>> check_upload({"params": {}, "numbers": {"a": 3.0}}, {})
    Traceback (most recent call last):
    ...
    ValueError: the upload's number 'a' is 3.0: numbers are tensors without dimensions. Use for example
    torch.tensor(3.0).
    """
    if not isinstance(upload, dict) or not isinstance(upload.get("params"), dict):
        raise ValueError(f'report uploads {_kinds(upload)}. Let it return {{"params": params}}, memory.')
    if wrong := unlike(upload["params"], params):
        raise ValueError(
            f"report uploads {wrong}: params of an upload have the names, shapes and types of the parameters that "
            f"travel. Put scalars of other names into the tree {NUMBERS!r}."
        )
    for kind, tree in upload.items():
        if kind != "params":
            _check_further(kind, tree, params)
    return upload


def _check_further(kind: str, tree: object, params: Params) -> None:
    """Refuses a further tree of an upload whose leaves are no parameters'; their shapes are free."""
    if kind == STATISTICS:
        raise ValueError(f"the upload has a tree {kind!r}, which the engine adds itself. Use another name.")
    if not isinstance(tree, dict):
        raise ValueError(
            f"the upload's tree {kind!r} is {type(tree).__name__}, not a tree. Name leaves as the parameters, or put "
            f"scalars of other names into the tree {NUMBERS!r}."
        )
    if kind == NUMBERS:
        return _check_numbers(tree)
    if odd := sorted(tree.keys() - params.keys()):
        raise ValueError(
            f"the upload's tree {kind!r} has {odd[0]!r}, which is no parameter that travels. Name leaves as the "
            f"parameters, or put scalars of other names into the tree {NUMBERS!r}."
        )
    if wrong := no_tree(tree):
        raise ValueError(f"the upload's tree {kind!r} has {wrong}. Use trees.apply.")
    return None


def _check_numbers(tree: Params) -> None:
    for name, leaf in tree.items():
        if not isinstance(leaf, Tensor) or leaf.shape:
            got = f"of shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else shown(leaf)
            use = "leaf.sum()" if isinstance(leaf, Tensor) else f"torch.tensor({leaf})"
            rule = f"numbers are tensors without dimensions. Use for example {use}."
            raise ValueError(f"the upload's number {name!r} is {got}: {rule}")


def _remembered(function: str, made: Memory, params: Params) -> Memory:
    if wrong := misnamed_trees(made, params):
        raise ValueError(
            f"the algorithm's {function} returns {wrong}: a memory has named trees with a tensor for each parameter. "
            f'Let it return for example {{"control": trees.zeros_like(params)}}.'
        )
    if taken := [kind for kind in made if kind in ("params", STATISTICS, NUMBERS) or "/" in kind]:
        raise ValueError(
            f"the algorithm's {function} calls a tree {taken[0]!r}: params, {STATISTICS}, {NUMBERS} and paths are "
            f"taken. Use another name."
        )
    return made


def _kinds(upload: object) -> str:
    return f"trees {some(list(upload)) or 'without names'}" if isinstance(upload, dict) else type(upload).__name__
