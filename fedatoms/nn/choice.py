"""Which convolutions of a network are decomposed, and why the others stay plain."""

import warnings
from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from fedatoms.core.lookup import some
from fedatoms.nn.adapters import why_plain
from fedatoms.nn.layers import Convolution, require_own_weights

Where = Callable[[str, nn.Module], bool]


class Choice(NamedTuple):
    """Names of convolutions: those to replace, those that were wanted and cannot be, and those that were not wanted."""

    replaced: list[str]
    unable: dict[str, str]  # with the reason
    left_out: list[str]


def choose(model: nn.Module, where: Where | None = None) -> Choice:
    """Chooses among a network's convolutions, by default those with a spatial kernel.

    >>> choose(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 2, 1)))
    Choice(replaced=['0'], unable={}, left_out=['1'])
    """
    if where is not None and not callable(where):
        raise TypeError(f"where={where!r} is not a function. Use where=lambda name, module: name == {str(where)!r}")
    present = {name: module for name, module in model.named_modules() if isinstance(module, Convolution)}
    wanted = [name for name, module in present.items() if (where or is_spatial)(name, module)]
    reasons = {name: why_plain(present[name]) for name in wanted}
    replaced = [name for name, reason in reasons.items() if not reason]
    require_own_weights(model, replaced)
    require_whole_ties(model, replaced)
    unable = {name: reason for name, reason in reasons.items() if reason}
    return Choice(replaced, unable, [name for name in present if name not in reasons])


def is_spatial(name: str, module: nn.Module) -> bool:
    """Says whether a layer is a convolution with a kernel side above 1.

    >>> is_spatial("", nn.Conv2d(3, 8, 1)), is_spatial("", nn.ConvTranspose1d(3, 8, 2))
    (False, True)
    """
    return isinstance(module, Convolution) and max(module.kernel_size) > 1


def warn_if_unable(choice: Choice, level: int) -> None:
    """Says in one line which layers were wanted and stay plain; ``level`` as in ``warnings.warn``."""
    if choice.unable:
        stay = "layers stay plain:" if len(choice.unable) > 1 else "one layer stays plain:"
        warnings.warn(f"{stay} {_listed(choice)}. {_WAY_OUT}", stacklevel=level + 1)


def why_none(model: nn.Module, choice: Choice, where: Where | None) -> str:
    """Says why no layer of a network is chosen, and what to do."""
    if choice.unable:
        return f"{type(model).__name__} has no convolution to replace: {_listed(choice)}. {_WAY_OUT}"
    if choice.left_out and where is not None:
        first = choice.left_out[0]
        return (
            f"no convolution is chosen: there are {', '.join(map(repr, choice.left_out))}. Use for example "
            f"where=lambda name, module: name == {first!r}"
        )
    return (
        f"{type(model).__name__} has no convolution to replace: by default those are nn.Conv1d, nn.Conv2d, nn.Conv3d "
        f"and transposed ones with a kernel side above 1. Use where=lambda name, module: True for 1x1 convolutions "
        f"too, or train the plain model"
    )


def require_whole_ties(model: nn.Module, replaced: list[str]) -> None:
    """Refuses a layer that shares its weight with one that stays plain: each would have its own from then on.

    >>> one = nn.Linear(2, 2)
    >>> require_whole_ties(nn.Sequential(one, one), ["0"])
    """
    chosen = {model.get_submodule(name).weight: name for name in replaced}
    for other, module in model.named_modules():
        for weight in (leaf for leaf in module.parameters(recurse=False) if leaf in chosen and other not in replaced):
            raise ValueError(
                f"layer '{chosen[weight]}' shares its weight with layer '{other}', which would stay plain and be "
                f"untied from it. Choose both or neither with where=..."
            )


_WAY_OUT = "Give their class an adapter (fedatoms.nn.ADAPTERS[MyConv] = run), or leave them out with where=..."


def _listed(choice: Choice) -> str:
    return some(f"'{name}' ({reason})" for name, reason in choice.unable.items())
