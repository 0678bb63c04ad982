"""Replacing layers of a network."""

from collections.abc import Mapping

from torch import nn


def swap(model: nn.Module, new: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """Puts ``new[layer]`` in the place of each layer, in ``model`` itself and under all of the layer's names.

    >>> old = nn.Sequential(nn.ReLU(), nn.Flatten())
    >>> swap(old, {old[0]: nn.Tanh()})
    Sequential(
      (0): Tanh()
      (1): Flatten(start_dim=1, end_dim=-1)
    )
    """
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if name and module in new:
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, new[module])
    return new.get(model, model)
