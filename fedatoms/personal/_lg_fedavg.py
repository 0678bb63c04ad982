"""LG-FedAvg: Liang et al., "Think Locally, Act Globally", 2020."""

from torch import nn

from fedatoms.personal.base import Labels, Personal


def lg_fedavg() -> Personal:
    """Keeps the representation on each client; the last two linear layers are averaged (as in FedRep's code).

    >>> lg_fedavg().beside
    False
    """

    def representation(model: nn.Module, labels: Labels) -> frozenset[str]:
        linear = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
        if len(linear) < 2:
            raise ValueError(f"lg-fedavg shares two linear layers, the model has {len(linear)}. Use another method.")
        return frozenset(name for name in labels if not name.startswith(tuple(f"{layer}." for layer in linear[-2:])))

    return Personal(representation)
