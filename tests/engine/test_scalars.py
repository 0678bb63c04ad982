"""A parameter without dimensions, such as a temperature, is trained, averaged, sent and kept as any other."""

import dataclasses
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.cases import some_now, some_of
from support.small import all_scores, clients_of, difference, identical, play, small_net
from torch import Tensor, nn

from fedatoms.adapt.fitting import load_personal, personalise, save_personal
from fedatoms.algorithms import ALGORITHMS, algorithm
from fedatoms.algorithms.base import Algorithm
from fedatoms.engine.exchange import FAST, SLOW, Exchange, every_round, fast_slow
from fedatoms.engine.execution import cuda_graph
from fedatoms.engine.loop import Progress, begin
from fedatoms.engine.round import advance
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.training import Training
from fedatoms.evidence.explain.study import explain
from fedatoms.evidence.explain.values import Explain
from fedatoms.experiment.fields import Experiment
from fedatoms.personal import METHODS, personal
from fedatoms.runs.execute import resume, run

TRAINING = Training(epochs=2, batch_size=10, lr=0.05, momentum=0.5, weight_decay=1e-3, clip=1.0)
EXCHANGES = {
    "keep": Exchange(fast_slow(FAST, SLOW, 2), slow_local="keep"),
    "personal rest": Exchange(every_round(), personal=frozenset({"rest"})),
}


class Tempered(nn.Module):
    """A network whose logits are multiplied by a parameter and shifted by a buffer, both without dimensions."""

    def __init__(self, body: nn.Module, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.body, self.temperature = body, nn.Parameter(torch.tensor(1.0, dtype=dtype))
        self.register_buffer("level", torch.tensor(0.5, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * self.temperature + self.level


def simulation(dtype: torch.dtype = torch.float64, **changes: object) -> Simulation:
    net, data = Tempered(small_net(norm=True, atoms=4), dtype).to(dtype), clients_of()
    data = data._replace(x=data.x.to(dtype), test_x=data.test_x.to(dtype))
    method = changes.get("algorithm", Algorithm())
    sim = Simulation(net, data, method, training=TRAINING, score=all_scores(method), block=2)
    return dataclasses.replace(sim, **changes)


def agrees_in_both_maps(sim: Simulation) -> bool:
    loop, fast = (play(dataclasses.replace(sim, map=map), 2) for map in ("one_by_one", "vectorised"))
    trees = [(loop.server.params, fast.server.params)]
    trees += [(tree, fast.server.memory[kind]) for kind, tree in loop.server.memory.items()]
    trees += [(row.own, fast.clients.rows[client].own) for client, row in loop.clients.rows.items() if row.own]
    return all(difference(*pair) < 1e-10 for pair in trees)


@pytest.mark.parametrize("name", some_now(ALGORITHMS, every=2))
def test_a_scalar_is_trained_in_both_maps_and_stays_one(name: str) -> None:
    assert agrees_in_both_maps(simulation(algorithm=algorithm(name)))
    for map in ("one_by_one", "vectorised"):  # a scalar of float64 would turn one of float32 into float64
        state = play(simulation(torch.float32, algorithm=algorithm(name), map=map), 2)
        found = state.server.params["temperature"]
        assert found.shape == () and found.dtype == torch.float32 and found != 1.0
        assert state.last_sum is None or state.last_sum["temperature"].shape == ()
        kept = [tree["temperature"] for row in state.clients.rows.values() for tree in (row.last, *row.memory.values())]
        assert all(leaf.shape == () and leaf.dtype == torch.float32 for leaf in kept)


@pytest.mark.parametrize("method", some_now([name for name in METHODS if name != "pfedpara"], every=2))
def test_a_scalar_may_be_in_a_clients_own_part(method: str) -> None:
    assert agrees_in_both_maps(simulation(personal=personal(method), score=("server", "personal")))


@pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=EXCHANGES.keys())
def test_a_scalar_travels_or_stays_with_its_group(exchange: Exchange) -> None:
    sim = simulation(exchange=exchange)
    assert agrees_in_both_maps(sim)
    state, record = advance(prepare(sim), begin(prepare(sim)))
    stays = "rest" in exchange.personal
    assert ("rest" not in record.up) == stays == (state.server.params["temperature"] == 1.0)


def test_a_scalars_bytes_are_counted() -> None:
    sizes = []
    for net in (small_net(norm=True, atoms=4), Tempered(small_net(norm=True, atoms=4))):
        sim = simulation(model=net)
        sizes.append(advance(prepare(sim), begin(prepare(sim)))[1])
    plain, tempered = sizes
    for up, more in ((plain.up, tempered.up), (plain.down, tempered.down)):
        assert {group: more[group] - up[group] for group in up if more[group] != up[group]} == {
            "rest": 3 * 8,  # three clients, and a number of eight bytes in each group
            "statistics": 3 * 8,
        }


def test_a_scalar_is_compiled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph, "compile_graph", lambda graph, example: graph)
    sim = simulation(algorithm=algorithm("scaffold"))
    fast = dataclasses.replace(sim)
    fast = prepare(fast)._replace(map_clients=cuda_graph.compiled(2))  # on a CPU a simulation would choose another map
    assert difference(play(sim, 2).server.params, play(fast, 2).server.params) < 1e-10


def test_a_scalar_alone_is_a_model() -> None:
    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * x.flatten(1)[:, :3]

    loop, fast = (play(simulation(model=Alone(), map=map), 2).server.params for map in ("one_by_one", "vectorised"))
    assert difference(loop, fast) < 1e-12 and loop["scale"] != 1.0


class Stopped(Exception):
    """What breaks a run off."""


def stop_after_two(progress: Progress) -> None:
    if progress.state.round == 2:
        raise Stopped


@pytest.mark.parametrize("place", some_of(["device", "disk"], "disk"))
def test_a_run_with_a_scalar_is_kept_resumed_personalised_and_explained(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    tmp_path.joinpath(f"tempered_{place}.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "from fedatoms.nn.models import digits_cnn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, classes):\n"
        "        super().__init__()\n"
        "        self.body, self.temperature = digits_cnn(classes), nn.Parameter(torch.tensor(1.0))\n"
        "    def forward(self, x): return self.body(x) * self.temperature\n"
    )
    experiment = Experiment(
        model=f"tempered_{place}:Net", algorithm="scaffold", parametrisation="atoms", personal="local-atoms",
        out="runs", clients=10, fraction=0.3, rounds=3, epochs=1, batch_size=32, checkpoint_every=1, threads=1,
        client_state=place,
    )  # fmt: skip
    run(dataclasses.replace(experiment, name="whole"))
    with pytest.raises(Stopped):
        run(dataclasses.replace(experiment, name="broken"), watch=stop_after_two)
    resume(Path("runs/broken"), {})
    whole, broken = (load_file(f"runs/{name}/model.safetensors") for name in ("whole", "broken"))
    assert identical(whole, broken) and whole["temperature"].shape == () and whole["temperature"] != 1.0

    images = torch.zeros(4, 1, 8, 8), torch.arange(4)
    own = personalise(Path("runs/whole"), images, epochs=1)
    load_personal(Path("runs/whole"), save_personal("ann.safetensors", own, of=Path("runs/whole")))
    explain(Path("runs/whole"), Explain(rounds=1, threads=1))


def test_a_scalar_crosses_to_flowers_nodes_and_back(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from support.flower_grid import SCAFFOLD, all_of, on_flower, server_as_tree, server_of, simulated, task_of

    task = task_of(SCAFFOLD)._replace(model=lambda: Tempered(small_net(norm=True), torch.float32).float())
    on_flower(SCAFFOLD, tmp_path, task=task)
    state, _ = simulated(dataclasses.replace(SCAFFOLD, map="one_by_one"), task)
    assert identical(server_of(tmp_path), server_as_tree(state.server))
    scalars = [leaf for name, leaf in all_of(tmp_path, SCAFFOLD).items() if name.endswith("temperature")]
    assert len(scalars) == 1 + 1 + SCAFFOLD.clients and all(leaf.shape == () for leaf in scalars)
