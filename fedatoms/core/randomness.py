"""Randomness is an address: every draw comes from a generator named by the seed and the purpose of the draw."""

import hashlib
from operator import index

import numpy as np
import torch


def address(seed: int, *parts: int | str) -> int:
    """Hashes a seed and an address to 63 bits, the same on every machine and for whole numbers of any type.

    >>> address(0, "batches", 7, 12) == address(0, "batches", 7, 12)
    True
    >>> address(0, "batches", 7, 12) == address(0, "batches", 71, 2)
    False
    """
    plain = (part if isinstance(part, str) else index(part) for part in (seed, *parts))  # np.int64(1) is written so
    digest = hashlib.blake2b(repr(tuple(plain)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, *parts: int | str) -> torch.Generator:
    """Returns a new CPU generator for an address.

    >>> torch.randperm(4, generator=generator(0, "doctest")).tolist()
    [1, 2, 0, 3]
    """
    return torch.Generator().manual_seed(address(seed, *parts))


def numpy_generator(seed: int, *parts: int | str) -> np.random.Generator:
    """Returns a new NumPy generator for an address (for the laws that torch cannot draw from, such as Dirichlet's).

    >>> round(float(numpy_generator(0, "doctest").random()), 3) < 1
    True
    """
    return np.random.default_rng(address(seed, *parts))
