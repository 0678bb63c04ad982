"""Runs whose clients can be trained in one block: the same layers, and parts of the same pool of samples."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedatoms.algorithms.base import Algorithm
from fedatoms.core.inputs import named
from fedatoms.core.trees import Params
from fedatoms.data.federations import Federation
from fedatoms.engine.attacks import has_false_labels
from fedatoms.engine.execution.loop import MapClients
from fedatoms.engine.execution.several import Basis
from fedatoms.engine.runtime import (
    Runtime,
    block_map,
    check_map,
    is_vectorised,
    prepare,
    would_train_on_padding,
)
from fedatoms.engine.server import sample_size
from fedatoms.engine.spec import Simulation
from fedatoms.nn.pure import Network

OF_A_MAP = ("device", "map", "block", "precision", "head")  # what runs that share blocks have in common, as text


def beside(first: Runtime, sim: Simulation) -> Runtime | None:
    """Prepares a simulation whose clients can share blocks with those of another; None if they cannot.

    The two may differ in seed, in the initial model, in who holds which samples, in the numbers ``lr``, ``lr_decay``
    and ``atoms_lr``, and in an algorithm's strength. All else must be the same: methods are taken from the first.

    >>> from fedatoms.data.federations import federation
    >>> x, y = torch.randn(8, 2), torch.arange(8) % 2
    >>> one = Simulation(nn.Linear(2, 2), federation([(x[:4], y[:4]), (x[4:], y[4:])], test=(x, y)), map="vectorised")
    >>> beside(prepare(one), replace(one, model=nn.Linear(2, 2), seed=1)) is None
    False
    >>> beside(prepare(one), replace(one, model=nn.Linear(2, 2, bias=False), seed=1)) is None
    True
    """
    if not _is_alike(first.sim, sim):
        return None
    numbers = {name: getattr(sim.training, name) for name in ("lr", "lr_decay", "atoms_lr")}
    method = {name: getattr(first.sim, name) for name in ("objective", "personal", "exchange")}
    method["algorithm"] = _of_either(first.sim.algorithm, sim.algorithm)
    data = first.data._replace(parts=sim.data.parts, test_parts=sim.data.test_parts)
    made = prepare(replace(sim, **method, training=first.sim.training._replace(**numbers), data=data))
    net = made.network
    if not _same_tensors(_frozen(first.network), _frozen(net)):
        return None
    if any(would_train_on_padding(each.sim, each.network, each.data) for each in (first, made)):
        return None
    shared = first.network._replace(parameters=net.parameters, statistics=net.statistics, constants=net.constants)
    return made._replace(network=shared, predict=first.predict)


def basis_of(runs: Sequence[Runtime]) -> Basis:
    """Returns what some runs have in common that share blocks."""
    parts = [part for each in runs for part in each.data.parts]
    return Basis(runs[0].network, runs[0].data._replace(parts=parts))


def map_of(runs: Sequence[Runtime], count: int) -> MapClients:
    """Returns the map over the clients that any ``count`` of some runs train in a round."""
    most = sorted(map(clients_of, runs))[-count:]
    return block_map(runs[0].sim, runs[0].network, sum(most), None)


def clients_of(runtime: Runtime) -> int:
    """Returns the most clients that a run trains in a round."""
    return sample_size(len(runtime.sim.data.parts), runtime.sim.fraction)


def _of_either(first: Algorithm, other: Algorithm) -> Algorithm:
    """Returns the other algorithm if it differs from the first in its strength alone, else the first."""
    if first.strength is None or other.strength is None:
        return first
    return other if first.strength._replace(value=0.0) == other.strength._replace(value=0.0) else first


def _is_alike(one: Simulation, other: Simulation) -> bool:
    plain = all(getattr(one, name) == getattr(other, name) for name in OF_A_MAP)
    able = (
        is_vectorised(one.map, one.device)
        and check_map(one) is None
        and not (has_false_labels(one.attack) or has_false_labels(other.attack))
        and one.data.lazy is None
        and other.data.lazy is None
    )
    return plain and able and _same_layers(one.model, other.model) and _same_pool(one.data, other.data)


def _same_pool(one: Federation, other: Federation) -> bool:
    if (one.classes, one.recipe) != (other.classes, other.recipe):
        return False
    pairs = [(each.x, each.test_x, {"y": each.y, "test_y": each.test_y}) for each in (one, other)]
    return all(_same_tensors(named(a), named(b)) for a, b in zip(*pairs, strict=True))


def _same_layers(one: nn.Module, other: nn.Module) -> bool:
    """Returns whether two models differ in the values of parameters and buffers only."""
    a, b = dict(one.named_modules()), dict(other.named_modules())
    return a.keys() == b.keys() and all(
        type(a[name]) is type(b[name]) and _settings_agree(a[name], b[name]) for name in a
    )


def _settings_agree(one: nn.Module, other: nn.Module) -> bool:
    """Returns whether two layers have the same tensors by shape and the same settings; what cannot be told is not."""
    tensors = [
        {name: leaf if leaf is None else (leaf.shape, leaf.dtype, leaf.requires_grad) for name, leaf in own.items()}
        for each in (one, other)
        for own in [{**each._parameters, **each._buffers}]
    ]
    mine, others = ({k: v for k, v in vars(each).items() if k not in _TENSORS} for each in (one, other))
    return tensors[0] == tensors[1] and mine.keys() == others.keys() and all(_equal(mine[k], others[k]) for k in mine)


_TENSORS = {"_parameters", "_buffers", "_modules"}


def _equal(one: object, other: object) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and _same_tensors({"": one}, {"": other})
    try:
        return one is other or bool(one == other)
    except Exception:  # whatever a user's own comparison raises
        return False


def _same_tensors(one: Params, other: Params) -> bool:
    if one.keys() != other.keys():
        return False
    return all(a is b or (a.dtype == b.dtype and torch.equal(a, b)) for a, b in ((one[k], other[k]) for k in one))


def _frozen(net: Network) -> Params:
    return {name: leaf for name, leaf in net.constants.items() if name in net.frozen}
