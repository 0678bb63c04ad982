"""Networks: atoms and coefficients, Hadamard factors, pure functions, the paper's models; imports core."""

from typing import TYPE_CHECKING

from fedatoms.core.lazy import lazily

if TYPE_CHECKING:
    from fedatoms.nn.adapters import ADAPTERS
    from fedatoms.nn.atoms import AtomConv2d, is_decomposed
    from fedatoms.nn.exporting import export
    from fedatoms.nn.hadamard import factorise, personal_factors
    from fedatoms.nn.models import build
    from fedatoms.nn.parameter_groups import groups
    from fedatoms.nn.summaries import summary
    from fedatoms.nn.weights import load_weights

_HOMES = {
    "ADAPTERS": "adapters",
    "AtomConv2d": "atoms",
    "build": "models",
    "export": "exporting",
    "factorise": "hadamard",
    "groups": "parameter_groups",
    "is_decomposed": "atoms",
    "load_weights": "weights",
    "personal_factors": "hadamard",
    "summary": "summaries",
}
__all__ = [
    "ADAPTERS",
    "AtomConv2d",
    "build",
    "export",
    "factorise",
    "groups",
    "is_decomposed",
    "load_weights",
    "personal_factors",
    "summary",
]
if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, _HOMES)
