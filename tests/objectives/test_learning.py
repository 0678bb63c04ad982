"""Regression, several labels and segmentation are learnt to a stated score, in both maps and on Flower, and alike."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.cases import some_now, some_of
from support.flower_grid import on_flower, warnings_in
from support.small import difference
from support.tasks import Problem, problem
from torch import Tensor, nn

from fedatoms.core.inputs import take
from fedatoms.data.federations import federation
from fedatoms.engine.loop import train
from fedatoms.engine.spec import Simulation
from fedatoms.experiment.build import assemble
from fedatoms.experiment.fields import Experiment
from fedatoms.flower import Own, Task
from fedatoms.flower.task import node_simulation, server_simulation
from fedatoms.objectives.base import Metric, Objective
from fedatoms.runs.results import read_result
from fedatoms.runs.rounds import read_rounds

OWN_HEADS = {"personal": "fedper", "rounds": 1, "eval_every": 1, "last_epochs": 0, "score": "auto"}
NAMES = ("regression", "multi-label", "segmentation")


def simulation_of(it: Problem, **changes: object) -> Simulation:
    return Simulation(it.net, it.data, training=it.training, objective=it.objective, score=("server",), **changes)


@pytest.mark.parametrize(("name", "way"), some_now(NAMES, ["one_by_one", "vectorised"]))
def test_a_problem_is_learnt_to_its_score_in_both_maps(name: str, way: str) -> None:
    it = problem(name)
    done = train(simulation_of(it, map=way), it.rounds, eval_every=it.rounds)
    found = done.scores["server"]
    assert found.scale.reaches(found.value, it.score), found


def experiment_of(it: Problem, **changes: object) -> Experiment:
    given = {name: value for name, value in asdict(it.training).items() if value is not None}  # None: the default
    settings = {name: value for name, value in given.items() if name in Experiment.__dataclass_fields__}
    fixed = {"clients": 3, "fraction": 1.0, "rounds": it.rounds, "eval_every": it.rounds, "threads": 1, "device": "cpu"}
    return Experiment(**{**settings, **fixed, "dataset": "own", "score": "server", **changes})


def task_of(it: Problem, experiment: Experiment, shape: object = None) -> Task:
    data = it.data

    def own(partition: int, partitions: int) -> Own:
        rows, tested = data.parts[partition], data.test_parts[partition]
        return Own(take(data.x, rows), data.y[rows], take(data.test_x, tested), data.test_y[tested])

    shape = shape or tuple(data.x.shape[1:])
    return Task(
        experiment, lambda: it.net, own, data.classes, shape, lambda: (data.test_x, data.test_y), None, it.objective
    )


@pytest.mark.parametrize("name", some_of(NAMES, "regression", "multi-label"))
def test_a_problem_is_learnt_on_flower_as_in_the_simulator(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    it = problem(name)
    experiment = experiment_of(it)
    on_flower(experiment, tmp_path, task=task_of(it, experiment))
    made = read_result(tmp_path / "runs" / "it")
    assert not warnings_in(caplog) and made.metric.record() == it.objective.scale.record()
    assert made.metric.reaches(made.scores["server"].final, it.score)
    sim = assemble(experiment, it.net, it.data, objective=it.objective)
    here = train(sim, it.rounds, eval_every=it.rounds).state.server.params
    assert difference(load_file(made.folder / "model.safetensors"), here) == 0


def test_own_models_of_nodes_are_scored_as_the_simulators(tmp_path: Path) -> None:
    """Statistics of several numbers cross the wire, and give the exact score of all nodes' samples together."""
    for name in NAMES:
        it = problem(name)
        head = "head" if name == "segmentation" else ""
        experiment = experiment_of(it, **OWN_HEADS, head=head)
        on_flower(experiment, tmp_path / name, task=task_of(it, experiment))
        (row,) = read_rounds(tmp_path / name / "runs" / "it")
        sim = assemble(experiment, it.net, it.data, objective=it.objective)
        assert row["scores"]["personal"] == pytest.approx(train(sim, 1).scores["personal"].parts())


@pytest.mark.parametrize(
    "spoil", [{"rmse": -1.0}, {"rmse": float("nan")}, {"rmse": 1e39}, {"r2": [1.0]}, {"r2-shape": [2]}]
)
def test_scores_that_a_node_made_up_are_refused(
    spoil: dict[str, object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    it = problem("regression")
    experiment = experiment_of(it, **OWN_HEADS)

    def meddle(client: int, message: object, answer: object) -> object:
        reply = answer(message)
        if client == 1 and reply.has_content() and "rmse" in reply.content.metric_records.get("metrics", {}):
            for key, value in spoil.items():
                reply.content.metric_records["metrics"][key] = value
        return reply

    on_flower(experiment, tmp_path, meddle, task=task_of(it, experiment))
    assert any("refused the answer of client 1" in line for line in warnings_in(caplog))
    (row,) = read_rounds(tmp_path / "runs" / "it")
    assert 0 < row["scores"]["personal"]["rmse"] < 10


def test_batches_of_parts_and_an_objective_of_your_own_run_on_flower(tmp_path: Path) -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 1)

        def forward(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
            return {"logits": self.fc(torch.cat([a, b], 1))}

    def far(outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs[:, 0] - y).abs()

    torch.manual_seed(0)
    draws = torch.Generator().manual_seed(0)
    parts = [(torch.randn(n, 2, generator=draws), torch.randn(n, 1, generator=draws)) for n in (9, 12, 14)]
    pairs = [((a, b), a[:, 0] - b[:, 0]) for a, b in parts]
    it = problem("regression")._replace(
        data=federation(pairs, tests=pairs),
        net=Sum(),
        objective=Objective(lambda o, y: far(o, y) ** 2, (Metric("far", far, higher=False, low=0.0),)),
        rounds=12,
    )
    experiment = experiment_of(it, lr=0.1, momentum=0.0)
    on_flower(experiment, tmp_path, task=task_of(it, experiment, ((2,), (1,))))
    made = read_result(tmp_path / "runs" / "it")
    assert made.metric.name == "far" and made.scores["server"].final < 0.1
    assert json.loads((made.folder / "result.json").read_text())["metric"]["higher"] is False
    named = pairs[0][0]
    data = it.data._replace(
        x=dict(zip("ab", it.data.x, strict=True)), test_x=dict(zip("ab", it.data.test_x, strict=True))
    )
    by_name = task_of(it._replace(data=data), experiment, {"a": (2,), "b": (1,)})
    assert torch.equal(node_simulation(by_name, experiment, 0).data.x["a"], named[0])
    assert server_simulation(by_name, experiment).data.x["a"].shape == (0, 2)
    with pytest.raises(
        ValueError, match=r"samples have shape x\['a'\] \(2,\), x\['b'\] \(1,\), but the task says shape="
    ):
        node_simulation(by_name._replace(shape={"a": (3,), "b": (1,)}), experiment, 0)
