"""Operators with an axis of clients: their rules for vmap, and how they are called for one client."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._ops import OpOverload

Result = Tensor | tuple[Tensor, ...]
Rule = Callable[..., tuple[Tensor, int] | tuple[tuple[Tensor, ...], tuple[int, ...]]]


class _Vmap(Protocol):
    """What torch passes to a vmap rule."""

    batch_size: int


def over_clients(operator: Callable[..., Result]) -> Rule:
    """Makes an operator's rule for vmap: the new axis joins the client axis."""

    def rule(
        info: _Vmap, axes: Sequence[int | None], *args: object
    ) -> tuple[Tensor, int] | tuple[tuple[Tensor, ...], tuple[int, ...]]:
        each = _with_clients(info, axes, args)
        result = operator(*(_of_tensor(lambda x: x.flatten(0, 1).contiguous(), value) for value in each))
        return _with_axes(_of_each(lambda x: x.unflatten(0, (info.batch_size, -1)), result))

    return rule


def for_one(operator: OpOverload) -> Callable[..., Result]:
    """Returns an operator for one client, whose tensors have no client axis: for all that vmap has, the operator.

    A client axis of one, which vmap's would join, is two views for each argument and each result in a trace; a third
    of a trace of ResNet-18 was such views.
    """

    def alone(*args: object) -> Result:
        result: Result = operator(*(_of_tensor(lambda x: x[None], value) for value in args))
        return _of_each(lambda x: x[0], result)

    def rule(
        info: _Vmap, axes: Sequence[int | None], *args: object
    ) -> tuple[Tensor, int] | tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return _with_axes(operator(*(_of_tensor(Tensor.contiguous, each) for each in _with_clients(info, axes, args))))

    name, schema = operator._schema.name, str(operator._schema)
    one = torch.library.custom_op(f"{name}_one", alone, mutates_args=(), schema=schema.removeprefix(name))
    one.register_fake(alone)
    one.register_vmap(rule)

    def call(*args: object) -> Result:
        mapped = any(isinstance(value, Tensor) and is_functorch_wrapped_tensor(value) for value in args)
        result: Result = one(*args) if mapped else alone(*args)
        return result

    return call


def _with_clients(info: _Vmap, axes: Sequence[int | None], args: Sequence[object]) -> list[object]:
    """Returns arguments with the new axis in front of every tensor."""
    pairs = zip(args, axes, strict=True)
    return [_of_tensor(_in_front, value, axis, info.batch_size) for value, axis in pairs]


def _in_front(x: Tensor, axis: int | None, clients: int) -> Tensor:
    if axis is None:
        return x.expand(clients, *x.shape)
    return x.movedim(axis, 0) if axis else x  # else a trace would have a permutation that changes nothing


def _of_tensor(function: Callable[..., Tensor], value: object, *rest: object) -> object:
    return function(value, *rest) if isinstance(value, Tensor) else value


def _of_each(function: Callable[[Tensor], Tensor], result: Result) -> Result:
    return function(result) if isinstance(result, Tensor) else tuple(map(function, result))


def _with_axes(result: Result) -> tuple[Tensor, int] | tuple[tuple[Tensor, ...], tuple[int, ...]]:
    return (result, 0) if isinstance(result, Tensor) else (result, (0,) * len(result))
