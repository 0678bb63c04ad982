"""A parametrisation names its own groups of parameters; nothing else needs to know its class."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedatoms.core.options import Group
from fedatoms.nn.atoms import fuse
from fedatoms.nn.parameter_groups import groups


class Halved(nn.Module):
    """A linear layer of two factors, in a module of their own: what no file of the package names."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = nn.ParameterDict({"down": torch.ones(1, 3), "up": torch.ones(2, 1)})
        self.bias = nn.Parameter(torch.zeros(2))

    def filter(self) -> Tensor:
        return self.pair["up"] @ self.pair["down"]

    def factors(self) -> tuple[nn.Parameter, ...]:
        return self.pair["up"], self.pair["down"]

    def parts(self) -> dict[str, Group]:
        return {"pair.down": "atoms", "pair.up": "coefficients"}

    def fused(self, weight: nn.Parameter) -> nn.Module:
        linear = nn.Linear(3, 2, device="meta")
        linear.weight, linear.bias = weight, self.bias
        return linear

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.filter(), self.bias)


def test_a_parametrisation_of_your_own_names_its_groups() -> None:
    model = nn.Sequential(Halved(), nn.Linear(2, 2))
    named = {"0.bias": "rest", "0.pair.down": "atoms", "0.pair.up": "coefficients"}
    assert groups(model) == {**named, "1.weight": "head", "1.bias": "head"}
    assert set(groups(model, "0").values()) == {"head", "rest"}
    assert groups(model[0]) == {"bias": "rest", "pair.down": "atoms", "pair.up": "coefficients"}
    x = torch.randn(1, 3)
    assert torch.equal(fuse(model)(x), model(x)) and type(fuse(model)[0]) is nn.Linear
