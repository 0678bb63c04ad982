"""Laws of the aggregation rules, over the whole table; and that they are Flower's where Flower has them."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedatoms.aggregation import RULES, Points, Rule, aggregation
from fedatoms.aggregation.base import combined
from fedatoms.core.trees import Memory, Params

KEEPING = [name for name in RULES if name != "mean"]  # rules that see every upload
CLIENTS = 9
SHAPES = {"conv": (3, 2, 2), "head": (7,), "bias": ()}
FEW = (5, 7, 6, 9, 8, 4, 10, 3, 5)  # samples of each client


def server() -> Params:
    draws = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=draws, dtype=torch.float64) for name, shape in SHAPES.items()}


def uploads(count: int = CLIENTS, spread: float = 0.1) -> list[Memory]:
    """Makes honest uploads: all move in one direction, each a bit differently."""
    draws = torch.Generator().manual_seed(0)

    def near(leaf: Tensor) -> Tensor:
        return leaf + 1.0 + spread * torch.randn(leaf.shape, generator=draws, dtype=torch.float64)

    return [
        {
            "params": {name: near(leaf) for name, leaf in server().items()},
            "control": {name: near(torch.zeros_like(leaf)) for name, leaf in server().items()},
            "statistics": {},
            "numbers": {"steps": near(torch.tensor(3.0).double())},
        }
        for _ in range(count)
    ]


def of(rule: str | Rule, some: Sequence[Memory], weights: Sequence[float] = FEW) -> Memory:
    """Combines uploads; the mean is that of a ten-line loop."""
    rule = aggregation(rule) if isinstance(rule, str) else rule
    shares = torch.tensor(weights[: len(some)], dtype=torch.float64)
    if rule.combine is None:
        return combined(rule._replace(combine=_mean), some, shares, server())
    return combined(rule, some, shares, server())


def _mean(points: Points) -> list[Tensor]:
    return [points.weights @ values for values, _ in points.read()]


def far(a: Memory, b: Memory) -> float:
    """Returns the largest difference of two uploads."""
    return max(float((a[kind][name] - b[kind][name]).abs().max()) for kind in a for name in a[kind])


def lied(honest: Memory, size: float) -> Memory:
    return {kind: {name: -size * leaf for name, leaf in tree.items()} for kind, tree in honest.items()}


@pytest.mark.parametrize("name", KEEPING)
def test_the_order_of_clients_does_not_matter(name: str) -> None:
    some, order = uploads(), torch.randperm(CLIENTS, generator=torch.Generator().manual_seed(3)).tolist()
    turned = of(name, [some[i] for i in order], [FEW[i] for i in order])
    assert far(of(name, some), turned) < 1e-12


@pytest.mark.parametrize("name", KEEPING)
@pytest.mark.parametrize("block", [1, 2, 5])
def test_the_blocks_in_which_uploads_are_read_do_not_matter(name: str, block: int) -> None:
    rule = aggregation(name)
    assert rule.combine is not None
    combine = rule.combine
    in_blocks = Rule(lambda points: combine(points._replace(block=block)))
    assert far(of(rule, uploads()), of(in_blocks, uploads())) < 1e-12


@pytest.mark.parametrize("name", KEEPING)
def test_no_more_of_each_upload_is_read_at_once_than_a_block(name: str) -> None:
    """Memory stays bounded: what a rule holds at once are its blocks, and a result."""
    seen = []

    class Watched(Points):
        def read(self):  # noqa: ANN202
            for values, origin in super().read():
                seen.append(values.numel())
                yield values, origin

    combine = aggregation(name).combine
    assert combine is not None
    some = [each["params"] for each in uploads()]
    combine(Watched(some, server(), torch.ones(CLIENTS).double() / CLIENTS, block=4))
    assert max(seen) == 4 * CLIENTS


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("count", [1, 2, 3, CLIENTS])
def test_uploads_that_are_all_equal_give_that_upload(name: str, count: int) -> None:
    one = uploads(1)[0]
    assert far(of(name, [one] * count), one) < 1e-12


@pytest.mark.parametrize("name", KEEPING)
def test_without_liars_and_with_clients_alike_a_rule_is_near_the_mean(name: str) -> None:
    for spread in (0.1, 0.01):
        some = uploads(spread=spread)
        assert far(of(name, some), of("mean", some)) < 4 * spread


@pytest.mark.parametrize("name", KEEPING)
@pytest.mark.parametrize("liars", [1, 2])
def test_some_liars_of_any_size_move_a_rule_only_so_far(name: str, liars: int) -> None:
    rule = name + {"liars": f":{liars}", "trim": ":0.25"}.get(RULES[name].strength, "")
    honest = uploads()
    for size in (10.0, 1e6, 1e30):
        some = [lied(each, size) if client < liars else each for client, each in enumerate(honest)]
        assert far(of(rule, some), of("mean", honest[liars:])) < 3


def test_one_liar_moves_the_mean_as_far_as_it_likes() -> None:
    honest = uploads()
    for size in (10.0, 1e6, 1e30):
        assert far(of("mean", [lied(honest[0], size), *honest[1:]]), of("mean", honest)) > size / 20


@pytest.mark.parametrize("name", [name for name in KEEPING if name not in ("median", "trimmed", "krum")])
def test_a_client_of_no_weight_counts_for_nothing_where_a_rule_weighs(name: str) -> None:
    some = uploads(5, spread=0.0)
    some[0] = {kind: {name: 1.01 * leaf for name, leaf in tree.items()} for kind, tree in some[0].items()}
    assert far(of(name, some, [1e-9, 1, 1, 1, 1]), some[1]) < 1e-6


@pytest.mark.parametrize("count", [3, 4])
def test_a_trimmed_mean_of_fewer_than_five_leaves_out_the_largest_and_the_smallest(count: int) -> None:
    some = uploads(count)
    stacked = torch.stack([each["params"]["conv"] for each in some]).sort(0).values
    found = of("trimmed", some)["params"]["conv"]
    assert torch.allclose(found, stacked[1:-1].mean(0), atol=1e-15)
    assert not torch.allclose(found, stacked.mean(0), atol=1e-4)


def test_the_geometric_median_is_where_the_sum_of_distances_is_least() -> None:
    some = [each["params"] for each in uploads()]
    weights = torch.tensor(FEW, dtype=torch.float64)

    def cost(point: Params) -> float:
        return sum(float(w) * norm(each, point) for w, each in zip(weights, some, strict=True))

    def norm(a: Params, b: Params) -> float:
        return float(sum((a[name] - b[name]).square().sum() for name in a).sqrt())

    found = of("geometric-median", uploads())["params"]
    for name in SHAPES:
        for step in (1e-3, -1e-3):
            assert cost({**found, name: found[name] + step}) > cost(found)


@given(st.integers(1, 20), st.data())
def test_the_geometric_median_of_uploads_more_than_half_of_which_are_equal_is_that_upload(
    others: int, data: st.DataObject
) -> None:
    """However near or far the others are, and however many of them."""
    same, size = (
        data.draw(st.integers(others + 1, others + 20)),
        data.draw(st.sampled_from([1e-3, 0.2, 1.0, 1e6, 1e30])),
    )
    some, one = uploads(others), uploads(1)[0]
    away = [{kind: {n: one[kind][n] + size * leaf for n, leaf in each[kind].items()} for kind in each} for each in some]
    assert far(of("geometric-median", [one] * same + away, [1.0] * (same + others)), one) < 1e-12


SAMPLES = st.lists(st.integers(1, 600), min_size=3, max_size=8)


@given(SAMPLES, st.sampled_from([0.0, 1.0, 1e8]), st.data())
def test_the_geometric_median_of_numbers_is_their_weighted_median(
    weights: list[int], offset: float, data: st.DataObject
) -> None:
    """At most half of the weight lies below it, and at most half above."""
    values = [offset + data.draw(st.integers(-50, 50)) for _ in weights]
    some: list[Memory] = [
        {"params": {}, "numbers": {"steps": torch.tensor(each, dtype=torch.float64)}} for each in values
    ]
    found = float(of("geometric-median", some, weights)["numbers"]["steps"])
    assert sum(w for value, w in zip(values, weights, strict=True) if value < found - 1e-6) <= sum(weights) / 2
    assert sum(w for value, w in zip(values, weights, strict=True) if value > found + 1e-6) <= sum(weights) / 2


@given(SAMPLES, st.integers(0, 2**31))
def test_no_upload_is_nearer_to_all_than_their_geometric_median(weights: list[int], seed: int) -> None:
    """Whoever has most of the weight; some uploads are equal."""
    draws = torch.Generator().manual_seed(seed)
    points = torch.randint(-3, 4, (len(weights), 3), generator=draws).double()
    some: list[Memory] = [{"params": {"head": point}} for point in points]
    found = combined(aggregation("geometric-median"), some, torch.tensor(weights), {})["params"]["head"]

    def cost(centre: Tensor) -> float:
        return float(torch.tensor(weights).double() @ (points - centre).norm(dim=1))

    assert cost(found) <= min(map(cost, points)) * (1 + 1e-9)


def test_the_geometric_median_leaves_equal_uploads_of_little_weight() -> None:
    one, other = uploads(2)
    found = of("geometric-median", [one] * 3 + [other] * 2, [1.0, 1.0, 1.0, 6.0, 6.0])
    assert far(found, other) < 1e-4


def test_each_kind_of_an_upload_is_combined_by_itself() -> None:
    """Who lies in its controls only is left out there, and its model counts."""
    some = uploads(5)
    some[0]["control"] = lied(some[0], 1e6)["control"]
    found, without = of("multi-krum", some), of("multi-krum", some[1:], FEW[1:])
    assert far({"control": found["control"]}, {"control": without["control"]}) < 1
    assert identical_trees(found["params"], of("multi-krum", uploads(5))["params"])


def identical_trees(a: Params, b: Params) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


WRONG = {
    "medain": "unknown aggregation 'medain'. Did you mean 'median'?",
    "trimmed:0.5": "aggregation=trimmed:0.5: parameter=0.5 is not in [0, 0.5). Use for example trimmed:0.2.",
    "trimmed:many": "aggregation=trimmed:many: 'many' is not a number. Use for example trimmed:0.2.",
    "multi-krum:": "aggregation=multi-krum:: '' is not a number. Use for example multi-krum:1.",
    "krum:-1": "aggregation=krum:-1: parameter=-1 is less than 1: who expects no liar can take the mean.",
    "nearest-mixing:0": "aggregation=nearest-mixing:0: parameter=0 is less than 1: who expects no liar",
    "krums:1": "unknown aggregation 'krums'. Did you mean 'krum'?",
    "median:": "aggregation=median:: '' is not a number. Use median.",
    "krum:1.5": "aggregation=krum:1.5: parameter=1.5 is not a whole number. Use for example krum:1.",
    "median:2": "aggregation=median:2: parameter=2, but median has none.",
    "norm-bound:0": "aggregation=norm-bound:0: parameter=0 is not a positive number. Use for example norm-bound:1.",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_rule_that_there_is_not_is_refused_with_what_to_type(text: str) -> None:
    with pytest.raises(ValueError) as refused:
        aggregation(text)
    assert str(refused.value).startswith(WRONG[text])


def by_flower(strategy: object, some: Sequence[Memory], weights: Sequence[float] = FEW) -> dict[str, np.ndarray]:
    """Lets one of Flower's strategies aggregate the parameters of uploads."""
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from support.flower_grid import in_a_test

    with in_a_test():
        messages = [
            Message(
                RecordDict(
                    {
                        "arrays": ArrayRecord({name: Array(leaf.numpy()) for name, leaf in each["params"].items()}),
                        "metrics": MetricRecord({"num-examples": weight}),
                    }
                ),
                node,
                "train",
            )
            for node, (each, weight) in enumerate(zip(some, weights, strict=False))
        ]
        arrays, _ = strategy.aggregate_train(1, messages)  # type: ignore[attr-defined]
    return {name: array.numpy() for name, array in arrays.items()}


def _strategies() -> dict[str, Callable[[], object]]:
    flower = pytest.importorskip("flwr.serverapp.strategy")
    return {
        "mean": flower.FedAvg,
        "median": flower.FedMedian,
        "trimmed": flower.FedTrimmedAvg,
        "trimmed:0.3": lambda: flower.FedTrimmedAvg(beta=0.3),
        "krum:1": lambda: flower.Krum(num_malicious_nodes=1),
        "krum:2": lambda: flower.Krum(num_malicious_nodes=2),
        "multi-krum:1": lambda: flower.MultiKrum(num_malicious_nodes=1, num_nodes_to_select=CLIENTS - 1),
        "multi-krum:2": lambda: flower.MultiKrum(num_malicious_nodes=2, num_nodes_to_select=CLIENTS - 2),
    }


@pytest.mark.parametrize("lying", [False, True])
@pytest.mark.parametrize(
    "name", ["mean", "median", "trimmed", "trimmed:0.3", "krum:1", "krum:2", "multi-krum:1", "multi-krum:2"]
)
def test_where_flower_has_the_rule_it_gives_the_same(name: str, lying: bool) -> None:
    some = uploads()
    if lying:
        some[4] = lied(some[4], 9.0)
    expected, found = by_flower(_strategies()[name](), some), of(name, some)["params"]
    for leaf, value in expected.items():
        assert np.allclose(found[leaf].numpy(), value, rtol=0, atol=1e-12), leaf


@pytest.mark.parametrize(("liars", "count"), [(2, 49), (3, 47), (25, 51), (1, 3)])
def test_nearest_mixing_outvotes_as_many_as_it_was_told_of(liars: int, count: int) -> None:
    some = uploads(count)
    lies = [{kind: {n: leaf + 1e9 for n, leaf in tree.items()} for kind, tree in each.items()} for each in some[:liars]]
    assert (
        far(of(f"nearest-mixing:{liars}", [*lies, *some[liars:]], [1.0] * count), of("mean", some, [1.0] * count)) < 1
    )
