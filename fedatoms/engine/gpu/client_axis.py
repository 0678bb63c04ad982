"""Operators with an axis of clients: their rules for vmap, and how they are called for one client."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

Axis = int | None | Sequence[int | None]  # of a tensor, or of each of a list
Result = Tensor | tuple[Tensor, ...]
Rule = Callable[..., tuple[Tensor, int] | tuple[tuple[Tensor, ...], tuple[int, ...]]]


class _Vmap(Protocol):
    """What torch passes to a vmap rule."""

    batch_size: int


def over_clients(operator: Callable[..., Result]) -> Rule:
    """Makes an operator's rule for vmap: the new axis joins the client axis."""

    def rule(
        info: _Vmap, axes: Sequence[Axis], *args: object
    ) -> tuple[Tensor, int] | tuple[tuple[Tensor, ...], tuple[int, ...]]:
        each = _with_clients(info, axes, args)
        result = operator(*(_of_tensor(lambda x: x.flatten(0, 1).contiguous(), value) for value in each))
        return _with_axes(_of_each(lambda x: x.unflatten(0, (info.batch_size, -1)), result))

    return rule


def for_one(operator: OpOverload, *, contiguous: bool = True) -> Callable[..., Result]:
    """Returns an operator for one client, whose tensors have no client axis: for all that vmap has, the operator.

    A client axis of one, which vmap's would join, is two views for each argument and each result in a trace; a third
    of a trace of ResNet-18 was such views. Tensors are made ``contiguous`` unless an operator reads any layout.
    """

    def alone(*args: object) -> Result:
        result: Result = operator(*(_of_tensor(lambda x: x[None], value) for value in args))
        return _of_each(lambda x: x[0], result)

    def rule(
        info: _Vmap, axes: Sequence[Axis], *args: object
    ) -> tuple[Tensor, int] | tuple[tuple[Tensor, ...], tuple[int, ...]]:
        each = _with_clients(info, axes, args)
        return _with_axes(operator(*(_of_tensor(Tensor.contiguous, one) for one in each) if contiguous else each))

    name, schema = operator._schema.name, str(operator._schema)
    one = torch.library.custom_op(f"{name}_one", alone, mutates_args=(), schema=schema.removeprefix(name))
    one.register_fake(alone)
    one.register_vmap(rule)

    def call(*args: object) -> Result:
        mapped = any(map(is_functorch_wrapped_tensor, filter(torch.is_tensor, pytree.tree_leaves(args))))
        result: Result = one(*args) if mapped else alone(*args)
        return result

    return call


def _with_clients(info: _Vmap, axes: Sequence[Axis], args: Sequence[object]) -> list[object]:
    """Returns arguments with the new axis in front of every tensor."""
    return [_in_front(value, axis, info.batch_size) for value, axis in zip(args, axes, strict=True)]


def _in_front(value: object, axis: Axis, clients: int) -> object:
    if isinstance(value, list) and isinstance(axis, Sequence):
        return [_in_front(each, its, clients) for each, its in zip(value, axis, strict=True)]
    if not isinstance(value, Tensor) or isinstance(axis, Sequence):
        return value
    if axis is None:
        return value.expand(clients, *value.shape)
    return value.movedim(axis, 0) if axis else value  # else a trace would have a permutation that changes nothing


def _of_tensor(function: Callable[[Tensor], Tensor], value: object) -> object:
    """Applies a function to a tensor, or to each of a list; anything else stays."""
    if isinstance(value, list):
        return [_of_tensor(function, each) for each in value]
    return function(value) if isinstance(value, Tensor) else value


def _of_each(function: Callable[[Tensor], Tensor], result: Result) -> Result:
    return function(result) if isinstance(result, Tensor) else tuple(map(function, result))


def _with_axes(result: Result) -> tuple[Tensor, int] | tuple[tuple[Tensor, ...], tuple[int, ...]]:
    return (result, 0) if isinstance(result, Tensor) else (result, (0,) * len(result))
