"""What is no network, or none that can be copied, is refused in one line by everything that changes networks."""

from collections.abc import Callable

import pytest
from torch import nn

from fedatoms.nn.atoms import decompose, fuse
from fedatoms.nn.hadamard import factorise
from fedatoms.nn.layers import copied
from fedatoms.nn.parameter_groups import groups


@pytest.mark.parametrize("change", [decompose, fuse, factorise, groups, copied])
@pytest.mark.parametrize("model", [None, "net", nn.Conv2d, nn.Conv2d(1, 2, 3).cuda])
def test_what_is_no_network_costs_one_line(change: Callable[[object], object], model: object) -> None:
    with pytest.raises(ValueError, match=r"^model=.* is not a network\. Pass an nn\.Module\.$"):
        change(model)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_a_computed_weight_cannot_be_copied() -> None:
    norm = nn.utils.weight_norm
    with pytest.raises(
        ValueError, match=r"^the model computes its weight .*torch cannot copy it\. Use torch\.nn\.utils"
    ):
        fuse(norm(nn.Conv2d(1, 2, 3)))
    for change in (fuse, decompose):
        with pytest.raises(ValueError, match=r"^layer '1' computes its weight .*torch cannot copy it"):
            change(nn.Sequential(nn.Conv2d(1, 2, 3), norm(nn.Linear(2, 2))))


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
@pytest.mark.parametrize(
    "model",
    [
        lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(1, 2, 3)),
        lambda: nn.LazyConv2d(2, 3),
        lambda: nn.Conv2d(1, 2, 3, device="meta"),
    ],
    ids=["parametrised", "lazy", "meta"],
)
def test_what_torch_can_copy_is_copied(model: Callable[[], nn.Module]) -> None:
    plain = model()
    assert type(fuse(plain)) is type(plain) and fuse(plain) is not plain
