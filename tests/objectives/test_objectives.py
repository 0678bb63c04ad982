"""An objective is a value: the default is cross-entropy, others train alike in both maps, metrics are exact."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.small import clients_of, difference, identical, play, small_net
from torch import Tensor, nn

import fedatoms
from fedatoms.data.federations import Federation, federation
from fedatoms.engine.evaluation import from_numbers, over_clients, score_of, to_numbers
from fedatoms.engine.loop import train
from fedatoms.engine.spec import Simulation, batches_of
from fedatoms.engine.training import Training
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import from_json, to_json
from fedatoms.experiment.identities import identity, run_name
from fedatoms.objectives import OBJECTIVES, classification, multi_label, objective, regression, segmentation
from fedatoms.objectives.base import Metric, Objective
from fedatoms.personal import fedpac

SIZES = (1, 7, 12)  # with batches of 5: a single sample, and last batches of 2
QUICK = Training(epochs=2, batch_size=5, lr=0.05, momentum=0.5)
ALL = {
    "classification": classification(),
    "smoothed": classification(label_smoothing=0.1),
    "weighted": classification(class_weights=[1.0, 2.0, 0.5]),
    "regression": regression(),
    "multi-label": multi_label(),
    "segmentation": segmentation(),
}


def targets_of(name: str, count: int, draws: torch.Generator) -> Tensor:
    """Makes targets that fit the network of an objective, for 6 x 6 images."""
    if name == "regression":
        return torch.randn(count, 2, dtype=torch.float64, generator=draws)
    if name == "multi-label":
        return torch.randint(2, (count, 3), generator=draws)
    if name == "segmentation":
        y = torch.randint(3, (count, 6, 6), generator=draws)
        return torch.where(torch.rand(count, 6, 6, generator=draws) < 0.1, 255, y)
    return torch.randint(3, (count,), generator=draws)


def data_of(name: str) -> Federation:
    draws = torch.Generator().manual_seed(1)
    pairs = [
        (torch.randn(n, 1, 6, 6, dtype=torch.float64, generator=draws), targets_of(name, n, draws)) for n in (*SIZES, 9)
    ]
    return federation(pairs[:-1], test=pairs[-1])


def net_of(name: str) -> nn.Module:
    if name != "segmentation":
        torch.manual_seed(0)
        outputs = 2 if name == "regression" else 3
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, outputs)
        ).double()
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1)).double()


def simulation_of(name: str, **changes: object) -> Simulation:
    return replace(Simulation(net_of(name), data_of(name), training=QUICK, objective=ALL[name]), **changes)


@pytest.mark.parametrize("name", ALL)
def test_both_maps_end_alike_in_every_objective(name: str) -> None:
    one, all_ = (play(simulation_of(name, map=way), 2).server.params for way in ("one_by_one", "vectorised"))
    assert difference(one, all_) < 1e-9


@pytest.mark.parametrize("name", ["smoothed", "weighted"])
def test_a_variant_of_classification_without_its_setting_is_classification(name: str) -> None:
    same = {"smoothed": classification(label_smoothing=0.0), "weighted": classification(class_weights=[1.0] * 3)}[name]
    plain = play(simulation_of("classification"), 2).server.params
    assert difference(play(simulation_of("classification", objective=same), 2).server.params, plain) < 1e-12


def test_class_weights_scale_losses_and_the_mean_is_over_samples() -> None:
    weights, y = torch.tensor([1.0, 2.0, 0.5]), torch.tensor([0, 1, 1, 2])
    outputs = torch.randn(4, 3)
    each = classification(class_weights=weights.tolist()).loss(outputs, y)
    torch.testing.assert_close(each, weights[y] * F.cross_entropy(outputs, y, reduction="none"))
    by_torch = nn.CrossEntropyLoss(weight=weights)(outputs, y)  # whose mean is over weights
    torch.testing.assert_close(each.mean() * len(y) / weights[y].sum(), by_torch)


def test_the_default_is_torchs_cross_entropy_to_the_bit() -> None:
    """A client of one batch: the loop of a paper, written by hand."""
    x, y = torch.randn(8, 1, 6, 6), torch.arange(8) % 3
    model = small_net().float()
    sim = Simulation(model, federation([(x, y)], test=(x, y)), training=Training(batch_size=8, lr=0.1))
    order = batches_of(sim, 0, 0).rows[0]
    loss = F.cross_entropy(model(x[order]), y[order])
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    by_hand = {n: p - 0.1 * g for (n, p), g in zip(model.named_parameters(), gradients, strict=True)}
    found = play(sim, 1).server.params
    assert difference({n: found[n] for n in by_hand}, {n: p.detach() for n, p in by_hand.items()}) < 1e-7


@pytest.mark.parametrize("name", ALL)
def test_the_score_of_clients_is_that_of_their_pool(name: str) -> None:
    aim, draws = ALL[name], torch.Generator().manual_seed(2)
    y = targets_of(name, 20, draws)
    shape = {"regression": (20, 2), "segmentation": (20, 3, 6, 6)}.get(name, (20, 3))
    outputs = torch.randn(shape, dtype=torch.float64, generator=draws)
    each = [*(metric.of(outputs, y).double() for metric in aim.metrics), aim.loss(outputs, y)]
    whole = score_of(aim, [one.mean(0) for one in each])
    counts = torch.tensor([3.0, 0.0, 10.0, 7.0], dtype=torch.float64)
    sums = [torch.stack([part.sum(0) for part in one.split([3, 0, 10, 7])]) for one in each]
    together = over_clients(aim, sums, counts)
    assert together.parts().keys() == whole.parts().keys() | {"worst", "spread"}
    assert all(together.parts()[n] == pytest.approx(part, rel=1e-12) for n, part in whole.parts().items())
    again = from_numbers(aim, to_numbers(aim, [one.mean(0) for one in each]))
    assert score_of(aim, again).parts() == pytest.approx(whole.parts())


def test_metrics_are_those_of_the_textbook() -> None:
    outputs, y = torch.tensor([[1.0], [2.0], [6.0]]), torch.tensor([1.0, 4.0, 4.0])
    found = score_of(regression(), [*(m.of(outputs, y).mean(0) for m in regression().metrics), torch.tensor(0.0)])
    rmse, variance = (8 / 3) ** 0.5, ((y - y.mean()) ** 2).mean()
    expected = {"rmse": rmse, "mae": 4 / 3, "r2": 1 - rmse**2 / float(variance), "loss": 0.0}
    assert found.parts() == pytest.approx(expected, rel=1e-6)
    logits, labels = torch.tensor([[1.0, 1.0, -1.0], [-1.0, 1.0, -1.0]]), torch.tensor([[1, 0, 1], [0, 1, 0]])
    f1 = score_of(multi_label(), [*(m.of(logits, labels).mean(0) for m in multi_label().metrics), torch.tensor(0.0)])
    assert f1.value == pytest.approx(100 * 2 * 2 / (2 * 2 + 1 + 1)) and f1.others["labels"] == pytest.approx(400 / 6)


def test_r2_of_several_targets_measures_each_from_its_own_mean() -> None:
    r2, draws = regression().metrics[2], torch.Generator().manual_seed(0)
    y = torch.randn(100, 2, dtype=torch.float64, generator=draws) + torch.tensor([0.0, 100.0])
    guess = y + torch.randn(100, 2, dtype=torch.float64, generator=draws)

    def found(outputs: Tensor, y: Tensor) -> float:
        return float(r2.each(r2.of(outputs, y).mean(0)[None])[0])

    assert found(y.mean(0).expand_as(y), y) == pytest.approx(0, abs=1e-9)  # the means explain nothing
    expected = 1 - float((y - guess).square().sum() / (y - y.mean(0)).square().sum())
    assert found(guess, y) == pytest.approx(expected, abs=1e-9)
    assert found(guess[:, :1], y[:, 0]) == found(guess[:, :1], y[:, :1])


def test_the_worst_tenth_is_by_the_metrics_direction() -> None:
    errors, counts = torch.tensor([1.0, 4.0]), torch.tensor([1.0, 1.0])
    moments = torch.tensor([[1.0, 0.0, 1.0], [4.0, 0.0, 1.0]])
    assert over_clients(regression(), [errors, errors, moments, errors], counts).worst == 2  # the root of 4
    assert over_clients(classification(), [errors / 4, errors], counts).worst == 25


@pytest.mark.parametrize(
    ("name", "y", "words"),
    [
        (
            "classification",
            torch.zeros(4),
            r"y: type torch.float32 is not whole numbers, but accuracy needs y of shape ",
        ),
        ("classification", torch.zeros(4), r"Use y.long\(\), or objective=fedatoms.objectives.regression\(\)\.$"),
        ("classification", torch.zeros(4, 1).long(), r"Use y\[:, 0\], or objective=fedatoms.objectives.multi_label"),
        ("classification", torch.zeros(4, 6, 6).long(), r"objective=fedatoms.objectives.segmentation\(\)\.$"),
        ("multi-label", torch.zeros(4).long(), r"but F1 needs y of shape \(n, labels\), of 0 and 1. Use objective=fed"),
        ("segmentation", torch.zeros(4, 6, 6), r"but mIoU needs y of shape \(n, height, width\), whole numbers"),
    ],
)
def test_targets_that_do_not_fit_are_answered_with_the_objective_that_does(name: str, y: Tensor, words: str) -> None:
    data = federation([(torch.zeros(4, 1, 6, 6), y)], test=(torch.zeros(4, 1, 6, 6), y))
    with pytest.raises(ValueError, match=words) as caught:
        Simulation(net_of(name), data, objective=ALL[name])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("aim", "y", "words"),
    [
        (regression(), torch.zeros(4), r"the model returns \(2, 3\) for targets of shape \(2,\). Let it return"),
        (multi_label(), torch.zeros(4, 5).long(), r"the model returns \(2, 3\) for targets of shape \(2, 5\). Let it"),
        (multi_label(), torch.full((4, 3), 2), r"^y, sample 0: holds 2, but must hold values from 0 to 1. Use \(y"),
        (classification(0, [1, 1]), torch.ones(4).long(), "class_weights has 2 numbers, but the model has 3"),
        (classification(), torch.full((4,), 7), r"the model returns \(2, 3\) for 2 images, but labels go up to 7"),
        (Objective(F.mse_loss, regression().metrics), torch.zeros(4, 3), r"loss is of shape \(\) .*one number per"),
        (Objective(lambda o, y: o @ y, regression().metrics), torch.zeros(4, 3), r"loss fails on outputs of shape"),
        (
            regression()._replace(metrics=(Metric("error", lambda o, y: o - y),)),
            torch.zeros(4, 3),
            r"metric 'error' is of shape \(2, 3\) .*one number per sample",
        ),
    ],
)  # fmt: skip
def test_outputs_that_do_not_fit_are_said_before_the_first_round(aim: Objective, y: Tensor, words: str) -> None:
    x = torch.zeros(4, 1, 6, 6, dtype=torch.float64)
    with pytest.raises(ValueError, match=words) as caught:
        train(Simulation(net_of("multi-label"), federation([(x, y)], test=(x, y)), objective=aim), 1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("multi-label", 255, r"sample 10: holds 255, but must hold values from 0 to 1. Use \(y > 0\)\.$"),
        ("segmentation", -100, r"sample 10: holds -100, but must hold values from 0 up. .* or pass ignore=-100\.$"),
        ("segmentation", 3, r"sample 10: holds 3, but must hold values from 0 to 2. .* or pass ignore=3\.$"),
    ],
)
@pytest.mark.parametrize("place", ["y", "test_y", "client 0, item"])
def test_targets_of_every_sample_are_looked_at(name: str, value: int, words: str, place: str) -> None:
    x, good = torch.zeros(12, 1, 6, 6, dtype=torch.float64), targets_of(name, 12, torch.Generator().manual_seed(0))
    bad = good.clone()
    bad[10].view(-1)[-1] = value
    y, test_y = (good, bad) if place == "test_y" else (bad, good)
    lazy = place.startswith("client")
    if lazy:  # the range is known when the model is
        words = words.replace("sample", "item").replace("from 0 up", "from 0 to 2")
    with pytest.raises(ValueError, match=f"^{place.removesuffix(' item').rstrip(',')}, {words}") as caught:
        train(Simulation(net_of(name), federation([(x, y)], test=(x, test_y), lazy=lazy), objective=ALL[name]), 1)
    assert "\n" not in str(caught.value)


def test_the_class_that_has_no_logits_is_named() -> None:
    logits, y = torch.zeros(1, 3, 1, 3), torch.tensor([[[2, -100, 255]]])
    assert segmentation().check(logits, y, 0).startswith("targets hold the class -100, but the model has 3 logits")
    assert segmentation(ignore=-100).check(logits, torch.tensor([[[2, -100, 0]]]), 0) == ""


def test_pixels_that_are_ignored_may_be_of_any_class() -> None:
    aim = segmentation(ignore=-100)
    assert aim.targets.stray(torch.tensor([[[2, -100, 0]]])) is None
    assert aim.targets.stray(torch.full((2, 1, 1), -1))[0] == 0


def test_what_needs_classes_is_refused_without_them() -> None:
    y = torch.randn(20)
    for split in (
        lambda: fedatoms.data.shards(y, y, 2, 2, seed=0),
        lambda: fedatoms.data.dirichlet(y, y, 2, 0.3, seed=0),
    ):
        with pytest.raises(ValueError, match=r"split by class, but targets of type torch.float32 .* Use iid"):
            split()
    with pytest.raises(ValueError, match=r"class by class, and an objective without classes \(rmse\)"):
        simulation_of("regression", personal=fedpac())


def test_whole_numbers_that_were_taken_for_classes_are_said_where_own_models_are_scored() -> None:
    x, ages = torch.randn(4, 3), torch.tensor([20, 30, 40, 50])
    clients, net, both = [(x[:2], ages[:2]), (x[2:], ages[2:])], nn.Linear(3, 1), ("server", "personal")
    with pytest.warns(
        UserWarning, match=r"tested only on those that occur in its own data, but rmse .* use y.float\(\)"
    ):
        Simulation(net, federation(clients, test=(x, ages)), objective=regression(), score=both)
    Simulation(net, federation(clients, test=(x, ages)), objective=regression())  # a warning would be an error
    Simulation(net, federation(clients, tests=[(x, ages), (x, ages)]), objective=regression(), score=both)
    floats = [(x, ages.float()) for _ in range(2)]
    Simulation(net, federation(floats, test=floats[0]), objective=regression(), score=both)
    Simulation(nn.Linear(3, 51), federation(clients, test=(x, ages)), score=both)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: classification(label_smoothing=1.5), r"label_smoothing=1.5 is not in \[0, 1\)"),
        (lambda: classification(class_weights=[-1.0]), "negative or not finite"),
        (lambda: segmentation("x"), "ignore='x' is not a whole number. Use for example ignore=255"),
        (lambda: regression(3), "unit=3 is not a text"),
        (lambda: objective("regresion"), "unknown objective 'regresion'. Did you mean 'regression'"),
        (
            lambda: replace(simulation_of("regression"), objective="regression"),
            r"Use fedatoms.objectives.regression\(\)",
        ),
        (lambda: replace(simulation_of("regression"), objective=regression()._replace(metrics=())), "has no metric"),
        (
            lambda: simulation_of("regression", objective=regression()._replace(metrics=(Metric("loss", F.mse_loss),))),
            "a metric is named 'loss', which is taken",
        ),
        *(
            (
                lambda given=given: simulation_of("regression", objective=regression()._replace(metrics=given)),
                r"^metrics=.* is not a tuple of metrics. Use \(metric,\), with a comma",
            )
            for given in (regression().metrics[0], F.mse_loss, (F.mse_loss,))
        ),
    ],
)
def test_what_is_no_objective_is_refused(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_the_table_is_open_and_part_of_an_experiment() -> None:
    assert all(isinstance(objective(name), Objective) for name in OBJECTIVES)
    smooth = objective("classification", 0.1)
    assert float(smooth.loss(torch.tensor([[9.0, 0.0]]), torch.tensor([0]))) > 0.1
    plain, other = Experiment(), Experiment(objective="regression")
    assert identity(plain) != identity(other) and "regression" in run_name(other)
    older = {name: value for name, value in to_json(plain).items() if not name.startswith("objective")}
    assert identity(from_json(older)) == identity(plain)


def test_an_objective_of_your_own_trains_and_names_its_score() -> None:
    def far(outputs: Tensor, y: Tensor) -> Tensor:
        return F.l1_loss(outputs, y, reduction="none").mean(1)

    mine = Objective(far, (Metric("distance", far, unit="mm", higher=False, low=0.0),))
    done = train(simulation_of("regression", objective=mine, score=("server", "personal")), 2)
    assert repr(done.scores["server"]).startswith("Score(distance=") and done.scores["personal"].spread is not None
    with pytest.raises(AttributeError, match=r"this score is distance, mm, no accuracy. Use its value."):
        done.scores["server"].accuracy  # noqa: B018


def test_a_loss_of_a_mean_in_one_kernel_is_optional() -> None:
    slow = classification()._replace(mean_loss=None)
    one, other = (
        play(replace(Simulation(small_net(), clients_of()), objective=each), 1) for each in (slow, classification())
    )
    assert difference(one.server.params, other.server.params) < 1e-12


def test_scores_of_classifiers_are_as_before() -> None:
    score = train(simulation_of("classification"), 1).scores["server"]
    assert score.accuracy == score.value == score[0] and score.parts().keys() == {"accuracy", "loss"}
    assert identical(*[play(simulation_of("classification"), 1).server.params for _ in range(2)])
