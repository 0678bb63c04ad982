"""Data sets, how they are split over clients, and the batches of each client; imports core."""

from fedatoms.data.batches import Plan, fetch, normalise, pad_steps, plan
from fedatoms.data.datasets import DATASETS, Fill, Images, Recipe, Source, load
from fedatoms.data.federation import Federation, federation, hold_out, partition
from fedatoms.data.partitions import Split, dirichlet, iid, shards

__all__ = [
    "DATASETS",
    "Federation",
    "Fill",
    "Images",
    "Plan",
    "Recipe",
    "Source",
    "Split",
    "dirichlet",
    "federation",
    "fetch",
    "hold_out",
    "iid",
    "load",
    "normalise",
    "pad_steps",
    "partition",
    "plan",
    "shards",
]
