"""Metrics of torchmetrics: what they say of all data at once, whatever the batches, for all clients and for each."""

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
import torch
from support.small import clients_of, small_net
from torch import Tensor, nn

import fedatoms
from fedatoms.engine import evaluation
from fedatoms.engine.spec import Simulation
from fedatoms.engine.training import Training
from fedatoms.nn.pure import with_params
from fedatoms.objectives import classification, regression, torchmetric
from fedatoms.personal import fedper

if TYPE_CHECKING:
    from torchmetrics import Metric


def library() -> ModuleType:
    """Imports torchmetrics for a test: it takes seconds, and every worker reads this file."""
    import torchmetrics

    return torchmetrics


CASES: dict[str, Callable[[], "Metric"]] = {
    "f1": lambda: f1(average="macro"),
    "auroc": lambda: library().classification.MulticlassAUROC(num_classes=3, average="macro", ignore_index=None),
    "mse": lambda: library().MeanSquaredError(),
}


def f1(**words: object) -> "Metric":
    return library().classification.MulticlassF1Score(**{"num_classes": 3, **words})


def simulation(made: "Metric", **changes: object) -> Simulation:
    """Clients with test sets of their own, all classes in each; for numbers the label is one."""
    torch.manual_seed(0)
    aim, net, data = classification(), small_net(), clients_of((9, 12, 15))
    y = torch.arange(12) % 3
    if isinstance(made, library().MeanSquaredError):
        aim, net = regression(), nn.Sequential(small_net(), nn.Linear(3, 1), nn.Flatten(0)).double()
        data, y = data._replace(y=data.y.double(), classes=0), y.double()
    data = data._replace(test_y=y, test_parts=list(torch.arange(12).split((3, 3, 6))))
    aim = aim._replace(metrics=(torchmetric(made, name="theirs"), *aim.metrics))
    sim = Simulation(net, data, objective=aim, training=Training(batch_size=5, lr=0.05))
    return replace(sim, **changes)


def outputs_of(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model.eval()(x)


@pytest.mark.filterwarnings("ignore:No (posi|nega)tive samples in targets")  # torchmetrics, of a client's few samples
@pytest.mark.parametrize("name", CASES)
def test_a_score_is_that_of_torchmetrics_on_all_data_whatever_the_batch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim, found = simulation(CASES[name]()), []
    for size in (1, 5, 500):
        monkeypatch.setattr(evaluation, "scored_at_once", lambda device, size=size: size)
        done = fedatoms.train(sim, 2)
        found.append(done.scores["server"])
        expected = CASES[name]()(outputs_of(done.model, sim.data.test_x), sim.data.test_y)
        assert found[-1].value == pytest.approx(float(expected), abs=1e-6)
    assert found[0].value == pytest.approx(found[1].value, abs=1e-6) == pytest.approx(found[2].value, abs=1e-6)
    assert found[0].scale.name == "theirs" and found[0].scale.higher == (name != "mse") and len(found[0].others) >= 1


@pytest.mark.filterwarnings("ignore:No (posi|nega)tive samples in targets")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("method", [None, fedper()])
def test_clients_own_models_are_scored_by_all_their_samples_and_each_by_its_own(name: str, method: object) -> None:
    """With and without personal parameters: the value pools all clients' outputs, worst and spread are over clients."""
    more = {} if method is None else {"personal": method}
    sim = simulation(CASES[name](), score=("personal",), **more)
    done = fedatoms.train(sim, 1)
    parts, pooled, each = sim.data.test_parts, CASES[name](), []
    for client, part in enumerate(parts):
        row = done.state.clients.read(client)
        model = with_params(sim.model, {**done.state.server.params, **({} if row is None else row.own)})
        outputs, y = outputs_of(model, sim.data.test_x[part]), sim.data.test_y[part]
        pooled.update(outputs, y)
        each.append(float(CASES[name]()(outputs, y)))
    score, worse = done.scores["personal"], max if name == "mse" else min
    assert score.value == pytest.approx(float(pooled.compute()), abs=1e-6)
    assert score.worst == pytest.approx(worse(each), abs=1e-6)
    assert score.spread == pytest.approx(float(torch.tensor(each).std(correction=0)), abs=1e-6)


def test_a_share_is_shown_in_per_cent_and_the_users_metric_is_left_alone() -> None:
    theirs = f1()
    sim = simulation(theirs)
    shares = replace(sim, objective=classification()._replace(metrics=(torchmetric(theirs, unit="%"),)))
    one, other = (fedatoms.train(each, 1).scores["server"] for each in (sim, shares))
    assert other.value == pytest.approx(100 * one.value) and other.scale.axis == "MulticlassF1Score, %"
    assert not theirs.update_called


def test_batch_by_batch_takes_what_predictions_makes_of_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "scored_at_once", lambda device: 5)
    theirs = f1()
    ways = [{}, {"by_batch": True}, {"predictions": lambda z: z.argmax(1)}]
    aims = [classification()._replace(metrics=(torchmetric(theirs, **way),)) for way in ways]
    found = {fedatoms.train(replace(simulation(theirs), objective=aim), 1).scores["server"].value for aim in aims}
    assert len(found) == 1


def test_what_is_no_metric_for_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for make, words in (
        (
            lambda: torchmetric(library().classification.MulticlassF1Score),
            "is not a metric of torchmetrics. Use for example torchmetrics.Mean",
        ),
        (
            lambda: torchmetric(library().MeanMetric()),
            "MeanMetric does not say which score is better. Add higher_is_better=True",
        ),
        (
            lambda: fedatoms.train(simulation(f1(average="none")), 1),
            r"theirs is of shape \(3,\), not one number. Give it for example average='macro'",
        ),
        (
            lambda: fedatoms.train(simulation(f1(), objective=wrong_classes()), 1),
            "the objective's metric 'MulticlassF1Score' fails on outputs of shape",
        ),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            make()
        assert "\n" not in str(caught.value)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'needs torchmetrics. Type: pip install "fedatoms\[metrics\]"'):
        torchmetric(library().MeanSquaredError())


def wrong_classes() -> object:
    return classification()._replace(metrics=(torchmetric(f1(num_classes=7)),))
