"""Gradients that have no derivatives of their own: whoever differentiates them is refused, instead of told zeros."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class OnlyOnce(RuntimeError):
    """A second derivative was asked for where there are first ones only."""


class _Once(torch.autograd.Function):
    """The first ``count`` of some tensors, which are computed from the others."""

    generate_vmap_rule = True

    @staticmethod
    def forward(count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(map(torch.ops.aten.alias.default, tensors[:count]))  # which a compiled step is rid of

    @staticmethod
    def setup_context(ctx: object, inputs: tuple[object, ...], output: tuple[Tensor, ...]) -> None:
        return

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> None:
        raise OnlyOnce("batched kernels have first derivatives only")


_once: Callable[..., tuple[Tensor, ...]] = _Once.apply


def once(results: Sequence[Tensor | None], of: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Returns gradients that refuse to be differentiated by what they were computed of, without having seen how.

    >>> x = torch.tensor(2.0, requires_grad=True)
    >>> once([None, x.detach() ** 2], [x])
    (None, tensor(4., grad_fn=<_OnceBackward>))
    """
    given = [each for each in results if each is not None]
    made = iter(_once(len(given), *given, *(each for each in of if each.is_floating_point())))
    return tuple(None if each is None else next(made) for each in results)
