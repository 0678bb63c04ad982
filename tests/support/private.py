"""What tests of private runs share: generators in the place of the operating system's, and kills."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedatoms.engine.privacy import Uniforms


class Killed(BaseException):
    """What no code catches, as a kill."""


def killing(function: Callable[..., object], at: int) -> Callable[..., object]:
    """Returns a function that is killed in place of its call number ``at``."""
    calls = 0

    def killed(*args: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == at:
            raise Killed
        return function(*args, **options)

    return killed


def still(count: int) -> Tensor:
    """Draws no noise at all, and everyone whose probability is above a half."""
    return torch.full((count,), 0.5, dtype=torch.float64)


def seeded(seed: int) -> Uniforms:
    """Returns draws that can be drawn again."""
    draws = torch.Generator().manual_seed(seed)
    return lambda count: torch.rand(count, generator=draws, dtype=torch.float64).clamp(min=1e-12)
