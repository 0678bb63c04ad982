"""The laws of a federated algorithm."""

import copy
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

import torch
from torch import Tensor

from fedatoms.algorithms.base import Algorithm, Server, Work
from fedatoms.core import trees
from fedatoms.core.options import Group
from fedatoms.core.trees import Memory, Params
from fedatoms.engine.exchange import FAST, SLOW, Exchange, every_round, fast_slow
from fedatoms.engine.loop import train
from fedatoms.engine.spec import Simulation
from fedatoms.nn.parameter_groups import groups
from fedatoms.testing import laws
from fedatoms.testing.small import TRAINING, WHOLE, check_same, clients, network, simulation, tensors

RESERVED = ("params", "statistics", trees.NUMBERS)  # what messages have
PERSONAL_HEAD = Exchange(every_round(), personal=frozenset({"head"}))
FAST_AND_SLOW = Exchange(fast_slow(FAST, SLOW, 2), slow_local="keep")
FROZEN_SLOW = Exchange(fast_slow(FAST, SLOW, 2), slow_local="freeze")


def check_algorithm(factory: Callable[[], Algorithm]) -> None:
    """Checks that an algorithm keeps the laws of federated training, on a small built-in federation, in seconds.

    ``factory`` is called without arguments: ``functools.partial(fedprox, mu=0.1)`` gives it some. The first law that is
    broken is an AssertionError that names it.

    >>> import fedatoms
    >>> check_algorithm(fedatoms.algorithms.scaffold)
    >>> check_algorithm(lambda: fedatoms.algorithms.Algorithm(sends=("control",)))
    Traceback (most recent call last):
    ...
    AssertionError: <lambda> breaks the law 'fitting_memories': Memories have a tensor for each parameter, and what is
    sent is one of the server's. But sends=('control',), and the server remembers nothing
    """
    algorithm = laws.made_by(factory, Algorithm)
    laws.keep(LAWS, replace(simulation(), algorithm=algorithm), laws.name_of(factory))


def fitting_memories(sim: Simulation) -> None:
    """Memories have a tensor for each parameter, and what is sent is one of the server's."""
    params, algorithm = _parameters(), sim.algorithm
    server = algorithm.server_memory(params)
    for memory in (server, algorithm.client_memory(params)):
        for kind, tree in memory.items():
            if kind in RESERVED or "/" in kind:
                raise AssertionError(f"a memory is called {kind!r}: {', '.join(RESERVED)} and paths are taken")
            _check_names(kind, tree, params)
    if unknown := tuple(sorted(set(algorithm.sends) - server.keys())):
        raise AssertionError(f"sends={unknown}, and the server remembers {', '.join(server) or 'nothing'}")


def pure_functions(sim: Simulation) -> None:
    """Functions leave their arguments as they are, and return tensors of the same names, shapes and types."""
    params, algorithm = _parameters(), sim.algorithm
    server, own = Server(params, algorithm.server_memory(params)), algorithm.client_memory(params)
    broadcast = Server(params, {kind: server.memory[kind] for kind in algorithm.sends})
    trained = trees.add(params, gradient := trees.apply(torch.ones_like, params), -0.1)
    work = Work(params, torch.tensor(2), dict.fromkeys(params, torch.tensor(0.1, dtype=torch.float64)))
    before = copy.deepcopy(given := (gradient, trained, server, own, work))
    _check_fit({"gradient": algorithm.correct(gradient, trained, broadcast, own)}, {"gradient": gradient})
    upload, kept = algorithm.report(trained, broadcast, own, work)
    _check_upload(upload, params)
    _check_fit(kept, own)
    after = algorithm.aggregate(server, {**upload, "statistics": {}}, 0.5)
    _check_fit({"params": after.params, **after.memory}, {"params": params, **server.memory})
    for now, then in zip(_leaves(given), _leaves(before), strict=True):
        check_same({"an argument": now}, {"an argument": then})


def uploads_that_are_models(sim: Simulation) -> None:
    """An upload's params are the trained model, up to a quarter of its move, or ``uploads_models`` is False."""
    if not (algorithm := sim.algorithm).uploads_models:
        return
    params = _parameters()
    far, two = trees.apply(lambda w: 0.1 * torch.ones_like(w), params), torch.tensor(2.0, dtype=torch.float64)
    trained, own = trees.subtract(params, far), algorithm.client_memory(params)
    memory = algorithm.server_memory(params)
    broadcast = Server(params, {kind: memory[kind] for kind in algorithm.sends})
    work = Work(params, torch.tensor(2), dict.fromkeys(params, two / 10), two)
    upload, _ = algorithm.report(trained, broadcast, own, work)
    gap = trees.squared(trees.subtract(upload["params"], trained)).sqrt() / trees.squared(far).sqrt()
    if not gap <= 0.25:
        raise AssertionError(f"params of an upload are {float(gap):.2g} of the client's move away from its model")


def still_without_movement(sim: Simulation) -> None:
    """If no client moves, the server does not."""
    sim = replace(sim, model=network(norm=False), training=TRAINING._replace(lr=0.0))
    check_same(train(sim, laws.ROUNDS).state.server.params, dict(sim.model.state_dict()), laws.ROUNDING)


def unseen_stays(sim: Simulation) -> None:
    """What does not travel stays on the server to the bit, and costs no bytes."""
    done = train(replace(sim, exchange=PERSONAL_HEAD), 2)
    _check_stays({"head"}, done.state.server.params, dict(sim.model.state_dict()))
    if any("head" in message for record, _ in done.history for message in (record.up, record.down)):
        raise AssertionError("a personal head was counted as sent")
    slow_round, fast_round = (train(replace(sim, exchange=FAST_AND_SLOW), t).state.server.params for t in (1, 2))
    _check_stays(SLOW, fast_round, slow_round)


def float32_stays(sim: Simulation) -> None:
    """In float32, all that is kept is float32."""
    for name, leaf in tensors(train(replace(sim, model=network().float()), 1)).items():
        if leaf.is_floating_point() and leaf.dtype != torch.float32:
            raise AssertionError(f"{name} is {leaf.dtype}")


def without_scale(sim: Simulation) -> None:
    """Shares of samples count, not their numbers: every sample twice gives the same server."""
    model = network(norm=False, dropout=False)  # a running variance is divided by n - 1
    sim = replace(sim, model=model, training=WHOLE, fraction=1.0, failures=0.0)
    once, twice = (train(replace(sim, data=clients(copies=copies)), laws.ROUNDS) for copies in (1, 2))
    check_same(once.state.server.params, twice.state.server.params, laws.ROUNDING)


def any_exchange(sim: Simulation) -> None:
    """Clients that train at once end where they end one by one, whatever travels."""
    for exchange in (PERSONAL_HEAD, FAST_AND_SLOW, FROZEN_SLOW):
        laws.at_once_as_one_by_one(replace(sim, exchange=exchange), blocks=(2,))


LAWS: tuple[laws.Law, ...] = (
    fitting_memories,
    pure_functions,
    uploads_that_are_models,
    laws.alone,
    laws.repeatable,
    still_without_movement,
    unseen_stays,
    float32_stays,
    laws.resumable,
    laws.without_order,
    without_scale,
    laws.vectorised,
    any_exchange,
)


def _parameters() -> Params:
    return {name: leaf.detach().clone() for name, leaf in network().named_parameters()}


def _check_stays(unseen: Collection[Group], after: Params, before: Params) -> None:
    names = [name for name, group in groups(network()).items() if group in unseen]
    check_same(trees.restrict(after, names), trees.restrict(before, names))


def _check_names(kind: str, tree: Params, params: Params) -> None:
    if odd := sorted(tree.keys() ^ params.keys()):
        raise AssertionError(f"{kind!r} has other names than the parameters: {', '.join(odd)}")


def _check_upload(upload: Memory, params: Params) -> None:
    if "params" not in upload or "statistics" in upload:
        raise AssertionError(f"an upload has {', '.join(upload) or 'nothing'}: 'params' and names of its own")
    _check_fit({"params": upload["params"]}, {"params": params})
    for kind, tree in upload.items():
        if kind != trees.NUMBERS:
            _check_names(kind, tree, params)
    for name, leaf in upload.get(trees.NUMBERS, {}).items():
        if leaf.shape or not leaf.is_floating_point():
            raise AssertionError(f"the number {name!r} has the shape {tuple(leaf.shape)} and is {leaf.dtype}")


def _check_fit(found: Memory, expected: Memory) -> None:
    if found.keys() != expected.keys():
        names = (", ".join(memory) or "nothing" for memory in (found, expected))
        raise AssertionError("{} is returned for {}".format(*names))
    for kind, tree in expected.items():
        if wrong := trees.misfit(found[kind], tree):
            raise AssertionError(f"{kind!r} does not fit ({wrong})")


def _leaves(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    inside = value.values() if isinstance(value, dict) else value
    return [leaf for each in inside for leaf in _leaves(each)] if isinstance(inside, Iterable) else []
