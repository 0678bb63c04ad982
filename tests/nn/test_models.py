"""Laws of the networks: the published counts, names and shapes, seeds, networks of the user, and what is refused."""

import copy
import functools
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from fedatoms.core.options import GROUPS
from fedatoms.core.randomness import generator
from fedatoms.nn.atoms import decompose, fuse
from fedatoms.nn.models import MODELS, build, check_input
from fedatoms.nn.parameter_groups import groups

SIZES = {name: 8 if name == "digits-cnn" or name.endswith("small") else 32 for name in MODELS}


@functools.cache
def plain(name: str) -> nn.Module:
    """One copy for all tests, none of which changes it."""
    return build(name, classes=5).eval()


@functools.cache
def layered(name: str) -> nn.Module:
    return decompose(plain(name), 4, init="orthonormal")


def images(name: str) -> torch.Tensor:
    return torch.randn(4, 3, SIZES[name], SIZES[name], generator=generator(0))


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def in_blocks(name: str, module: nn.Module) -> bool:
    """Chooses the 16 3x3 convolutions of a ResNet-18, neither the stem nor the shortcuts."""
    return name.startswith("layer") and module.kernel_size == (3, 3)


# counts, names, shapes


@pytest.mark.parametrize(
    "name, classes, whole, by_atoms",
    [
        ("lenet", 10, 797_962, {3: 703_776, 6: 716_790, 9: 729_804, 12: 742_818}),
        ("lenet", 100, 815_332, {3: 721_146, 6: 734_160, 9: 747_174, 12: 760_188}),
        ("fedrep-cnn", 10, 307_842, {3: 213_656, 6: 226_670, 9: 239_684, 12: 252_698}),
        ("fedrep-cnn100", 100, 1_075_044, {3: 890_746, 6: 916_048, 9: 941_350, 12: 966_652}),
        ("fedpac-cnn", 10, 107_690, {3: 83_259, 6: 91_260, 9: 99_261, 12: 107_262}),
        ("fedpac-cnn", 100, 119_300, {3: 94_869, 6: 102_870, 9: 110_871, 12: 118_872}),
    ],
)
def test_counts_are_the_published_ones(name: str, classes: int, whole: int, by_atoms: dict[int, int]) -> None:
    model = build(name, classes=classes)
    assert count(model) == whole
    assert {atoms: count(decompose(model, atoms, init="orthonormal")) for atoms in by_atoms} == by_atoms


def test_resnet_has_the_published_counts() -> None:
    model = build("resnet18", classes=200)
    assert count(model) == count(build("resnet18-gn", classes=200)) == 11_279_112
    assert count(decompose(model, 9, where=in_blocks, init="orthonormal")) == 11_280_408
    assert count(decompose(model, 3, where=in_blocks, init="orthonormal")) == 3_955_896
    stem = decompose(model, 9, where=lambda name, module: name == "conv1", init="orthonormal")
    assert count(stem) - count(model) == 11_273_169 - 11_280_408  # rank 9 of the 49 entries of a 7x7 kernel


@pytest.mark.parametrize(
    "name, coefficients, atoms", [("lenet", 38_592, 450), ("fedrep-cnn100", 75_456, 450), ("fedpac-cnn", 23_472, 531)]
)
def test_groups_have_the_published_counts(name: str, coefficients: int, atoms: int) -> None:
    model = decompose(build(name, classes=10), init="orthonormal")
    labels, state = groups(model), model.state_dict()
    size = lambda group: sum(state[entry].numel() for entry in state if labels[entry] == group)  # noqa: E731
    assert (size("coefficients"), size("atoms")) == (coefficients, atoms)


def test_digits_cnn_has_the_count_it_states() -> None:
    assert count(build("digits-cnn", classes=10, channels=1)) == 13_706


def test_names_of_the_layers_are_readable() -> None:
    layers = lambda name: list(dict.fromkeys(key.rpartition(".")[0] for key in plain(name).state_dict()))  # noqa: E731
    assert layers("digits-cnn") == ["conv1", "conv2", "fc1", "fc2"]
    assert layers("lenet") == layers("fedrep-cnn") == layers("fedrep-cnn100") == ["conv1", "conv2", "fc1", "fc2", "fc3"]
    assert layers("fedpac-cnn") == ["conv1", "conv2", "conv3", "fc1", "fc2"]


def test_resnet_has_the_names_and_the_order_of_torchvision() -> None:
    expected = ["conv1", "bn1"]
    for stage in range(1, 5):
        for block in range(2):
            expected += [f"layer{stage}.{block}.{part}" for part in ("conv1", "bn1", "conv2", "bn2")]
            if stage > 1 and block == 0:
                expected += [f"layer{stage}.{block}.downsample.0", f"layer{stage}.{block}.downsample.1"]
    expected.append("fc")
    batch, group = plain("resnet18"), plain("resnet18-gn")
    for model in (batch, group):
        assert list(dict.fromkeys(key.rpartition(".")[0] for key in model.state_dict())) == expected
    assert {name for name, _ in batch.named_parameters()} == set(group.state_dict())
    assert {module.num_groups for module in group.modules() if isinstance(module, nn.GroupNorm)} == {2}
    assert not any(isinstance(module, nn.BatchNorm2d) for module in group.modules())


def test_resnet_shrinks_the_image_32_times_and_the_small_stem_8_times() -> None:
    for name, factor in [("resnet18", 32), ("resnet18-small", 8)]:
        model, seen = copy.deepcopy(plain(name)), []
        model.layer4.register_forward_hook(lambda module, x, y, seen=seen: seen.append(tuple(y.shape)))
        model(torch.zeros(1, 3, 64, 64))
        assert seen == [(1, 512, 64 // factor, 64 // factor)]


def test_resnet_convolutions_start_as_in_torchvision() -> None:
    weight = plain("resnet18").layer3[1].conv1.weight
    assert weight.std().item() == pytest.approx((2 / (256 * 9)) ** 0.5, rel=0.02)  # fan_out
    stem = plain("resnet18").conv1.weight
    assert stem.std().item() == pytest.approx((2 / (64 * 49)) ** 0.5, rel=0.05)  # fan_in would be 4.6 times as wide


def test_a_residual_block_adds_its_input() -> None:
    block = copy.deepcopy(plain("resnet18").layer1[0])
    nn.init.zeros_(block.bn2.weight)
    x = torch.rand(2, 64, 8, 8)
    assert torch.equal(block(x), x)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_returns_logits_of_its_features(name: str) -> None:
    model, x = plain(name), images(name)
    *_, head = model.children()
    assert isinstance(head, nn.Linear)
    torch.testing.assert_close(model(x), head(model.features(x)))
    assert not torch.allclose(model(x).exp().sum(1), torch.ones(len(x)))  # no log_softmax


def test_channels_and_classes_are_what_was_asked_for() -> None:
    for name in MODELS:
        check_input(build(name, classes=7, channels=2), (2, SIZES[name], SIZES[name]), classes=7)


def test_fedpac_features_have_128_dimensions_and_negative_ones_leak() -> None:
    features = build("fedpac-cnn", classes=10).features(torch.randn(4, 3, 32, 32))
    assert features.shape == (4, 128) and features.min() < 0


def test_only_fedrep_cnn100_has_dropout_and_it_sits_before_the_head() -> None:
    dropouts = lambda name: [m.p for m in plain(name).modules() if isinstance(m, nn.Dropout)]  # noqa: E731
    assert {name: dropouts(name) for name in MODELS if dropouts(name)} == {"fedrep-cnn100": [0.6]}
    assert isinstance(plain("fedrep-cnn100")[-2], nn.Dropout)


# with the decomposition


@pytest.mark.parametrize("name", MODELS)
def test_fuse_inverts_decompose_and_loads_into_the_original_class(name: str) -> None:
    fused, original, x = fuse(layered(name)), copy.deepcopy(plain(name)), images(name)
    assert not torch.allclose(original(x), layered(name)(x))
    original.load_state_dict(fused.state_dict())
    torch.testing.assert_close(original(x), layered(name)(x))
    assert repr(fused) == repr(original) and type(fused) is type(original)


@pytest.mark.parametrize("name", [name for name in MODELS if "resnet" not in name])
def test_enough_atoms_leave_the_logits_unchanged(name: str) -> None:
    model, x = copy.deepcopy(plain(name)).double(), images(name).double()
    torch.testing.assert_close(decompose(model, 25, init="svd")(x), model(x))


@pytest.mark.parametrize("name", MODELS)
def test_groups_cover_the_state_dict(name: str) -> None:
    model = layered(name)
    labels, parameters = groups(model), dict(model.named_parameters())
    assert list(labels) == list(model.state_dict()) and set(labels.values()) <= set(GROUPS)
    assert {entry for entry, group in labels.items() if group == "statistics"} == set(labels) - set(parameters)
    head = "fc" if "resnet" in name else "fc2" if name in ("digits-cnn", "fedpac-cnn") else "fc3"
    assert {entry for entry, group in labels.items() if group == "head"} == {f"{head}.weight", f"{head}.bias"}
    assert ("statistics" in labels.values()) == (name in ("resnet18", "resnet18-small"))


@pytest.mark.parametrize("name", MODELS)
def test_gradients_reach_every_leaf(name: str) -> None:
    names, parameters = zip(*layered(name).named_parameters(), strict=True)
    gradients = torch.autograd.grad(layered(name)(images(name)).square().sum(), parameters)
    assert [entry for entry, gradient in zip(names, gradients, strict=True) if not gradient.any()] == []


# seeds


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(5)
    stream = torch.get_rng_state()
    one = build("lenet", classes=10).state_dict()
    assert torch.equal(torch.get_rng_state(), stream)
    torch.manual_seed(6)
    again, other = build("lenet", classes=10).state_dict(), build("lenet", classes=10, seed=1).state_dict()
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one)


# networks of the user


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder that is not on the path, as for the command line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


def test_a_factory_of_the_current_folder_is_called_with_what_it_takes(folder: Path) -> None:
    folder.joinpath("ownnet_a.py").write_text(
        "from torch import nn\n"
        "def takes(classes): return nn.Linear(2, classes)\n"
        "def keyword(*, classes=3, width=4): return nn.Linear(width, classes)\n"
        "def anything(**settings): return nn.Linear(2, settings['classes'])\n"
        "def nothing(): return nn.Linear(2, 1)\n"
        "class Net(nn.Linear):\n"
        "    def __init__(self, classes): super().__init__(2, classes)\n"
    )
    outputs = {
        name: build(f"ownnet_a:{name}", classes=6).out_features
        for name in ("takes", "keyword", "anything", "nothing", "Net")
    }
    assert outputs == {"takes": 6, "keyword": 6, "anything": 6, "nothing": 1, "Net": 6}
    first, second, other = (build("ownnet_a:Net", classes=6, seed=seed).weight for seed in (1, 1, 2))
    assert torch.equal(first, second) and not torch.equal(first, other)


@pytest.mark.parametrize(
    "name, reason",
    [
        ("no_such_module_b:net", "No module named 'no_such_module_b'"),
        ("ownnet_b:missing", "no function or class 'missing'"),
        ("ownnet_b:number", "no function or class 'number'"),
        ("ownnet_b:", "no function or class ''"),
        (":net", "importing '' fails"),
        ("broken_b:net", "division by zero"),
        ("ownnet_b:needs", "missing a required argument: 'width'"),
    ],
)
def test_what_is_no_factory_is_refused_with_what_to_type(folder: Path, name: str, reason: str) -> None:
    folder.joinpath("ownnet_b.py").write_text("number = 3\ndef needs(width, classes): pass\n")
    folder.joinpath("broken_b.py").write_text("1 / 0\n")
    with pytest.raises(ValueError) as caught:
        build(name, classes=2)
    message = str(caught.value)
    assert f"model='{name}'" in message and reason in message and "Type module:factory" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "ownnet_d:inst",
            "is a network, not a factory: name its class, or a function that makes it. Type module:factory",
        ),
        ("ownnet_d:passes", "unexpected keyword argument 'classes', but a factory gets classes= or nothing"),
    ],
)
def test_what_cannot_be_called_with_classes_is_refused_on_one_line(folder: Path, name: str, said: str) -> None:
    folder.joinpath("ownnet_d.py").write_text(
        "import functools\nfrom torch import nn\n"
        "inst = nn.Linear(2, 6)\n"
        "passes = functools.wraps(lambda **options: 0)(functools.partial(nn.ReLU))\n"
    )
    with pytest.raises(ValueError) as error:
        build(name, classes=6)
    message = str(error.value)
    assert said in message and f"model='{name}'" in message and "\n" not in message


def test_an_error_of_a_factorys_own_code_has_its_line(folder: Path) -> None:
    folder.joinpath("ownnet_f.py").write_text("def net(classes):\n    return 1 + 'a'\n")
    with pytest.raises(ValueError, match="your model ownnet_f:net failed in line 2: TypeError"):
        build("ownnet_f:net", classes=6)


def test_a_module_without_an_init_of_its_own_is_called_with_nothing(folder: Path) -> None:
    folder.joinpath("ownnet_e.py").write_text("from torch import nn\nclass Net(nn.Module): pass\n")
    assert type(build("ownnet_e:Net", classes=6)).__name__ == "Net"


def test_a_factory_that_returns_no_module_is_refused(folder: Path) -> None:
    folder.joinpath("ownnet_c.py").write_text("def net(classes): return classes\n")
    with pytest.raises(ValueError, match=r"'ownnet_c:net' returns int: .* torch\.nn\.Module"):
        build("ownnet_c:net", classes=2)


def test_an_unknown_name_is_refused_with_the_nearest_and_the_list() -> None:
    with pytest.raises(ValueError, match=r"unknown model 'lennet'.*'lenet'.*fedpac-cnn.*resnet18-gn-small"):
        build("lennet", classes=2)


# images that do not fit


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8), (1, 32, 32), (3, 64, 64)])
def test_images_that_do_not_fit_are_refused_in_one_line(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError) as caught:
        check_input(build("lenet", classes=10), shape, classes=10)
    message = str(caught.value)
    assert f"images of shape {shape} do not fit" in message and "digits-cnn for 8x8" in message and "\n" not in message


@pytest.mark.parametrize(("shape", "axis"), [((32, 32), True), ((7,), False)])
def test_samples_that_are_no_images_get_no_advice_on_images(shape: tuple[int, ...], axis: bool) -> None:
    with pytest.raises(ValueError) as caught:
        check_input(build("lenet", classes=10), shape, classes=10)
    message = str(caught.value)
    assert message.startswith(f"samples of shape {shape} do not fit") and "digits-cnn" not in message
    assert ("they lack the axis of channels: x[:, None]" in message) == axis and "\n" not in message


def test_an_error_of_many_lines_is_told_in_one() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("first\n  second")

    with pytest.raises(ValueError, match=r"do not fit the model \(first second\)"):
        check_input(Broken(), (1, 8, 8), classes=2)


def test_a_wrong_number_of_classes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(2, 10\) where \(2, 7\) is needed: build the model with classes=7"):
        check_input(build("lenet", classes=10), (3, 32, 32), classes=7)


def test_a_model_that_returns_more_than_logits_is_refused() -> None:
    with pytest.raises(ValueError, match=r"returns tuple: return the logits alone"):
        check_input(nn.LSTM(3, 4), (5, 3), classes=4)


@pytest.mark.parametrize("name", ["resnet18-small", "fedrep-cnn100"])
def test_the_check_leaves_the_model_and_the_stream_as_they_were(name: str) -> None:
    model = build(name, classes=10).double().train()
    before, stream = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    check_input(model, (3, SIZES[name], SIZES[name]), classes=10)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(module.training for module in model.modules()) and torch.equal(torch.get_rng_state(), stream)


def test_a_model_without_parameters_can_be_checked() -> None:
    check_input(nn.Flatten(), (1, 2, 2), classes=4)
