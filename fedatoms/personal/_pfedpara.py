"""pFedPara: Hyeon-Woo et al., "FedPara: Low-Rank Hadamard Product", ICLR 2022."""

from torch import nn

from fedatoms.nn.hadamard import personal_factors
from fedatoms.personal.base import Labels, Personal


def pfedpara() -> Personal:
    """Keeps the second pair of factors of each layer on the client; the first pair and the rest are averaged.

    >>> pfedpara().beside
    False
    """

    def second(model: nn.Module, labels: Labels) -> frozenset[str]:
        found = personal_factors(model) & labels.keys()
        if not found:
            raise ValueError("the model has no second factors. Factorise it first: parametrisation='pfedpara'.")
        return found

    return Personal(second)
