"""Networks: atoms and coefficients, Hadamard factors, pure functions, the paper's models; imports core."""

from typing import TYPE_CHECKING

from fedatoms.core.lazy import lazily

if TYPE_CHECKING:
    from fedatoms.nn.atoms import AtomConv2d, is_decomposed
    from fedatoms.nn.exporting import export
    from fedatoms.nn.hadamard import factorise, personal_factors
    from fedatoms.nn.models import build

__all__ = ["AtomConv2d", "build", "export", "factorise", "is_decomposed", "personal_factors"]
if not TYPE_CHECKING:
    _HOMES = {"AtomConv2d": "atoms", "build": "models", "export": "exporting", "factorise": "hadamard"}
    __getattr__ = lazily(__name__, {**_HOMES, "is_decomposed": "atoms", "personal_factors": "hadamard"})
