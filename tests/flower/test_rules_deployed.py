"""Every aggregation rule and every form of uploads on deployed nodes: the simulator's model and bytes, to the bit."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from support.deployed_app import SMALL, is_the_simulators, node_configs, write_app

from fedatoms.aggregation import RULES
from fedatoms.core.ledger import total
from fedatoms.core.options import UPLOADS
from fedatoms.engine.loop import begin
from fedatoms.engine.round import advance
from fedatoms.engine.runtime import prepare
from fedatoms.experiment.build import simulation
from fedatoms.experiment.fields import Experiment
from fedatoms.flower.deploy import deployed
from fedatoms.runs.rounds import read_rounds

FIVE = replace(SMALL, clients=5, rounds=1, parametrisation="atoms")  # as many as Krum needs
CASES = [replace(FIVE, aggregation=name) for name in RULES]
CASES += [replace(FIVE, uploads=each) for each in UPLOADS if each != FIVE.uploads]


def bytes_of(experiment: Experiment) -> tuple[int, int]:
    runtime = prepare(simulation(replace(experiment, map="one_by_one")))
    _, record = advance(runtime, begin(runtime))
    return total(record.up), total(record.down)


@pytest.mark.federation
def test_every_rule_and_every_form_of_uploads_gives_the_simulators_model_and_bytes(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with deployed(tmp_path / "deployment", node_configs(tmp_path, FIVE.clients), warm=True) as deployment:
        for number, experiment in enumerate(CASES):
            app = write_app(tmp_path / f"app-{number}", experiment)
            config = {"rounds": 1, "out": str(runs), "name": str(number), "wait": 300.0}
            lines = deployment.run(app, config, timeout=600)
            assert is_the_simulators(runs / str(number), experiment), experiment
            (row,) = read_rounds(runs / str(number))
            up, down = bytes_of(experiment)
            assert (total(row["up"]), total(row["down"])) == (up, down), experiment
            logged = next(line for line in lines if "bytes of arrays and headers" in line)
            assert f", {up} + " in logged and f" up, {down} + " in logged  # what was received and sent
