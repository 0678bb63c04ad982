"""BatchNorm as operators over clients: the same results and gradients as the layer, and the kernels behind them."""

from collections.abc import Callable

import pytest
import torch
from support.inductor import compiles, imports_inductor
from support.small import clients_of, difference, play
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx import GraphModule

from fedatoms.engine.execution import cuda_graph, inductor
from fedatoms.engine.gpu import rewrite
from fedatoms.engine.gpu.first_only import OnlyOnce
from fedatoms.engine.gpu.norm_ops import normalise, normalise_back
from fedatoms.engine.gpu.rewrite import BatchedKernels, traced
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation
from fedatoms.nn.masked_norm import MaskedBatchNorm, masked_batch_norm, with_masked_norm

EPS = 1e-5
SHAPES = [
    (2, 5, 4, 3, 16),
    (1, 40, 6, 6, 70),  # several parts
    (1, 90, 10, 10, 3),  # three tiles of a part, of which some are all padding
    (3, 3, 7, 5, 20),
    (2, 1, 2, 2, 5),
    (1, 1100, 1, 1, 5),  # more rows than are counted at once
]


def some(shape: tuple[int, ...], kind: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images of several clients, which of them are real, weight and bias; padding is no number, one client is idle."""
    draws = torch.Generator().manual_seed(sum(shape))
    clients, batch, *_, channels = shape
    x = torch.randn(shape, dtype=torch.float64, generator=draws) * 3 + 10
    real = torch.arange(batch) < torch.tensor([[batch - batch // 3], [0], [1]])[:clients]
    x[~real & (torch.arange(batch) > 0)] = torch.nan
    weight, bias = torch.randn(2, clients, channels, dtype=torch.float64, generator=draws)
    return x.to(kind), real, weight.to(torch.promote_types(kind, torch.float32)), bias.to(weight.dtype).float()


@pytest.mark.parametrize("affine", [True, False])
def test_a_network_of_norms_is_traced_to_operators_and_trains_alike(
    affine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the compiled map, without the compiler."""
    monkeypatch.setattr(cuda_graph, "compile_graph", lambda graph, example: graph)
    called: list[object] = []
    monkeypatch.setattr(rewrite, "_normalised", lambda *each: called.append(each) or normalised(*each))
    normalised = rewrite.normalised
    layers = (nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16, affine=affine), nn.ReLU(), nn.Conv2d(16, 4, 2), nn.BatchNorm2d(4))
    net = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()
    net(clients_of((2,)).x.double())
    sim = Simulation(net, clients_of((3, 5, 4)))
    compiled = prepare(sim)._replace(map_clients=cuda_graph.compiled(2))
    one, other = play(sim, 2), play(compiled, 2)
    assert difference(one.server.params, other.server.params) < 1e-10
    assert len(called) == 2  # those of images; the third is of rows


def test_operators_have_the_gradients_of_the_layer() -> None:
    x, real, weight, bias = some((3, 4, 3, 5, 6))
    x = x.nan_to_num(3.0).permute(0, 1, 4, 2, 3)

    def loss(x: Tensor, weight: Tensor, bias: Tensor, real: Tensor) -> Tensor:
        out, *_ = masked_batch_norm(x, real, weight, bias, EPS)
        return (out**3 * torch.arange(out.numel()).reshape(out.shape)).sum()

    def gradients(*each: Tensor) -> tuple[Tensor, ...]:
        return torch.vmap(torch.func.grad(loss, (0, 1, 2)))(*each)

    each = x, weight, bias.double(), real
    with BatchedKernels():
        graph = traced(gradients, *each)
    assert {"fedatoms.normalise.default", "fedatoms.normalise_back.default"} <= {
        str(node.target) for node in graph.graph.nodes
    }
    for found, expected in zip(graph(*each), gradients(*each), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_norm_that_is_differentiated_twice_says_so() -> None:
    x, real, weight, bias = some((2, 4, 3, 5, 6))

    def slope(x: Tensor, weight: Tensor, bias: Tensor, real: Tensor) -> Tensor:
        """What a network may compute of its input, before its loss is differentiated."""
        return torch.func.grad(lambda z: (masked_batch_norm(z, real, weight, bias, EPS)[0] ** 3).sum())(x)

    def gradients(*each: Tensor) -> tuple[Tensor, ...]:
        return torch.vmap(torch.func.grad(lambda *some: (slope(*some) ** 2).sum(), (0, 1, 2)))(*each)

    each = x.nan_to_num(3.0).permute(0, 1, 4, 2, 3), weight, bias.double(), real
    with BatchedKernels(), pytest.raises(OnlyOnce, match="first derivatives only"):
        traced(gradients, *each)


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_operators_keep_what_they_promise_the_tracer(kind: torch.dtype) -> None:
    x, real, weight, bias = some((2, 5, 4, 3, 16), kind)
    x = x.nan_to_num()
    checks = ("test_schema", "test_faketensor")
    _, mean, variance = normalise(x, real, weight, bias, EPS, False)
    for relu in (False, True):
        torch.library.opcheck(normalise, (x, real, weight, bias, EPS, relu), test_utils=checks)
        each = x, real, weight, bias, mean, variance, x, EPS, relu
        torch.library.opcheck(normalise_back, each, test_utils=checks)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_kernels_compute_what_the_operators_say(shape: tuple[int, ...], kind: torch.dtype, relu: bool) -> None:
    """By Triton's interpreter: rows and channels that fill no tile, several of each, padding, a client without rows."""
    pytest.importorskip("triton")
    from fedatoms.engine.gpu import triton_norm

    x, real, weight, bias = some(shape, kind)
    apart = x.permute(0, 1, 4, 2, 3).contiguous().permute(0, 1, 3, 4, 2)  # as a model hands it over outside of vmap
    close = {"rtol": 2e-2, "atol": 4e-2} if kind == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-4}
    expected = normalise(x, real, weight, bias, EPS, relu)
    for found, wanted in zip(triton_norm.normalise(apart, real, weight, bias, EPS, relu), expected, strict=True):
        torch.testing.assert_close(found, wanted, equal_nan=True, **close)
    others = real, weight, bias, *expected[1:], expected[0].nan_to_num().square() + 1, EPS, relu
    found_back = triton_norm.normalise_back(apart, *others)
    for found, wanted in zip(found_back, normalise_back(x, *others), strict=True):
        torch.testing.assert_close(found, wanted, equal_nan=True, **close)


def test_a_relu_in_the_kernels_hides_no_number_that_is_none() -> None:
    """A client that diverges must end as one that diverged."""
    pytest.importorskip("triton")
    from fedatoms.engine.gpu import triton_norm

    x, real, weight, bias = some((2, 4, 3, 5, 6), torch.float32)
    x, real = x.nan_to_num(3.0), torch.ones_like(real)
    x[1] = torch.nan
    y, *known = triton_norm.normalise(x, real, weight, bias, EPS, True)
    assert torch.equal(y.isnan(), x.isnan())
    each = x, real, weight, bias, *known, torch.ones_like(x), EPS, True
    to_x, to_weight, _ = triton_norm.normalise_back(*each)
    assert torch.equal(to_x.isnan(), x.isnan()) and to_weight[1].isnan().all() and not to_weight[0].isnan().any()


class Block(nn.Module):
    """Two norms with a ReLU each, of which the second follows a sum as in a ResNet."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.conv, self.one, self.two = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace)

    def forward(self, x: Tensor) -> Tensor:
        """Reads the first ReLU twice."""
        y = self.relu(self.one(self.conv(x)))
        return self.relu(self.two(y * y) + y)


class Shared(nn.Module):
    """A norm whose result is read without its ReLU, too."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.one, self.relu = nn.BatchNorm2d(3), nn.ReLU(inplace)

    def forward(self, x: Tensor) -> Tensor:
        """Reads what is normalised before a ReLU changes it."""
        y = self.one(x)
        return y + 2 * self.relu(y)


def clients_with(net: nn.Module) -> tuple[nn.Module, dict[str, Tensor], Tensor]:
    """Returns a network whose norms leave out the last row, and parameters and images of two clients."""
    net = with_masked_norm(net.double())
    for layer in net.modules():
        if isinstance(layer, MaskedBatchNorm):
            layer.real = torch.arange(4) < 3
    own = {name: torch.stack([leaf.detach(), leaf.detach() + 0.5]) for name, leaf in net.named_parameters()}
    return net, own, torch.randn(2, 4, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def cubes_of(net: nn.Module) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    return lambda own, x: (functional_call(net, own, (x,)) ** 3).sum()


def gradients_of(net: nn.Module, compilers: bool) -> tuple[GraphModule, float, float]:
    """Traces the gradients of two clients; returns the graph, and what differs from torch's own gradients."""
    net, own, x = clients_with(net)
    gradients = torch.vmap(torch.func.grad(cubes_of(net), (0, 1)))
    expected = gradients(own, x)
    with BatchedKernels():
        graph = traced(gradients, own, x, decompositions=inductor.decompositions() if compilers else None)
    found = graph(own, x)
    return graph, difference(expected[0], found[0]), float((expected[1] - found[1]).abs().max())


def names_of(graph: GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


@imports_inductor
@pytest.mark.parametrize("compilers", [False, True], ids=["as torch traces it", "in the compiler's operators"])
@pytest.mark.parametrize("inplace", [False, True])
def test_a_relu_of_a_norm_and_its_gradient_are_no_operators_of_their_own(inplace: bool, compilers: bool) -> None:
    graph, *differences = gradients_of(Block(inplace), compilers)
    assert max(differences) < 1e-10
    names = names_of(graph)
    assert sum("relu" in name for name in names) == 1  # the one after a sum
    assert sum("threshold_backward" in name or "where" in name for name in names) == 1
    calls = [node for node in graph.graph.nodes if "fedatoms.normalise" in str(node.target)]
    assert [node.args[-1] for node in calls] == [True, False, False, True]  # there and back


@compiles
def test_a_step_with_such_relus_compiles(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler compares an operator's arguments with those that were traced."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("relus")))
    monkeypatch.setattr(inductor, "_OPTIONS", {})  # which are a GPU's
    net, own, x = clients_with(Block(False))

    def step(own: dict[str, Tensor], x: Tensor) -> None:
        for name, slope in torch.vmap(torch.func.grad(cubes_of(net)))(own, x).items():
            own[name].copy_(own[name] - 0.001 * slope)

    expected, given = ({name: leaf.clone() for name, leaf in own.items()} for _ in range(2))
    step(expected, x)
    with BatchedKernels():
        graph = traced(step, own, x, decompositions=inductor.decompositions())
    inductor.compile_decomposed(graph, [own, x])((given, x))
    assert difference(expected, given) < 1e-10


@imports_inductor
@pytest.mark.parametrize("compilers", [False, True])
@pytest.mark.parametrize("inplace", [False, True])
def test_a_norm_that_is_read_without_its_relu_keeps_it_apart(inplace: bool, compilers: bool) -> None:
    graph, *differences = gradients_of(Shared(inplace), compilers)
    assert max(differences) < 1e-10
    assert any("relu" in name for name in names_of(graph)) is not inplace  # which leaves nothing else to be read


def test_a_pixel_far_from_all_others_costs_the_kernels_no_digits() -> None:
    pytest.importorskip("triton")
    from fedatoms.engine.gpu import triton_norm

    x, real, weight, bias = some((1, 190, 6, 6, 5), torch.float32)  # two tiles of a part are merged
    x = x.nan_to_num() - 10
    x[0, 0, 0, 0] = 1e3
    expected = normalise(x.double(), real, weight.double(), bias.double(), EPS, False)
    for found, wanted in zip(triton_norm.normalise(x, real, weight, bias, EPS, False), expected, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
