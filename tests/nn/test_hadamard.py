"""Laws of FedPara: how large, what is rebuilt, how it starts, what is kept, what is personal, and what is refused."""

import copy
import dataclasses

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.cases import some_now
from support.small import any_convolutions, clients_of, difference, play
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from fedatoms.algorithms import ALGORITHMS, algorithm
from fedatoms.core.randomness import generator
from fedatoms.engine.spec import Simulation
from fedatoms.engine.training import Training
from fedatoms.experiment.build import network_of
from fedatoms.experiment.fields import Experiment
from fedatoms.nn.atoms import decompose, fuse
from fedatoms.nn.hadamard import HadamardConv, HadamardLinear, LowRank, factorise, personal_factors, rank
from fedatoms.nn.layers import Conv
from fedatoms.nn.models import fedrep_cnn100, lenet, resnet18
from fedatoms.nn.parameter_groups import groups

few = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
gammas = st.floats(0, 1)
# torch itself says so for plain convolutions with an even kernel
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")


def convolutions() -> st.SearchStrategy[Conv]:
    """Convolutions that are wide enough, for 6-pixel inputs."""
    return any_convolutions(widths=(9, 20), kernel=3).filter(lambda conv: rank(tuple(conv.weight.shape), 0) is not None)


def images(conv: Conv) -> Tensor:
    return torch.randn(2, conv.in_channels, *[6] * len(conv.kernel_size), dtype=conv.weight.dtype)


def net() -> nn.Sequential:
    """A small network with what is factorised (3, 5) and what is not: a narrow layer, BatchNorm, the head."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 16, 3), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 3)).double()


def count(model: nn.Module) -> int:
    return sum(leaf.numel() for leaf in model.parameters())


def replaced(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, HadamardLinear | HadamardConv)]


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


# how large


@pytest.mark.parametrize(
    ("make", "counts"),
    [
        (lenet, {0: 125_012, 0.1: 191_348, 0.3: 332_070, 0.4: 400_438, 0.5: 467_100}),
        (fedrep_cnn100, {0: 149_364, 0.1: 236_870, 0.3: 422_228, 0.4: 512_822, 0.5: 605_916}),
    ],
)
def test_networks_have_the_published_ranks_and_counts(make: type, counts: dict[float, int]) -> None:
    for gamma, expected in counts.items():
        assert count(factorise(make(classes=100), gamma)) == expected


@given(st.integers(1, 300), st.integers(1, 300), st.lists(st.integers(1, 5), max_size=3), gammas)
def test_factors_are_never_more_than_weights_and_grow_with_gamma(O: int, I: int, K: list[int], gamma: float) -> None:  # noqa: E741
    shape, N = (O, I, *K), torch.Size(K).numel()
    R = rank(shape, gamma)
    size = lambda R: 2 * R * (O + I + (R * N if N > 1 else 0))  # noqa: E731
    least, largest = rank(shape, 0), rank(shape, 1)
    if R is None:
        assert least is None and largest is None
    else:
        assert least is not None and largest is not None and least <= R <= largest
        assert size(largest) <= O * I * N < size(largest + 1) and least**2 >= min(O, I)


@few
@given(convolutions(), gammas)
def test_a_convolution_has_the_parameters_of_the_formula(conv: Conv, gamma: float) -> None:
    layer = factorise(conv, gamma)
    O, I, *K = conv.weight.shape  # noqa: E741
    N, R = torch.Size(K).numel(), layer.first.X.shape[1]
    bias = 0 if conv.bias is None else O
    assert count(layer) == 2 * R * (O + I + (R * N if N > 1 else 0)) + bias <= count(conv)


# what is rebuilt


@few
@given(convolutions(), gammas, st.booleans())
def test_the_filter_is_the_product_of_two_tucker_forms(conv: Conv, gamma: float, personal: bool) -> None:
    layer = factorise(conv, gamma, personal=personal)
    tucker = lambda h: (  # noqa: E731
        torch.einsum("or,ir->oi", h.X, h.Y) if h.T is None else torch.einsum("rs...,or,is->oi...", h.T, h.X, h.Y)
    )
    W1, W2 = tucker(layer.first), tucker(layer.second)
    close(layer.filter(), (W1 * (W2 + 1 if personal else W2)).reshape(conv.weight.shape))


@few
@given(convolutions(), st.booleans())
def test_fuse_gives_a_plain_convolution_with_the_same_settings_and_outputs(conv: Conv, personal: bool) -> None:
    layer = factorise(conv, personal=personal)
    plain, x = fuse(layer), images(conv)
    assert repr(plain) == repr(conv) and list(plain.state_dict()) == list(conv.state_dict())
    close(plain(x), layer(x))
    conv.load_state_dict(plain.state_dict())
    close(conv(x), layer(x))


@pytest.mark.parametrize("personal", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_fuse_gives_a_plain_linear_layer_with_the_same_outputs(personal: bool, bias: bool) -> None:
    model = nn.Sequential(nn.Linear(50, 40, bias=bias), nn.Linear(40, 3)).double()
    layered, x = factorise(model, personal=personal), torch.randn(2, 5, 50).double()
    plain = fuse(layered)
    assert repr(plain) == repr(model) and list(plain.state_dict()) == list(model.state_dict())
    close(plain(x), layered(x))


def test_the_rank_of_the_weight_reaches_the_square_of_the_rank_of_the_halves() -> None:
    layer = factorise(nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 2)).double(), 0)[0]
    R = layer.first.X.shape[1]
    assert R == 10 and torch.linalg.matrix_rank(layer.first.product()) == R
    assert torch.linalg.matrix_rank(layer.filter()) == 100


def test_without_its_personal_half_a_layer_is_its_shared_half() -> None:
    layer = factorise(nn.Conv2d(16, 16, 3), personal=True)
    state = {name: leaf * 0 if name in personal_factors(layer) else leaf for name, leaf in layer.state_dict().items()}
    layer.load_state_dict(state)
    assert torch.equal(layer.filter(), layer.first.product())


# how it starts


@pytest.mark.parametrize("personal", [False, True])
@pytest.mark.parametrize("gamma", [0, 0.4, 1])
@pytest.mark.parametrize(
    "plain", [nn.Linear(800, 400), nn.Conv2d(64, 64, 5), nn.Conv2d(256, 128, 1), nn.Conv1d(256, 128, 3)]
)
def test_weights_start_with_the_variance_of_torchs_own(plain: nn.Module, gamma: float, personal: bool) -> None:
    weight = factorise(nn.Sequential(plain), gamma, personal=personal, head=[])[0].filter().detach()
    assert weight.var() == pytest.approx(1 / (3 * weight[0].numel()), rel=0.1)
    assert abs(weight.mean()) < 0.1 * weight.std()


def test_draws_come_from_the_generator_alone() -> None:
    one, same, other = (factorise(net(), generator=generator(seed)).state_dict() for seed in (1, 1, 2))
    default = factorise(net()).state_dict()
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert all(torch.equal(leaf, default[name]) for name, leaf in factorise(net()).state_dict().items())
    assert not torch.equal(one["3.first.X"], other["3.first.X"])
    assert not torch.equal(one["3.first.X"], one["3.second.X"])
    half = factorise(net().half(), generator=generator(1)).state_dict()
    assert torch.equal(half["3.first.T"], one["3.first.T"].half())


# what is kept


def test_the_head_biases_and_narrow_layers_stay_as_they_are() -> None:
    model = net()
    layered = factorise(model)
    assert replaced(layered) == ["3", "5"]
    for name in ("0.weight", "0.bias", "3.bias", "5.bias", "7.weight", "7.bias"):
        assert torch.equal(layered.state_dict()[name], model.state_dict()[name])
    assert replaced(model) == []


def test_where_and_head_choose() -> None:
    model = net()
    assert replaced(factorise(model, where=lambda name, module: isinstance(module, nn.Linear))) == ["5"]
    assert replaced(factorise(model, where=lambda name, module: module is model[3])) == ["3"]
    assert replaced(factorise(model, head="5")) == ["3"]
    wide = nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 40))
    assert replaced(factorise(wide)) == ["0"]
    assert replaced(factorise(wide, head="0")) == ["1"]
    assert replaced(factorise(wide, head=[])) == ["0", "1"]
    assert replaced(factorise(resnet18(10)))[:2] == ["conv1", "layer1.0.conv1"]


def test_twice_equals_once() -> None:
    once = factorise(net())
    twice = factorise(once)
    assert all(torch.equal(leaf, twice.state_dict()[name]) for name, leaf in once.state_dict().items())


def test_subclasses_and_parametrized_layers_are_left_alone() -> None:
    class Own(nn.Linear):
        pass

    normed = nn.utils.parametrizations.weight_norm(nn.Linear(40, 40))
    assert replaced(factorise(nn.Sequential(Own(40, 40), normed, nn.Linear(40, 40), nn.Linear(40, 2)))) == ["2"]


def test_shared_modules_stay_shared_and_tied_weights_tied() -> None:
    a, b = nn.Linear(40, 40), nn.Linear(40, 40)
    b.weight = a.weight
    layered = factorise(nn.Sequential(a, a, b, nn.Linear(40, 2)), personal=True)
    assert layered[0] is layered[1] and layered[0].first is layered[2].first and layered[0].bias is not layered[2].bias
    assert len(personal_factors(layered)) == 6
    plain = fuse(layered)
    assert plain[0] is plain[1] and plain[0].weight is plain[2].weight
    tied_to_the_head = nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 40), nn.Linear(40, 40))
    tied_to_the_head[0].weight = tied_to_the_head[2].weight
    assert replaced(factorise(tied_to_the_head)) == ["1"]


def test_one_of_two_layers_that_share_a_weight_is_refused_by_both_names() -> None:
    model = nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 40), nn.Linear(40, 3))
    model[1].weight = model[0].weight
    with pytest.raises(ValueError, match=r"layer '1' shares its weight with layer '0'.*both or neither"):
        factorise(model, where=lambda name, module: name == "1")


@pytest.mark.parametrize("training", [True, False])
def test_mode_dtype_device_and_frozenness_are_kept(training: bool) -> None:
    model = net().half().train(training)
    model[3].weight.requires_grad_(False)
    for result in (factorise(model), fuse(factorise(model)), copy.deepcopy(factorise(model))):
        assert all(module.training is training for module in result.modules())
        assert {leaf.dtype for leaf in result.parameters()} == {torch.float16}
        assert not any(leaf.requires_grad for name, leaf in result[3].named_parameters() if name != "bias")
        assert result[3].bias.requires_grad and all(leaf.requires_grad for leaf in result[5].parameters())
    layered = factorise(nn.Conv2d(16, 16, 3, device="meta"))
    assert {leaf.device.type for leaf in layered.parameters()} == {"meta"} == {fuse(layered).weight.device.type}


def test_the_state_dict_makes_the_round_trip() -> None:
    one, two = factorise(net(), generator=generator(1)), factorise(net(), generator=generator(2))
    two.load_state_dict(one.state_dict())
    x = torch.randn(2, 1, 6, 6).double()
    assert torch.equal(one.eval()(x), two.eval()(x)) and torch.equal(one(x), copy.deepcopy(one)(x))
    names = ["bias", "first.X", "first.Y", "first.T", "second.X", "second.Y", "second.T"]
    assert list(factorise(nn.Conv2d(16, 16, 3)).state_dict()) == names


@few
@given(convolutions(), st.booleans())
def test_gradients_reach_every_factor(conv: Conv, personal: bool) -> None:
    layer = factorise(conv, personal=personal)
    layer(images(conv)).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


@few
@given(convolutions(), st.booleans())
def test_clients_in_one_vmap_equal_clients_in_a_loop(conv: Conv, personal: bool) -> None:
    clients = [factorise(conv, personal=personal, generator=generator(k)) for k in range(3)]
    x, shell = torch.stack([images(conv) for _ in clients]), clients[0]

    def loss(params: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(shell, params, (x,)).square().sum()

    together = vmap(grad(loss))(stack_module_state(clients)[0], x)
    for k, client in enumerate(clients):
        for name, leaf in grad(loss)(dict(client.named_parameters()), x[k]).items():
            close(together[name][k], leaf)


def test_products_are_made_outside_of_autocast() -> None:
    layer = factorise(nn.Conv2d(16, 16, 3))
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.filter().dtype == torch.float32 and layer(torch.ones(1, 16, 4, 4)).dtype == torch.bfloat16


@pytest.mark.parametrize(("name", "personal"), some_now(ALGORITHMS, [False, True], every=2, begin=1))
def test_vectorised_equals_one_by_one(name: str, personal: bool) -> None:
    training = Training(epochs=2, batch_size=10, lr=0.05, lr_decay=0.9, momentum=0.5, weight_decay=1e-3, clip=1.0)
    sim = Simulation(factorise(net(), personal=personal), clients_of(), algorithm(name), training=training, block=2)
    loop, fast = (play(dataclasses.replace(sim, map=map), 2) for map in ("one_by_one", "vectorised"))
    assert difference(loop.server.params, fast.server.params) < 1e-10


# what is labelled and what is personal


def test_factors_are_rest_and_the_head_is_the_head() -> None:
    labels = groups(factorise(net()))
    assert {name for name, group in labels.items() if group == "head"} == {"7.weight", "7.bias"}
    assert {group for name, group in labels.items() if "first" in name or "second" in name} == {"rest"}


def test_every_factor_of_every_second_half_is_personal_and_nothing_else() -> None:
    model = factorise(net(), personal=True)
    names = personal_factors(model)
    assert names == {name for name in model.state_dict() if ".second." in name}
    owners = {model.get_submodule(name.rpartition(".")[0]) for name in names}
    halves = {module for module in model.modules() if isinstance(module, LowRank)}
    assert len(owners) == 2 and len(halves) == 4
    assert personal_factors(factorise(net())) == personal_factors(net()) == frozenset()


# experiments


@pytest.mark.parametrize("kind", ["fedpara", "pfedpara"])
def test_an_experiment_says_rank_seed_where_and_head(kind: str) -> None:
    model = lambda **fields: network_of(Experiment(parametrisation=kind, **fields), 10, (1, 8, 8))  # noqa: E731
    assert replaced(model()) == ["conv2", "fc1"] and bool(personal_factors(model())) == (kind == "pfedpara")
    assert count(model(gamma=0)) < count(model()) < count(model(gamma=1))
    assert replaced(model(where="conv")) == ["conv2"] and replaced(model(head="fc1")) == ["conv2", "fc2"]
    one, two = model(seed=1).state_dict(), model(seed=2).state_dict()
    assert torch.equal(one["conv2.first.X"], model(seed=1).state_dict()["conv2.first.X"])
    assert not torch.equal(one["conv2.first.X"], two["conv2.first.X"])


# what is refused


@pytest.mark.parametrize("gamma", [-0.1, 1.5, float("nan")])
def test_a_gamma_outside_0_to_1_is_refused(gamma: float) -> None:
    with pytest.raises(ValueError, match=rf"gamma={gamma} is not in \[0, 1\].*Use gamma=0.4"):
        factorise(net(), gamma)


@pytest.mark.parametrize("gamma", ["0.4", None, True])
def test_a_gamma_that_is_no_number_is_refused(gamma: float) -> None:
    with pytest.raises(TypeError, match=rf"gamma={gamma!r} is not a number.*Use gamma=0.4"):
        factorise(net(), gamma)


@pytest.mark.parametrize(
    "model", [nn.Linear(100, 100), nn.Conv2d(2, 2, 3), decompose(nn.Conv2d(16, 16, 3), init="orthonormal"), nn.ReLU()]
)
def test_a_model_without_a_suitable_layer_is_refused(model: nn.Module) -> None:
    with pytest.raises(ValueError, match=rf"{type(model).__name__} has no layer to factorise.*train the plain model"):
        factorise(model)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_a_computed_weight_is_refused_unless_left_out() -> None:
    model = nn.Sequential(nn.utils.weight_norm(nn.Linear(40, 40)), nn.Linear(40, 40), nn.Linear(40, 2))
    with pytest.raises(ValueError, match=r"layer '0' computes its weight.*where="):
        factorise(model)


def test_an_unknown_head_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"head module 'fc4'.*Did you mean 'fc"):
        factorise(lenet(), head="fc4")
