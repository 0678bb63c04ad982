"""The laws that every method keeps, to run on methods of your own in your own tests; imports runs and below."""

from typing import TYPE_CHECKING

from fedatoms.core.lazy import lazily

if TYPE_CHECKING:
    from fedatoms.testing.algorithm_laws import check_algorithm
    from fedatoms.testing.objective_laws import check_objective
    from fedatoms.testing.optimiser_laws import check_optimiser
    from fedatoms.testing.personal_laws import check_personal

__all__ = ["check_algorithm", "check_objective", "check_optimiser", "check_personal"]
if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, {name: f"{name.removeprefix('check_')}_laws" for name in __all__})
