"""One run on a deployed SuperLink, with TLS and keys: the simulator's model, bit for bit."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from support.deployed_app import SMALL, is_the_simulators, node_configs, write_app

from fedatoms.flower.deploy import deployed


@pytest.mark.slow
def test_a_deployed_federation_gives_the_simulators_model(tmp_path: Path) -> None:
    experiment = replace(SMALL, clients=2, rounds=2, algorithm="scaffold", parametrisation="atoms", beta="1/2")
    app = write_app(tmp_path / "app", experiment)
    with deployed(tmp_path / "deployment", node_configs(tmp_path, 2), tls=True) as deployment:
        deployment.run(app, {"rounds": 2, "out": str(tmp_path / "runs")}, timeout=300)
    assert is_the_simulators(tmp_path / "runs" / "it", experiment)
