"""What an algorithm is: a value with three pure functions and the memory it keeps; every default is FedAvg's."""

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from fedatoms.core import trees
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
