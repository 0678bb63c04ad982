"""Data sets, how they are split over clients, and the batches of each client; imports core."""

from typing import TYPE_CHECKING

from fedatoms.core.lazy import lazily

if TYPE_CHECKING:
    from fedatoms.data.datasets import DATASETS, Images, Recipe, load
    from fedatoms.data.federations import Federation, federation, hold_out, partition
    from fedatoms.data.partitions import Split, dirichlet, iid, shards

_HOMES = {
    **dict.fromkeys(("DATASETS", "Images", "Recipe", "load"), "datasets"),
    **dict.fromkeys(("Federation", "federation", "hold_out", "partition"), "federations"),
    **dict.fromkeys(("Split", "dirichlet", "iid", "shards"), "partitions"),
}
__all__ = [
    "DATASETS",
    "Federation",
    "Images",
    "Recipe",
    "Split",
    "dirichlet",
    "federation",
    "hold_out",
    "iid",
    "load",
    "partition",
    "shards",
]
if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, _HOMES)
