"""LG-FedAvg: Liang et al., "Think Locally, Act Globally", 2020."""

from torch import nn

from fedatoms.personal.base import Labels, Personal


def lg_fedavg() -> Personal:
    """Keeps the representation on each client; the last two linear layers are averaged (as in FedRep's code).

    >>> lg_fedavg().beside
    False
    """

    def representation(model: nn.Module, labels: Labels) -> frozenset[str]:
        linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
        if len(linear) < 2:
            raise ValueError(f"lg-fedavg shares two linear layers, the model has {len(linear)}. Use another method.")
        shared = {leaf for layer in linear[-2:] for leaf in layer.state_dict(keep_vars=True).values()}
        held = model.state_dict(keep_vars=True)
        return frozenset(name for name in labels if held[name] not in shared)  # a tied one has another layer's name

    return Personal(representation)
