"""Filters of many clients, composed of each one's coefficients and atoms, as operators with a client axis of their own.

They write and read filters in the order in which the operators of ``conv_ops`` do, so that nothing is copied in
between. On a GPU they are Triton kernels, on a CPU plain torch. ``composed`` is what one client sees: differentiable,
with a rule for vmap.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from fedatoms.engine.gpu.client_axis import for_one, over_clients
from fedatoms.engine.gpu.convolutions import Context
from fedatoms.engine.gpu.first_only import once
from fedatoms.engine.gpu.tiles import parts_of_filters

LARGEST = 64  # atoms, and entries of an atom: more do not fit into the shared memory of every GPU


@torch.library.custom_op("fedatoms::compose", mutates_args=())
def compose(coefficients: Tensor, atoms: Tensor, kind: torch.dtype) -> Tensor:
    """Multiplies coefficients (C, O, I, M) and atoms (C, M, K, K) to filters (C, O, K, K, I) of a type."""
    if atoms.is_cuda:
        from fedatoms.engine.gpu import triton_atoms

        return triton_atoms.compose(coefficients, atoms, kind)
    return torch.einsum("coim,cmhw->cohwi", coefficients, atoms).to(kind).contiguous()


@torch.library.custom_op("fedatoms::share", mutates_args=())
def share(coefficients: Tensor, atoms: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the gradients of coefficients and, as partial sums, of atoms, given the filters' (C, O, K, K, I)."""
    if atoms.is_cuda:
        from fedatoms.engine.gpu import triton_atoms

        return triton_atoms.share(coefficients, atoms, gradients)
    gradients = gradients.to(atoms.dtype)
    to_coefficients = torch.einsum("cohwi,cmhw->coim", gradients, atoms)
    return to_coefficients.contiguous(), torch.einsum("cohwi,coim->cmhw", gradients, coefficients)[:, None].contiguous()


class _Composed(torch.autograd.Function):
    """``tensordot(coefficients, atoms, 1)`` in a type, with gradients by the operators."""

    generate_vmap_rule = True

    @staticmethod
    def forward(coefficients: Tensor, atoms: Tensor, kind: torch.dtype) -> Tensor:
        return _compose_one(coefficients, atoms, kind).permute(0, 3, 1, 2)

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, Tensor, torch.dtype], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Context, gradients: Tensor) -> tuple[Tensor | None, ...]:
        coefficients, atoms = ctx.saved_tensors
        with torch.no_grad():  # where one is not wanted, it costs no more to have both
            to_coefficients, parts = _share_one(coefficients, atoms, gradients.permute(0, 2, 3, 1))
            found = to_coefficients, parts.sum(0)
        return *once(found, (gradients, coefficients, atoms)), None


composed: Callable[[Tensor, Tensor, torch.dtype], Tensor] = _Composed.apply


@compose.register_fake
def _(coefficients: Tensor, atoms: Tensor, kind: torch.dtype) -> Tensor:
    clients, out, channels, _ = coefficients.shape
    return coefficients.new_empty(clients, out, *atoms.shape[2:], channels, dtype=kind)


@share.register_fake
def _(coefficients: Tensor, atoms: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
    clients, *one = atoms.shape
    parts = parts_of_filters(coefficients) if atoms.is_cuda else 1
    return coefficients.new_empty(coefficients.shape), atoms.new_empty(clients, parts, *one)


for _operator in (compose, share):
    _operator.register_vmap(over_clients(_operator))
_compose_one = cast(Callable[..., Tensor], for_one(torch.ops.fedatoms.compose.default))
_share_one = cast(Callable[..., tuple[Tensor, Tensor]], for_one(torch.ops.fedatoms.share.default))
