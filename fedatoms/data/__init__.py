"""Data sets, how they are split over clients, and the batches of each client; imports core."""

from fedatoms.data.datasets import DATASETS, Images, Recipe, load
from fedatoms.data.federations import Federation, federation, hold_out, partition
from fedatoms.data.partitions import Split, dirichlet, iid, shards

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
