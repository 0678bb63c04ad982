"""Laws of saving and loading: factors come back as factors, and are never taken for a plain network's weights."""

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest
import torch
from safetensors.torch import load_file, load_model, save_model
from torch import Tensor, nn

from fedatoms import decompose, fuse
from fedatoms.nn.atoms import AtomConv2d
from fedatoms.nn.hadamard import factorise
from fedatoms.nn.pure import network, with_params

X = torch.linspace(-1, 1, 72).reshape(2, 1, 6, 6)


class Mixin:
    """Saves and loads as huggingface_hub's PyTorchModelHubMixin: the class is built again, and loaded leniently."""

    width: int

    def save_pretrained(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"width": self.width}))
        save_model(self, folder / "model.safetensors")

    @classmethod
    def from_pretrained(cls, folder: Path) -> Self:
        model = cls(**json.loads((folder / "config.json").read_text()))
        load_model(model, folder / "model.safetensors", strict=False)
        return model.eval()


class Layers(nn.Module):
    """Two convolutions, of which the second may be made of atoms by the class itself."""

    def __init__(self, width: int = 16, own_atoms: bool = False) -> None:
        super().__init__()
        self.width = width
        self.conv = nn.Conv2d(1, width, 3)
        self.last = AtomConv2d(width, 16, 3, atoms=4) if own_atoms else nn.Conv2d(width, 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.conv(x).relu()).flatten(1)
        return out


class Net(Layers, Mixin):
    """A plain network of the Hub."""


class OwnAtoms(Layers, Mixin):
    """A network of the Hub with atoms in its class, as it may be."""

    def __init__(self, width: int = 16) -> None:
        super().__init__(width, own_atoms=True)


def atoms_of(model: nn.Module) -> nn.Module:
    return decompose(model, atoms=4, init="orthonormal")


MAKE: dict[str, Callable[[nn.Module], nn.Module]] = {"atoms": atoms_of, "factors": lambda model: factorise(model, 0.5)}


@pytest.mark.parametrize("kind", MAKE)
def test_factors_come_back_strictly(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, other = MAKE[kind](Net()), MAKE[kind](Net())
    nn.init.normal_(model.conv.bias)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(X), model(X))
    save_model(model, tmp_path / "net.safetensors")
    again = MAKE[kind](Net())
    load_model(again, tmp_path / "net.safetensors")
    assert torch.equal(again(X), model(X))


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("strict", [True, False])
def test_a_plain_network_is_not_loaded_into_factors(kind: str, strict: bool, tmp_path: Path) -> None:
    plain, model = Net(), MAKE[kind](Net())
    before = {name: leaf.clone() for name, leaf in model.state_dict().items()}
    with pytest.raises(RuntimeError, match=r"last\.weight is the filter of a plain layer, but this \w+ is made of"):
        model.load_state_dict(plain.state_dict(), strict=strict)
    save_model(plain, tmp_path / "net.safetensors")
    with pytest.raises(RuntimeError, match=r"last\.weight is the filter of a plain layer"):
        load_model(model, tmp_path / "net.safetensors", strict=strict)
    factors = {name for name in before if name.startswith("last.") and not name.endswith("bias")}
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in factors)


@pytest.mark.parametrize("kind", MAKE)
def test_a_part_of_a_network_may_be_loaded_leniently(kind: str) -> None:
    model = MAKE[kind](Net())
    found = model.load_state_dict({"conv.bias": torch.zeros(16)}, strict=False)
    assert not model.conv.bias.any() and found.missing_keys and not found.unexpected_keys


@pytest.mark.parametrize("kind", MAKE)
def test_what_the_hub_would_read_back_untrained_is_not_saved(kind: str, tmp_path: Path) -> None:
    model = MAKE[kind](Net())
    variants = [model, copy.deepcopy(model), with_params(model, network_of(model)), pickle.loads(pickle.dumps(model))]
    for variant in (*variants, nn.Sequential(model)[0]):
        with pytest.raises(ValueError, match=r"Use fuse\(model\)\.save_pretrained"):
            variant.save_pretrained(tmp_path / "net")
    assert not list(tmp_path.iterdir())


def network_of(model: nn.Module) -> dict[str, Tensor]:
    made = network(model)
    return {**made.parameters, **made.statistics}


@pytest.mark.parametrize("kind", MAKE)
def test_a_fused_network_is_read_back_from_the_hub(kind: str, tmp_path: Path) -> None:
    model = MAKE[kind](Net(width=24))
    fuse(model).save_pretrained(tmp_path / "net")
    torch.testing.assert_close(Net.from_pretrained(tmp_path / "net")(X), model(X))


def test_a_part_with_a_mixin_is_guarded_and_freed_too(tmp_path: Path) -> None:
    whole = nn.Sequential(Net(), nn.Linear(64, 2))
    with pytest.raises(ValueError, match="save_pretrained"):
        atoms_of(whole)[0].save_pretrained(tmp_path / "net")
    fuse(atoms_of(whole))[0].save_pretrained(tmp_path / "net")
    whole[0].save_pretrained(tmp_path / "original")


def test_a_class_with_atoms_of_its_own_is_saved_and_read_back(tmp_path: Path) -> None:
    model = OwnAtoms(width=8)
    model.save_pretrained(tmp_path / "net")
    assert torch.equal(OwnAtoms.from_pretrained(tmp_path / "net")(X), model(X))
    fuse(model).save_pretrained(tmp_path / "fused")
    with pytest.raises(RuntimeError, match="filter of a plain layer"):
        OwnAtoms.from_pretrained(tmp_path / "fused")


def test_with_the_hubs_own_mixin(tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")

    class OnTheHub(Layers, hub.PyTorchModelHubMixin):
        """A network with the real mixin."""

    model = atoms_of(OnTheHub(width=24))
    with pytest.raises(ValueError, match=r"Use fuse\(model\)\.save_pretrained"):
        model.save_pretrained(tmp_path / "net")
    fuse(model).save_pretrained(tmp_path / "net")
    again = OnTheHub.from_pretrained(tmp_path / "net")
    torch.testing.assert_close(again(X), model(X))
    assert load_file(tmp_path / "net" / "model.safetensors").keys() == again.state_dict().keys()
    with pytest.raises(RuntimeError, match="filter of a plain layer"):
        load_model(model, tmp_path / "net" / "model.safetensors", strict=False)
