"""What an algorithm is: a value with three pure functions and the memory it keeps; every default is FedAvg's.

What its functions return keeps names, shapes and types, or is refused: ``corrected`` and ``reported`` call them.
"""

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from fedatoms.core import trees
from fedatoms.core.lookup import shown, some
from fedatoms.core.options import Weighting, check_range
from fedatoms.core.trees import Memory, Params


class Server(NamedTuple):
    """What the server holds, or the part of it that is broadcast to clients."""

    params: Params
    memory: Memory


class Work(NamedTuple):
    """What a client did in a round: where it started, its real steps, and how far that many unit gradients move.

    That has a meaning only for an algorithm that ``measures``; for others it is empty, and its unit 1.

    >>> Work(start={}, steps=torch.tensor(3), displacement={}).units
    tensor(1.)
    """

    start: Params  # the server's parameters, except those that the client keeps
    steps: Tensor
    displacement: Params  # a number each: eta_t * sum over j <= K of (1 - b^j) / (1 - b), with momentum b
    units: Tensor = torch.ones(())  # the displacement at the rate 1: the steps, without momentum


class Seen(NamedTuple):
    """What a model makes of a batch: a row for each sample.

    >>> Seen(logits=Tensor(2, 10), features=Tensor(2, 64))._fields
    ('logits', 'features')
    """

    logits: Tensor
    features: Tensor  # the inputs of the head


STATISTICS = "statistics"  # the tree of an upload that the engine adds
See = Callable[[Params], Seen]
Penalty = Callable[[Seen, See, Server, Memory], Tensor]
Remember = Callable[[Params], Memory]
Correct = Callable[[Params, Params, Server, Memory], Params]
Report = Callable[[Params, Server, Memory, Work], tuple[Memory, Memory]]
Aggregate = Callable[[Server, Memory, float], Server]


def nothing(params: Params) -> Memory:
    """Keeps no memory.

    >>> nothing({})
    {}
    """
    return {}


def as_it_is(gradient: Params, params: Params, server: Server, memory: Memory) -> Params:
    """Returns the gradient unchanged.

    >>> as_it_is({}, {}, Server({}, {}), {})
    {}
    """
    return gradient


def proximal(pull: float) -> Correct:
    """Returns the correction that adds ``pull / 2 * |w - w^t|^2`` to a loss: a pull towards the received parameters.

    >>> from torch import tensor
    >>> broadcast = Server({"w": tensor(1.0)}, {})
    >>> proximal(0.5)({"w": tensor(1.0)}, {"w": tensor(3.0)}, broadcast, {})
    {'w': tensor(2.)}
    """

    def correct(gradient: Params, params: Params, server: Server, memory: Memory) -> Params:
        return trees.apply(lambda g, w, start: g + pull * (w - start), gradient, params, server.params)

    return correct


def upload_params(params: Params, server: Server, memory: Memory, work: Work) -> tuple[Memory, Memory]:
    """Uploads the trained parameters and keeps the memory as it was.

    >>> upload_params({}, Server({}, {}), {}, Work({}, Tensor(), {}))
    ({'params': {}}, {})
    """
    return {"params": params}, memory


def replace_params(server: Server, mean: Memory, participation: float) -> Server:
    """Replaces the server's parameters by the mean of the clients'.

    >>> replace_params(Server({}, {}), {"params": {}}, participation=0.1)
    Server(params={}, memory={})
    """
    return Server(mean["params"], server.memory)


class Strength(NamedTuple):
    """An algorithm's own parameter: the argument of a factory that sets it, and its value."""

    factory: Callable[..., object]
    argument: str
    value: float

    def told(self, value: Tensor) -> "Algorithm":
        """Returns the algorithm with the strength of a client's run, where several runs train in one block."""
        made = self.factory(**{self.argument: value})
        assert isinstance(made, Algorithm), "checked when the algorithm was made"
        return made


class Algorithm(NamedTuple):
    """A federated algorithm over the parameters that travel.

    ``aggregate`` sees only the weighted mean of the uploads and the share of clients that took part, so uploads can be
    summed in blocks, by another framework, or under secure aggregation. An upload has "params", further trees over the
    parameters, and scalars of any name in its tree "numbers". A ``penalty`` gets what the trained model makes of a
    batch, and a function that shows, without a gradient, what it would be with other parameters, as the received ones.
    """

    server_memory: Remember = nothing
    client_memory: Remember = nothing
    correct: Correct = as_it_is  # gradient, parameters, broadcast, own memory -> gradient; in each local step
    report: Report = upload_params  # trained parameters, broadcast, own memory, work -> upload, memory to keep
    aggregate: Aggregate = replace_params  # server, mean of the uploads, participation -> server
    weighting: Weighting = "samples"
    decay: float | Tensor = 0.0  # extra weight decay, after the clip
    sends: tuple[str, ...] = ()  # server memory that is broadcast too, and counted
    measures: bool = False  # ``report`` reads the displacement or its units, which some optimisers do not have
    penalty: Penalty | None = None  # seen, see, broadcast, own memory -> a term of each sample's loss
    uploads_models: bool = True  # "params" of an upload are a trained model, so that their mean can be scored
    strength: Strength | None = None  # of one that the table made: what ``--strength`` sets


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
    if wrong := trees.unlike(made, gradient):
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
    if keeps and (wrong := trees.unlike_trees(kept, memory)):
        raise ValueError(
            f"the algorithm's report keeps {wrong}: a client's memory has the trees of client_memory, with their "
            f"names, shapes and types. Let it return upload, memory."
        )
    return check_upload(upload, work.start), kept


def memory_of_client(algorithm: Algorithm, params: Params) -> Memory:
    """Returns the memory of a client that never took part.

    >>> memory_of_client(Algorithm(client_memory=lambda params: params), {"w": Tensor()})
    Traceback (most recent call last):
    ...
    ValueError: the algorithm's client_memory returns as its tree 'w' Tensor instead of a tree: a memory has named
    trees with a tensor for each parameter. Let it return for example {"control": trees.zeros_like(params)}.
    """
    return remembered("client_memory", algorithm.client_memory(params), params)


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
    if wrong := trees.unlike(upload["params"], params):
        raise ValueError(
            f"report uploads {wrong}: params of an upload have the names, shapes and types of the parameters that "
            f"travel. Put scalars of other names into the tree {trees.NUMBERS!r}."
        )
    for kind, tree in upload.items():
        if kind != "params":
            _check_further(kind, tree, params)
    return upload


def remembered(function: str, made: Memory, params: Params) -> Memory:
    """Returns a memory, if it is named trees over the parameters, none of which has a name that is taken."""
    if wrong := trees.misnamed_trees(made, params):
        raise ValueError(
            f"the algorithm's {function} returns {wrong}: a memory has named trees with a tensor for each parameter. "
            f'Let it return for example {{"control": trees.zeros_like(params)}}.'
        )
    if taken := [kind for kind in made if kind in ("params", STATISTICS, trees.NUMBERS) or "/" in kind]:
        raise ValueError(
            f"the algorithm's {function} calls a tree {taken[0]!r}: params, {STATISTICS}, {trees.NUMBERS} and paths "
            f"are taken. Use another name."
        )
    return made


def check_terms(terms: object, samples: int) -> Tensor:
    """Returns what a penalty adds to the losses of a batch, if it is a number for each sample: padding counts nothing.

    >>> check_terms(torch.tensor(1.0), samples=4)
    Traceback (most recent call last):
    ...
    ValueError: the algorithm's penalty is of shape () for 4 samples: it must have one number per sample, (4,). Use for
    example (seen.logits - other.logits).square().mean(1).
    """
    if isinstance(terms, Tensor) and terms.shape == (samples,):
        return terms
    got = f"shape {tuple(terms.shape)}" if isinstance(terms, Tensor) else f"type {type(terms).__name__}"
    raise ValueError(
        f"the algorithm's penalty is of {got} for {samples} samples: it must have one number per sample, ({samples},). "
        f"Use for example (seen.logits - other.logits).square().mean(1)."
    )


def require(value: float | Tensor, name: str, *, share: bool = False, or_zero: bool = False) -> None:
    """Refuses a strength that is not positive or too large; a ``share`` is below 1.

    >>> require(-1.0, "a")
    Traceback (most recent call last):
    ...
    ValueError: a=-1.0 is not a positive number. Use None, or leave it out, for its default.
    """
    if isinstance(value, Tensor) and _is_told(value):
        return
    check_range(f"method {'share' if share else 'strength'}{' or 0' * or_zero}", cast(float, value), name)


def _is_told(value: Tensor) -> bool:
    """Says whether a strength is one that a transform tells each client, checked in its run, or nan in its place."""
    return is_functorch_wrapped_tensor(value) or bool(value.isnan())


def _check_further(kind: str, tree: object, params: Params) -> None:
    """Refuses a further tree of an upload whose leaves are no parameters'; their shapes are free."""
    if kind == STATISTICS:
        raise ValueError(f"the upload has a tree {kind!r}, which the engine adds itself. Use another name.")
    if not isinstance(tree, dict):
        raise ValueError(
            f"the upload's tree {kind!r} is {type(tree).__name__}, not a tree. Name leaves as the parameters, or put "
            f"scalars of other names into the tree {trees.NUMBERS!r}."
        )
    if kind == trees.NUMBERS:
        return _check_numbers(tree)
    if odd := sorted(tree.keys() - params.keys()):
        raise ValueError(
            f"the upload's tree {kind!r} has {odd[0]!r}, which is no parameter that travels. Name leaves as the "
            f"parameters, or put scalars of other names into the tree {trees.NUMBERS!r}."
        )
    if wrong := trees.no_tree(tree):
        raise ValueError(f"the upload's tree {kind!r} has {wrong}. Use trees.apply.")
    return None


def _check_numbers(tree: Params) -> None:
    for name, leaf in tree.items():
        if not isinstance(leaf, Tensor) or leaf.shape:
            got = f"of shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else shown(leaf)
            use = "leaf.sum()" if isinstance(leaf, Tensor) else f"torch.tensor({leaf})"
            rule = f"numbers are tensors without dimensions. Use for example {use}."
            raise ValueError(f"the upload's number {name!r} is {got}: {rule}")


def _kinds(upload: object) -> str:
    return f"trees {some(list(upload)) or 'without names'}" if isinstance(upload, dict) else type(upload).__name__
