"""Laws of the decomposition: what is rebuilt, what is kept, what is labelled, and what is refused."""

import copy
import math
import warnings
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.cases import some_now
from support.resnet50 import ResNet50
from support.small import any_convolutions
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional
from torch.nn.utils import prune

from fedatoms.core.options import GROUPS, Init
from fedatoms.core.randomness import generator
from fedatoms.nn.atoms import MANY, AtomConv, AtomConv2d, compose, decompose, fuse, is_decomposed
from fedatoms.nn.layers import Conv
from fedatoms.nn.parameter_groups import groups
from fedatoms.nn.pure import network

few = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 2**32)
# torch itself says so for plain convolutions with an even kernel
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")


def everywhere(name: str, module: nn.Module) -> bool:
    return True


def entries(conv: Conv) -> int:
    return math.prod(conv.kernel_size)


def images(conv: Conv, batch: int = 2) -> Tensor:
    return torch.randn(batch, conv.in_channels, *[8] * len(conv.kernel_size), dtype=conv.weight.dtype)


def net() -> nn.Sequential:
    """A small network with everything that must be left alone: 1x1, BatchNorm, two linear layers."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 1), nn.Conv2d(6, 6, (3, 5))]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 6), nn.Linear(6, 4)).double()


def named(conv: nn.Module) -> nn.Module:
    model = nn.Module()
    model.conv = conv
    return model


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def same_state(a: nn.Module, b: nn.Module) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return list(left) == list(right) and all(torch.equal(left[name], right[name]) for name in left)


# what is rebuilt


@few
@given(any_convolutions(), st.integers(1, 20))
def test_the_filter_is_the_sum_over_atoms(conv: Conv, atoms: int) -> None:
    layer = decompose(conv, atoms, where=everywhere, init="orthonormal")
    close(layer.filter(), torch.einsum("oiq,q...->oi...", layer.coefficients, layer.atoms))
    assert layer.filter().shape == conv.weight.shape


@few
@given(any_convolutions(dims=2), st.integers(1, 12))
def test_one_convolution_equals_atoms_per_channel_and_then_1x1(conv: Conv, atoms: int) -> None:
    layer = decompose(conv, atoms, where=everywhere, init="orthonormal")
    pad, channels = conv._reversed_padding_repeated_twice, conv.in_channels
    x = images(conv)
    mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
    padded = functional.pad(x, pad, mode=mode)
    per_channel = layer.atoms.unsqueeze(1).repeat(channels, 1, 1, 1)  # (I * M, 1, K, K)
    y = functional.conv2d(padded, per_channel, None, conv.stride, 0, conv.dilation, groups=channels)
    close(layer(x), functional.conv2d(y, layer.coefficients.flatten(1)[..., None, None], conv.bias, groups=conv.groups))


@few
@given(any_convolutions(), st.integers(0, 3), st.booleans())
def test_enough_atoms_reproduce_the_convolution_without_a_warning(conv: Conv, spare: int, batched: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = decompose(conv, entries(conv) + spare, where=everywhere, init="svd")
    x = images(conv) if batched else images(conv)[0]
    close(layer(x), conv(x))
    close(layer.atoms.flatten(1).norm(dim=1), torch.ones(len(layer.atoms), dtype=torch.float64))


@few
@given(st.integers(1, 4), st.integers(2, 4), st.integers(2, 4), st.integers(1, 5), seeds)
def test_fewer_atoms_are_the_best_of_their_rank_and_say_so(width: int, k1: int, k2: int, atoms: int, seed: int) -> None:
    torch.manual_seed(seed)
    conv = nn.Conv2d(width, 5, (k1, k2), dtype=torch.float64)
    rows = conv.weight.detach().reshape(-1, k1 * k2)
    S = torch.linalg.svdvals(rows)
    atoms = min(atoms, len(S) - 1)
    kept = 1 - S[atoms:].square().sum() / S.square().sum()
    with pytest.warns(UserWarning, match=rf"layer 'conv'.*rank {atoms} of {len(S)}.*{kept:.1%}.*Use atoms={len(S)}"):
        model = decompose(named(conv), atoms, init="svd")
    close((model.conv.filter() - conv.weight).norm(), S[atoms:].norm())


def test_a_filter_of_low_rank_or_of_zeros_needs_no_more_atoms_and_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        low = fuse(decompose(nn.Conv2d(8, 8, 5), 7, init="orthonormal"))
        assert torch.allclose(decompose(low, 7, init="svd").filter(), low.weight, atol=1e-6)
        zeros = copy.deepcopy(low)
        nn.init.zeros_(zeros.weight)
        assert not decompose(zeros, 3, init="svd").filter().any()


@pytest.mark.filterwarnings("ignore:layer")
@pytest.mark.parametrize("shape", [(64, 64), (65, 64), (128, 70), (1, 3)])  # rows of one block, of several, and few
def test_a_tall_layer_is_kept_as_well_as_a_short_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(shape[1], shape[0], 3, dtype=torch.float64)
    conv.weight.data *= torch.logspace(0, -6, 9).reshape(3, 3)  # singular values far apart
    rows = conv.weight.detach().reshape(-1, 9)
    S = torch.linalg.svdvals(rows)
    for atoms in range(1, 12):
        layer = decompose(conv, atoms)
        lost = (layer.filter() - conv.weight).norm() / rows.norm()
        torch.testing.assert_close(lost, S[atoms:].norm() / rows.norm(), rtol=1e-6, atol=1e-14)


@pytest.mark.slow
def test_a_resnet50_keeps_its_outputs() -> None:
    model, x = ResNet50().eval(), torch.randn(1, 3, 64, 64)
    made = decompose(model, atoms=49)
    assert sum(isinstance(layer, AtomConv) for layer in made.modules()) == 17
    with torch.no_grad():
        torch.testing.assert_close(made(x), model(x), rtol=1e-3, atol=1e-3)


def test_the_weights_that_a_model_has_are_kept_unless_a_fresh_start_is_asked_for() -> None:
    model, x = net().eval(), torch.randn(3, 2, 9, 9, dtype=torch.float64)
    close(decompose(model, 15)(x), model(x))
    assert same_state(decompose(model, 15), decompose(model, 15, init="svd"))
    assert not torch.allclose(decompose(model, 15, init="orthonormal")(x), model(x))
    with pytest.warns(UserWarning, match=r"layer '4': 9 atoms give rank 9 of 15 and keep"):
        decompose(model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.complex64])
def test_svd_keeps_every_dtype(dtype: torch.dtype) -> None:
    conv = nn.Conv2d(3, 4, 3, dtype=dtype)
    layer = decompose(conv, init="svd")
    assert {p.dtype for p in layer.parameters()} == {dtype}
    error = (layer.filter() - conv.weight).abs().max() / conv.weight.abs().max()
    assert error < 100 * torch.finfo(dtype).eps


@pytest.mark.parametrize(
    ("atoms", "init", "split"),
    some_now([1, 4, 9, 13, 27], ["orthonormal", "dct", "fourier-bessel", "kaiming"], [1, 4], times=2),
)
def test_fresh_filters_have_the_stated_variance(init: str, atoms: int, split: int) -> None:
    conv = nn.Conv2d(64, 32, 3, groups=split)
    draws = [
        decompose(conv, atoms, init=init, generator=generator(i)).filter()
        for i in range(100 if init == "kaiming" else 20)
    ]
    measured = torch.stack(draws).square().mean().item() * conv.weight[0].numel()
    assert measured == pytest.approx(4 / atoms if init == "kaiming" else 1 / 3, rel=0.1)


def test_plain_torch_has_the_variance_that_orthonormal_aims_at() -> None:
    torch.manual_seed(0)
    assert nn.Conv2d(64, 64, 3).weight.square().mean().item() * 64 * 9 == pytest.approx(1 / 3, rel=0.03)


@pytest.mark.parametrize("init", ["orthonormal", "dct"])
@pytest.mark.parametrize("atoms", [1, 5, 9, 22])
def test_orthonormal_atoms_are_stacks_of_orthonormal_sets(atoms: int, init: Init) -> None:
    rows = decompose(nn.Conv2d(2, 2, 3, dtype=torch.float64), atoms, init=init).atoms.flatten(1)
    for start in range(0, atoms, 9):
        part = rows[start : start + 9]
        close(part @ part.T, torch.eye(len(part), dtype=torch.float64))


@few
@given(st.integers(1, 5), st.integers(1, 10), seeds)
def test_mean_atoms_times_mean_coefficients_is_the_double_sum_over_latent_clients(C: int, M: int, seed: int) -> None:
    conv = nn.Conv2d(2, 3, 3, dtype=torch.float64)
    clients = [decompose(conv, M, generator=generator(seed, client), init="orthonormal") for client in range(C)]
    p = torch.rand(C, generator=generator(seed), dtype=torch.float64) + 0.1
    p = p / p.sum()
    states = [client.state_dict() for client in clients]
    server = copy.deepcopy(clients[0])
    server.load_state_dict({name: sum(p[k] * states[k][name] for k in range(C)) for name in states[0]})
    double_sum = sum(
        p[i] * p[j] * torch.tensordot(states[i]["coefficients"], states[j]["atoms"], 1)
        for i in range(C)
        for j in range(C)
    )
    close(server.filter(), double_sum)


# what is kept


@few
@given(any_convolutions(), st.integers(1, 12))
def test_fuse_gives_a_plain_convolution_with_the_same_settings_and_outputs(conv: Conv, atoms: int) -> None:
    layer = decompose(conv, atoms, where=everywhere, init="orthonormal")
    plain = fuse(layer)
    assert type(plain) is type(conv) and repr(plain) == repr(conv)
    x = images(conv)
    close(plain(x), layer(x))
    conv.load_state_dict(plain.state_dict())
    close(conv(x), layer(x))


def test_fuse_inverts_decompose_and_loads_into_the_original() -> None:
    model = net().eval()
    back = fuse(decompose(model, 15, init="svd"))
    x = torch.randn(3, 2, 9, 9, dtype=torch.float64)
    close(back(x), model(x))
    fresh = fuse(decompose(model, 4, init="orthonormal"))
    model.load_state_dict(fresh.state_dict())
    assert torch.equal(model(x), fresh(x)) and not is_decomposed(fresh)


def test_twice_equals_once() -> None:
    once = decompose(net(), 5, init="orthonormal")
    twice = decompose(once, 5, generator=generator(1, "other"), init="orthonormal")
    assert same_state(once, twice) and repr(once) == repr(twice)
    assert repr(fuse(fuse(once))) == repr(net())


def test_the_input_and_the_global_stream_are_untouched() -> None:
    model = net()
    before, text, stream = copy.deepcopy(model), repr(model), torch.get_rng_state()
    layered = decompose(model, init="orthonormal")
    frozen = copy.deepcopy(layered)
    plain = fuse(layered)
    for changed in (layered, plain):
        for parameter in changed.parameters():
            parameter.data.fill_(7.0)
    assert same_state(model, before) and repr(model) == text and not is_decomposed(model)
    assert is_decomposed(layered) and not same_state(layered, frozen)
    assert torch.equal(torch.get_rng_state(), stream)


def test_fuse_leaves_its_input_untouched() -> None:
    layered = decompose(net(), init="orthonormal")
    before = copy.deepcopy(layered)
    for parameter in fuse(layered).parameters():
        parameter.data.fill_(7.0)
    assert same_state(layered, before)


def test_the_same_generator_gives_the_same_factors() -> None:
    default, one, again, two = (
        decompose(net(), generator=g, init="orthonormal") for g in (None, generator(1), generator(1), generator(2))
    )
    assert (
        same_state(one, again)
        and not same_state(one, two)
        and same_state(default, decompose(net(), init="orthonormal"))
    )
    assert torch.allclose(
        one.float()[0].atoms, decompose(net().float(), generator=generator(1), init="orthonormal")[0].atoms
    )


@pytest.mark.parametrize("init", get_args(Init))
def test_the_bias_is_copied(init: str) -> None:
    model = net()
    layered = decompose(model, 15, init=init)
    assert torch.equal(layered[0].bias, model[0].bias) and layered[0].bias is not model[0].bias
    assert decompose(nn.Conv2d(2, 2, 3, bias=False), init=init).bias is None


def test_by_default_only_spatial_kernels_are_replaced_and_where_decides_otherwise() -> None:
    replaced = lambda model: [name for name, m in model.named_modules() if isinstance(m, AtomConv)]  # noqa: E731
    model = net()
    assert replaced(decompose(model, init="orthonormal")) == ["0", "4"]
    assert replaced(decompose(model, where=everywhere, init="orthonormal")) == ["0", "3", "4"]
    assert replaced(decompose(model, where=lambda name, module: module is model[3], init="orthonormal")) == ["3"]
    assert replaced(decompose(nn.Conv2d(2, 2, (1, 3)), init="orthonormal")) == [""]


def test_parametrized_convolutions_are_left_alone_and_named() -> None:
    normed = nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 2, 3))
    with pytest.warns(UserWarning, match=r"one layer stays plain: '0' \(it is parametrized"):
        model = decompose(nn.Sequential(normed, nn.Conv2d(2, 2, 3)), where=everywhere, init="orthonormal")
    assert [isinstance(layer, AtomConv) for layer in model] == [False, True]


def test_shared_modules_stay_shared() -> None:
    conv = nn.Conv2d(2, 2, 3, padding=1)
    block = nn.Sequential(conv, nn.ReLU())
    model = nn.Sequential(conv, block, block, nn.ModuleDict({"again": block}))
    layered = decompose(model, init="orthonormal")
    assert layered[0] is layered[1][0] and layered[1] is layered[2] is layered[3]["again"]
    assert isinstance(layered[0], AtomConv)
    plain = fuse(layered)
    assert plain[0] is plain[1][0] and plain[1] is plain[2] and type(plain[0]) is nn.Conv2d
    assert len(list(layered.parameters())) == 3 and len(list(plain.parameters())) == 2


def test_tied_weights_stay_tied() -> None:
    a, b = nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3, stride=2)
    b.weight = a.weight
    layered = decompose(nn.Sequential(a, b), init="orthonormal")
    assert layered[0].atoms is layered[1].atoms and layered[0].coefficients is layered[1].coefficients
    assert layered[0].bias is not layered[1].bias
    plain = fuse(layered)
    assert plain[0].weight is plain[1].weight and plain[1].stride == (2, 2)


@pytest.mark.parametrize("chosen", ["0", "1"])
def test_one_of_two_layers_that_share_a_weight_is_refused_by_both_names(chosen: str) -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3))
    model[1].weight = model[0].weight
    other = {"0": "1", "1": "0"}[chosen]
    with pytest.raises(ValueError, match=rf"layer '{chosen}' shares its weight with layer '{other}'.*both or neither"):
        decompose(model, where=lambda name, module: name == chosen)
    alone = nn.Sequential(model, model[0], nn.Conv2d(2, 2, 3))
    assert not isinstance(decompose(alone, where=lambda name, module: name == "2")[1], AtomConv)


@pytest.mark.parametrize("training", [True, False])
def test_mode_and_dtype_are_kept(training: bool) -> None:
    model = net().half().train(training)
    for result in (decompose(model, init="orthonormal"), fuse(decompose(model, init="orthonormal"))):
        assert all(module.training is training for module in result.modules())
        assert {tensor.dtype for tensor in result.parameters()} == {torch.float16}


def test_the_device_is_kept() -> None:
    layered = decompose(nn.Conv2d(2, 2, 3, device="meta"), init="orthonormal")
    assert {p.device.type for p in layered.parameters()} == {"meta"} == {fuse(layered).weight.device.type}


@pytest.mark.parametrize("init", ["orthonormal", "kaiming", "svd"])
def test_frozen_filters_that_start_afresh_are_named_and_svd_keeps_them(init: Init) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3))
    model[1].requires_grad_(False)
    says = r"^layer '1' is frozen, and a fresh start replaces filters that are never trained then\. Use init='svd'"
    with warnings.catch_warnings() if init == "svd" else pytest.warns(UserWarning, match=says):
        layered = decompose(model, init=init)
    assert not layered[1].atoms.requires_grad and layered[0].atoms.requires_grad


@pytest.mark.parametrize("weight", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_frozen_stays_frozen(weight: bool, bias: bool) -> None:
    conv = nn.Conv2d(2, 2, 3)
    conv.weight.requires_grad_(weight)
    conv.bias.requires_grad_(bias)
    layer = decompose(conv, init="svd")
    assert [layer.atoms.requires_grad, layer.coefficients.requires_grad, layer.bias.requires_grad] == [
        weight,
        weight,
        bias,
    ]
    assert [fuse(layer).weight.requires_grad, fuse(layer).bias.requires_grad] == [weight, bias]


@few
@given(any_convolutions(), st.integers(1, 12))
def test_gradients_reach_every_leaf(conv: Conv, atoms: int) -> None:
    layer = decompose(conv, atoms, where=everywhere, init="orthonormal")
    layer(images(conv)).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_the_state_dict_makes_the_round_trip() -> None:
    one, two = (
        decompose(net(), generator=generator(1), init="orthonormal"),
        decompose(net(), generator=generator(2), init="orthonormal"),
    )
    assert not same_state(one, two)
    two.load_state_dict(one.state_dict())
    assert same_state(one, two)
    assert list(decompose(nn.Conv2d(2, 2, 3), init="orthonormal").state_dict()) == ["atoms", "coefficients", "bias"]


@few
@given(any_convolutions())
def test_clients_in_one_vmap_equal_clients_in_a_loop(conv: Conv) -> None:
    clients = [decompose(conv, 5, where=everywhere, generator=generator(k), init="orthonormal") for k in range(3)]
    x = torch.stack([images(conv) for _ in clients])
    shell = clients[0]

    def loss(params: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(shell, params, (x,)).square().sum()

    stacked, _ = stack_module_state(clients)
    together = vmap(grad(loss))(stacked, x)
    for k, client in enumerate(clients):
        alone = grad(loss)(dict(client.named_parameters()), x[k])
        for name, leaf in alone.items():
            close(together[name][k], leaf)


def test_the_repr_shows_settings_and_rank() -> None:
    conv = nn.Conv2d(4, 8, 3, stride=2, padding=1, dilation=2, groups=2, bias=False, padding_mode="circular")
    assert repr(decompose(conv, 12, init="orthonormal")) == (
        "AtomConv2d(4, 8, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), dilation=(2, 2), groups=2, "
        "padding_mode='circular', bias=False, atoms=12, rank=9/9)"
    )


# what is labelled


def test_every_entry_has_its_group() -> None:
    model = decompose(net(), init="orthonormal")
    labels = groups(model)
    assert list(labels) == list(model.state_dict()) and set(labels.values()) == set(GROUPS)
    assert {name for name, group in labels.items() if group == "atoms"} == {"0.atoms", "4.atoms"}
    assert {name for name, group in labels.items() if group == "coefficients"} == {"0.coefficients", "4.coefficients"}
    assert {name for name, group in labels.items() if group == "head"} == {"8.weight", "8.bias"}
    assert {name for name, group in labels.items() if group == "statistics"} == {
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    }
    assert labels["0.bias"] == labels["1.weight"] == labels["3.weight"] == labels["7.weight"] == "rest"


def test_the_head_can_be_named() -> None:
    model = decompose(net(), init="orthonormal")
    heads = lambda head: {name for name, group in groups(model, head).items() if group == "head"}  # noqa: E731
    assert heads("7") == {"7.weight", "7.bias"}
    assert heads(["7", "8"]) == {"7.weight", "7.bias", "8.weight", "8.bias"}
    assert heads(["0"]) == {"0.atoms", "0.coefficients", "0.bias"}
    assert heads([]) == set()
    assert (
        groups(nn.Sequential(nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))), "0")["0.1.running_var"] == "statistics"
    )


def test_a_head_holds_all_that_lies_in_it_and_nothing_else() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Conv2d(1, 1, 3)), *[nn.ReLU()] * 8, nn.Conv2d(1, 1, 3))
    assert groups(model, "1") == {"1.0.weight": "head", "1.0.bias": "head", "10.weight": "rest", "10.bias": "rest"}
    assert set(groups(model, "").values()) == {"head"}


def test_a_model_without_a_linear_layer_has_no_head_and_a_linear_layer_is_its_own() -> None:
    assert set(groups(nn.Sequential(nn.Conv2d(1, 1, 3))).values()) == {"rest"}
    assert set(groups(nn.Linear(1, 1)).values()) == {"head"}


def test_all_names_of_a_tied_parameter_have_one_group() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    model[0].weight = model[2].weight
    assert groups(model) == {"0.weight": "head", "0.bias": "rest", "2.weight": "head", "2.bias": "head"}
    conv = nn.Conv2d(1, 1, 3)
    assert (
        list(groups(decompose(nn.Sequential(conv, conv), init="orthonormal")).values())
        == ["atoms", "coefficients", "rest"] * 2
    )


# what is refused


@pytest.mark.parametrize("atoms", [0, -3])
def test_too_few_atoms_are_refused(atoms: int) -> None:
    with pytest.raises(ValueError, match=rf"atoms={atoms} is less than 1.*Use atoms=9"):
        decompose(net(), atoms, init="orthonormal")


@pytest.mark.parametrize("atoms", [9.0, True, "9", None])
def test_atoms_that_are_no_count_are_refused(atoms: int) -> None:
    with pytest.raises(TypeError, match=rf"atoms={atoms!r} is not an int.*Use atoms=9"):
        decompose(net(), atoms, init="orthonormal")


def test_a_count_of_numpy_is_a_count() -> None:
    layers = [
        layer for layer in decompose(net(), np.int64(5), init="orthonormal").modules() if isinstance(layer, AtomConv)
    ]
    assert layers and all(len(layer.atoms) == 5 for layer in layers)


def test_where_that_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match=r"where='0' is not a function. Use where=lambda name, module: name == '0'"):
        decompose(net(), where="0", init="orthonormal")  # type: ignore[arg-type]


def test_an_unknown_init_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'orthonormall'.*Did you mean 'orthonormal'.*svd"):
        decompose(net(), init="orthonormall")


@pytest.mark.parametrize("model", [nn.Linear(2, 2), nn.Conv2d(2, 2, 1), nn.ConvTranspose2d(2, 2, 1)])
def test_a_model_without_a_convolution_is_refused(model: nn.Module) -> None:
    with pytest.raises(ValueError, match=rf"{type(model).__name__} has no convolution to replace.*where=lambda"):
        decompose(model, init="orthonormal")


def test_a_choice_of_no_layer_names_the_layers_there_are() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3))
    with pytest.raises(ValueError, match=r"no convolution is chosen: there are '0', '2'. Use .* name == '0'"):
        decompose(model, where=lambda name, module: name == "conv1", init="orthonormal")


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_a_layer_without_filters_yet_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"layer '0' \(LazyConv2d\) is lazy and has no weights yet. Run a batch"):
        decompose(nn.Sequential(nn.LazyConv2d(2, 3)), init="orthonormal")
    with pytest.raises(ValueError, match="no convolution to replace"):  # a lazy layer of another kind is not to blame
        decompose(nn.Sequential(nn.LazyLinear(2)), init="orthonormal")


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_a_computed_weight_is_refused_unless_left_out(norm: object) -> None:
    model = nn.Sequential(norm(nn.Conv2d(2, 2, 3)), nn.Conv2d(2, 2, 3))
    with pytest.raises(ValueError, match=r"layer '0' computes its weight.*where="):
        decompose(model, init="orthonormal")


def test_a_pruned_weight_is_refused_until_made_plain() -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 3))
    prune.l1_unstructured(model[0], "weight", 3)
    with pytest.raises(ValueError, match=r"layer '0' computes its weight.*prune\.remove"):
        decompose(model, init="orthonormal")
    prune.remove(model[0], "weight")
    assert is_decomposed(decompose(model, init="orthonormal"))


def test_factors_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"use shapes \(8, 3, 4\) and \(4, 5, 5\)"):
        AtomConv.of(nn.Conv2d(3, 8, 5), nn.Parameter(torch.ones(4, 5, 5)), nn.Parameter(torch.ones(3, 8, 4)))


def test_an_unknown_head_is_refused_with_the_nearest() -> None:
    model = nn.Module()
    model.classifier = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"head module 'clasifier'.*Did you mean 'classifier'"):
        groups(model, "clasifier")
    with pytest.raises(ValueError, match=r"head module 'fc'"):
        groups(model, ["classifier", "fc"])


def test_another_number_of_atoms_is_refused_for_layers_that_have_theirs() -> None:
    once = decompose(net(), 5, init="orthonormal")
    with pytest.raises(
        ValueError, match=r"layer '0' has 5 atoms already, and atoms=7 would not change it. Use atoms=5"
    ):
        decompose(once, 7, init="orthonormal")
    with pytest.raises(ValueError, match="has 5 atoms already"):
        decompose(once, 7, where=lambda name, module: True, init="orthonormal")
    first, *others = [name for name, module in net().named_modules() if isinstance(module, nn.Conv2d)]
    half = decompose(net(), 5, where=lambda name, module: name == first, init="orthonormal")
    both = decompose(
        half, 7, where=lambda name, module: name in others, init="orthonormal"
    )  # each layer has its own number
    assert {len(layer.atoms) for layer in both.modules() if isinstance(layer, AtomConv2d)} == {5, 7}
    again = decompose(fuse(once), 7, init="svd")
    assert all(len(layer.atoms) == 7 for layer in again.modules() if isinstance(layer, AtomConv2d))


def test_hooks_stay_on_their_layers() -> None:
    """On inputs, outputs and gradients, with keyword arguments or without, decomposed, fused and in training."""
    model, seen = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Dropout(0.5), nn.BatchNorm2d(2)), list[str]()
    for layer in model:
        layer.register_forward_pre_hook(lambda module, inputs: seen.append("before"))
        layer.register_forward_hook(lambda module, inputs, options, out: seen.append("after"), with_kwargs=True)
        layer.register_full_backward_hook(lambda module, inward, outward: seen.append("gradient"))
    model[0].register_forward_hook(lambda module, inputs, out: 2 * out)
    x = torch.randn(2, 1, 5, 5, requires_grad=True)
    for made in (decompose(model, 9, init="svd"), fuse(decompose(model, 9, init="svd"))):
        seen.clear()
        made(x).sum().backward()
        assert [seen.count(each) for each in ("before", "after", "gradient")] == [3, 3, 3], type(made[0])
        assert torch.allclose(made[0](x), model[0](x), atol=1e-5)
    pure, params = network(model), {**dict(model.named_parameters()), **dict(model.named_buffers())}
    seen.clear()
    pure.train(params, x, torch.tensor([True, True]), torch.tensor(0))
    assert seen.count("before") == 3


def test_coefficients_that_cannot_fit_are_refused_before_they_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedatoms.nn.atoms.available", lambda: 10**6)
    with pytest.raises(ValueError, match=r"most of it for coefficients, but 0\.0 GB are left. Lower atoms, or leave"):
        decompose(nn.Conv2d(64, 64, 3), 1000, init="orthonormal")
    decompose(nn.Conv2d(64, 64, 3), 9, init="orthonormal")


def test_a_network_without_values_is_refused_in_one_line() -> None:
    with pytest.raises(
        ValueError, match=r"'0.weight' of the model is on the device meta and has no values. Load"
    ) as told:
        decompose(nn.Sequential(nn.Conv2d(3, 4, 3, device="meta")))
    assert "\n" not in str(told.value)
    fresh = decompose(nn.Sequential(nn.Conv2d(3, 4, 3, device="meta")), init="orthonormal")
    assert sum(leaf.numel() for leaf in fresh.parameters()) == 9 * 9 + 9 * 12 + 4


@pytest.mark.parametrize("clients", [None, 3])
@pytest.mark.parametrize(("filters", "kernel"), [(MANY, 9), (MANY + 1, 9), (MANY - 2, 9), (MANY, 25), (MANY, 1)])
def test_filters_and_their_gradients_are_the_same_however_many_are_composed_at_once(
    filters: int, kernel: int, clients: int | None
) -> None:
    draws, lead = torch.Generator().manual_seed(0), [] if clients is None else [clients]
    coefficients = torch.randn(*lead, filters, 1, 4, generator=draws).double()
    atoms = torch.randn(*lead, 4, kernel, generator=draws).double()

    def of(function):  # noqa: ANN001, ANN202
        both = grad(lambda a, d: function(a, d).sin().sum(), argnums=(0, 1))
        return (vmap(both) if clients else both)(coefficients, atoms)

    for found, expected in zip(of(compose), of(lambda a, d: torch.tensordot(a, d, 1)), strict=True):
        assert torch.allclose(found, expected, rtol=0, atol=1e-12)
