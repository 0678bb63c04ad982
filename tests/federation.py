"""Minutes of real federations, by `make federation`: equality on three nodes, and parts that are killed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from deployed_app import SMALL, is_the_simulators, node_configs, write_app

from fedatoms.flower.deploy import Deployment, DeploymentError, deployed
from fedatoms.runs import read_rounds

LONG = 600.0  # seconds
CASES = {
    "fedavg": {},
    "scaffold": {"algorithm": "scaffold"},
    "feddc, fast and slow": {"algorithm": "feddc", "parametrisation": "atoms", "beta": "1/2"},
    "local atoms": {"parametrisation": "atoms", "personal": "local-atoms"},
}
THREE = replace(SMALL, clients=3)


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES.keys())
def test_three_nodes_give_the_simulators_model(changes: dict[str, str], tmp_path: Path) -> None:
    experiment = replace(THREE, **changes)
    app = write_app(tmp_path / "app", experiment)
    with deployed(tmp_path / "deployment", node_configs(tmp_path, 3)) as deployment:
        deployment.run(app, {"out": str(tmp_path / "runs")}, timeout=LONG)
    assert is_the_simulators(tmp_path / "runs" / "it", experiment)


def test_a_node_that_is_killed_in_a_round_is_left_out_until_it_is_back(tmp_path: Path) -> None:
    experiment = replace(THREE, algorithm="scaffold", rounds=4)
    app = write_app(tmp_path / "app", experiment)
    with deployed(tmp_path / "deployment", node_configs(tmp_path, 3)) as deployment:
        at = {"round 1: asking": lambda: deployment.kill_node(2), "round 1: loss": lambda: deployment.start_node(2)}
        config = {"rounds": 4, "out": str(tmp_path / "runs"), "min-train-nodes": 2, "timeout": 60.0}
        deployment.run(app, config, timeout=LONG, each_line=acting(at))
    rows = read_rounds(tmp_path / "runs" / "it")
    assert [(row["round"], row["clients"], row["failed"]) for row in rows] == [
        (0, 3, 0),
        (1, 2, 1),
        (2, 3, 0),
        (3, 3, 0),
    ]


@pytest.mark.parametrize("when", ["round 0: loss", "round 1: asking"])
@pytest.mark.parametrize("what", ["link", "server app"])
def test_a_server_that_is_killed_goes_on_as_if_nothing_had_been(what: str, when: str, tmp_path: Path) -> None:
    experiment = replace(THREE, algorithm="scaffold", parametrisation="atoms", beta="1/2")
    app, config = write_app(tmp_path / "app", experiment), {"out": str(tmp_path / "runs")}
    with deployed(tmp_path / "deployment", node_configs(tmp_path, 3)) as deployment:
        with pytest.raises(DeploymentError):
            deployment.run(app, config, timeout=LONG, each_line=acting({when: killer(deployment, what)}))
        if what == "link":
            deployment.start_link()
        deployment.run(app, {**config, "resume": True}, timeout=LONG)
    assert is_the_simulators(tmp_path / "runs" / "it", experiment)


def killer(deployment: Deployment, what: str) -> Callable[[], object]:
    return deployment.kill_link if what == "link" else deployment.kill_server_app


def acting(at: dict[str, Callable[[], object]]) -> Callable[[str], None]:
    """Does something when a line is heard for the first time."""
    waiting = dict(at)

    def hear(line: str) -> None:
        for words in [words for words in waiting if words in line]:
            waiting.pop(words)()

    return hear
