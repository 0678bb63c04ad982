"""FedBN: Li et al., "Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021."""

from torch import nn

from fedatoms.personal.base import Personal, of_layers

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm, nn.modules.instancenorm._InstanceNorm)


def fedbn() -> Personal:
    """Keeps the normalisation layers, statistics included, on each client; all else is averaged.

    >>> fedbn().beside
    False
    """
    return Personal(of_layers(_NORMS, "normalisation layer"))
