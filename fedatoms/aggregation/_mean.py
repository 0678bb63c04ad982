"""The weighted mean: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017."""

from fedatoms.aggregation.base import Rule


def mean() -> Rule:
    """Averages uploads by their weights; one liar moves it as far as it likes.

    >>> mean() == Rule()
    True
    """
    return Rule()
