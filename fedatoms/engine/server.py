"""The server's side of a round: who takes part, messages to clients, the mean of their uploads, the next model."""

from collections.abc import Callable, Collection, Mapping
from functools import cache, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from fedatoms.aggregation.base import Rule
from fedatoms.algorithms.base import Algorithm, Server, remembered
from fedatoms.core import trees
from fedatoms.core.lookup import some
from fedatoms.core.options import Group, Sampling
from fedatoms.core.randomness import generator
from fedatoms.core.trees import Memory, Params


class Kept(NamedTuple):
    """A client's upload, and its weight in a mean."""

    upload: Memory
    weight: float


class Total(NamedTuple):
    """A weighted sum of uploads, in float64 so that blocks and their order do not affect float32 results."""

    uploads: Memory
    weight: float
    each: Mapping[int, Kept] = {}  # by client, where a rule or an attack must see every upload: then nothing is summed


NOTHING_YET = Total({}, 0.0)


def keeps_uploads(rule: Rule, attack: object | None) -> bool:
    """Returns whether the uploads of a round are kept until its end: a rule compares them, or an attack does.

    >>> keeps_uploads(Rule(), None), keeps_uploads(Rule(), "an attack")
    (False, True)
    """
    return rule.combine is not None or attack is not None


def uploads_suffice(total: Total, fewest: int) -> bool:
    """Says whether uploads change the server's model: there are some, and not fewer than a rule needs.

    >>> uploads_suffice(NOTHING_YET, fewest=1)
    False
    """
    return bool(total.weight) and not 0 < len(total.each) < fewest


def sample_size(clients: int, fraction: float) -> int:
    """Returns how many clients are sampled for a round.

    >>> sample_size(100, fraction=0.1), sample_size(3, fraction=0.1)
    (10, 1)
    """
    return max(round(fraction * clients), 1)


@lru_cache(16)  # of 8 runs, this round and the next, which is looked ahead to: of 100,000 clients a draw takes 8 ms
def drawn(
    clients: int, fraction: float, failures: float, seed: int, t: int, sampling: Sampling = "fixed"
) -> tuple[list[int], list[int]]:
    """Returns the clients that are sampled in round ``t``, and those of them that report; both in order.

    >>> len(drawn(6, fraction=0.5, failures=0.0, seed=0, t=0)[0])
    3
    >>> [len(drawn(6, 0.5, 0.0, 0, t, "poisson")[0]) for t in range(4, 7)]
    [2, 4, 5]
    """
    draws = generator(seed, "clients", t)
    chosen = _some(clients, fraction, draws) if sampling == "fixed" else _by_themselves(clients, fraction, draws)
    reports = torch.rand(len(chosen), generator=generator(seed, "failures", t), device="cpu") >= failures
    return chosen.tolist(), chosen[reports].tolist()


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
    if wrong := trees.unlike(made.params, server.params):
        raise ValueError(
            f"the algorithm's aggregate returns {wrong}: the server's parameters keep names, shapes and types. Use "
            f"trees.apply."
        )
    if wrong := trees.unlike_trees(made.memory, server.memory):
        raise ValueError(
            f"the algorithm's aggregate remembers {wrong}: the server's memory has the trees of server_memory, with "
            f"their names, shapes and types. Let it return Server(params, server.memory), or the same trees anew."
        )
    return made


def memory_of_server(algorithm: Algorithm, params: Params) -> Memory:
    """Returns the server's memory before the first round.

    >>> memory_of_server(Algorithm(sends=("control",)), {})
    Traceback (most recent call last):
    ...
    ValueError: sends has 'control', which is no tree of the server's memory (nothing). Let server_memory make it.
    """
    memory = remembered("server_memory", algorithm.server_memory(params), params)
    if unknown := [kind for kind in algorithm.sends if kind not in memory]:
        raise ValueError(
            f"sends has {unknown[0]!r}, which is no tree of the server's memory ({some(list(memory)) or 'nothing'}). "
            f"Let server_memory make it."
        )
    return memory


def _some(clients: int, fraction: float, draws: torch.Generator) -> Tensor:
    return torch.randperm(clients, generator=draws, device="cpu")[: sample_size(clients, fraction)].sort().values


def _by_themselves(clients: int, fraction: float, draws: torch.Generator) -> Tensor:
    return (torch.rand(clients, generator=draws, dtype=torch.float64, device="cpu") < fraction).nonzero()[:, 0]


def start(params: Params, algorithm: Algorithm, parameters: Collection[str]) -> Server:
    """Sets the server up: a whole model, and the algorithm's memory over its trainable parameters."""
    return Server(params, memory_of_server(algorithm, trees.restrict(params, parameters)))


def broadcast(server: Server, algorithm: Algorithm, travelling: Collection[str]) -> Server:
    """Returns what an algorithm sees of the server on a client: what travels, and the memory that is sent."""
    memory = {name: trees.restrict(server.memory[name], travelling) for name in algorithm.sends}
    return Server(trees.restrict(server.params, travelling), memory)


def message(server: Server, algorithm: Algorithm, lacking: Collection[str], travelling: Collection[str]) -> Memory:
    """Returns the message to one client: the leaves that it lacks and the memory that is sent."""
    return {"params": trees.restrict(server.params, lacking), **broadcast(server, algorithm, travelling).memory}


def lacking(versions: Mapping[Group, int], held: Mapping[Group, int]) -> frozenset[Group]:
    """Returns the groups of which a client does not hold the server's version.

    >>> sorted(lacking({"atoms": 3, "coefficients": 1}, {"atoms": 2, "coefficients": 1}))
    ['atoms']
    """
    return frozenset(group for group, version in versions.items() if held.get(group) != version)


def gather(total: Total, uploads: Memory, weights: Tensor) -> Total:
    """Adds a block of uploads, with a leading client axis, to a total, which is used up.

    >>> total = gather(NOTHING_YET, {"params": {"w": torch.tensor([1.0, 4.0])}}, torch.tensor([2.0, 1.0]))
    >>> mean_of(total, like={"w": torch.tensor(0.0)})
    {'params': {'w': tensor(2.)}}
    """
    before = total.uploads if total.weight else {kind: trees.apply(_nothing, tree) for kind, tree in uploads.items()}
    device = next((leaf.device for tree in before.values() for leaf in tree.values()), weights.device)
    plus = _plus(weights.tolist(), trees.move(weights.double(), device))
    added = {kind: trees.apply(plus, before[kind], tree) for kind, tree in uploads.items()}
    return Total(added, total.weight + float(weights.double().sum()))


def mean_of(total: Total, like: Params) -> Memory:
    """Divides a total by its weight, in the types of ``like``; numbers in that of the first parameter."""
    kinds = {name: like[name].dtype for name in total.uploads["params"]}
    number = next(iter(kinds.values()), torch.float64)
    means = {kind: _divided(tree, total.weight) for kind, tree in total.uploads.items()}
    return {
        kind: {name: leaf.to(number if kind == trees.NUMBERS else like[name].dtype) for name, leaf in tree.items()}
        for kind, tree in means.items()
    }


def aggregate(server: Server, algorithm: Algorithm, mean: Memory, participation: float) -> Server:
    """Applies the mean of the uploads: the algorithm sees what travelled, the rest stays as it was.

    >>> from fedatoms.algorithms import fedavg
    >>> old = Server({"w": torch.tensor(0.0), "kept": torch.tensor(5.0)}, {})
    >>> aggregate(old, fedavg(), {"params": {"w": torch.tensor(2.0)}, "statistics": {}}, participation=0.1).params
    {'w': tensor(2.), 'kept': tensor(5.)}
    """
    travelling = mean["params"].keys()
    memory = {name: trees.restrict(tree, travelling) for name, tree in server.memory.items()}
    seen = Server(trees.restrict(server.params, travelling), memory)
    new = aggregated(algorithm, seen, mean, participation)
    params = {**server.params, **new.params, **mean["statistics"]}
    return Server(params, {name: {**tree, **new.memory[name]} for name, tree in server.memory.items()})


def trace_of(server: Server) -> Tensor:
    """Sums the size of all that a server holds, without waiting for the device: finite only if every number is.

    >>> trace_of(Server({"w": torch.tensor([1.0, 2.0]), "steps": torch.tensor(3)}, {"h": {"w": torch.tensor(0.5)}}))
    tensor(3.5000)
    """
    leaves = [leaf for leaf in _leaves(server).values() if leaf.is_floating_point()]
    return torch.stack(torch._foreach_norm(leaves, 1)).sum()  # a few kernels for all leaves


def not_finite(before: Server, after: Server, trace: Tensor) -> str | None:
    """Names a tensor that a round has made not finite, if any; ``trace`` is that of the server after the round.

    Buffers that never were finite, such as a mask of -inf, are ignored.

    >>> before, after = (Server({"w": torch.tensor(w), "mask": torch.tensor(-torch.inf)}, {}) for w in (0.0, torch.nan))
    >>> not_finite(before, before, trace_of(before))
    >>> not_finite(before, after, trace_of(after))
    'w'
    """
    if torch.isfinite(trace):
        return None
    old = _leaves(before)
    return next((name for name, leaf in _leaves(after).items() if _broke(old[name], leaf)), None)


def check_finite(before: Server, after: Server, trace: Tensor, t: int) -> None:
    """Refuses a server that round ``t`` has made not finite, although its clients' models were finite."""
    if what := not_finite(before, after, trace):
        raise FloatingPointError(
            f"round {t + 1}: the server's '{what}' is not finite, although its clients' models were. Lower lr, set "
            f"clip=10, or use another algorithm or strength."
        )


def _leaves(server: Server) -> Params:
    memory = {f"{kind}/{name}": leaf for kind, tree in server.memory.items() for name, leaf in tree.items()}
    return {**server.params, **memory}


def _broke(old: Tensor, new: Tensor) -> bool:
    return new.is_floating_point() and not bool((torch.isfinite(new) | ~torch.isfinite(old)).all())


def _divided(tree: Params, weight: float) -> Params:
    return dict(zip(tree, torch._foreach_div(list(tree.values()), weight), strict=True)) if tree else {}


def _plus(weights: list[float], on_device: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    def plus(total: Tensor, leaf: Tensor) -> Tensor:
        if len(weights) == 1:
            return total.add_(leaf[0], alpha=weights[0])  # one pass, without a float64 copy of the leaf
        if leaf.is_cuda and leaf.is_floating_point() and (add_weighted := _kernel()) is not None:
            return add_weighted(total, on_device, leaf)
        return torch.add(total, torch.tensordot(on_device, leaf.double(), dims=1))

    return plus


@cache
def _kernel() -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    try:
        from fedatoms.engine.gpu.triton_sums import add_weighted
    except ImportError:  # no Triton
        return None
    return add_weighted


def _nothing(leaf: Tensor) -> Tensor:
    return leaf.new_zeros(leaf.shape[1:], dtype=torch.float64)
