"""Minutes of real federations: equality on three nodes, and parts that are killed or hang.

`make federation` runs all of them, `make test-slow` those that are marked as slow, one of each kind.
"""

import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from support.deployed_app import SMALL, is_the_simulators, node_configs, write_app
from support.faults import end_node, hold_node, kill_part, kill_server_app, let_node_go, start_node

from fedatoms.core.accounting import epsilon_of
from fedatoms.flower.deploy import Deployment, DeploymentError, deployed
from fedatoms.runs.results import read_result
from fedatoms.runs.rounds import read_rounds

pytestmark = pytest.mark.federation

LONG = 600.0  # seconds
PATIENT = 300.0  # seconds for nodes that are all there, on a machine that may be busy
CASES = [
    pytest.param({}, id="fedavg"),
    pytest.param({"algorithm": "scaffold"}, id="scaffold"),
    pytest.param(
        {"algorithm": "feddc", "parametrisation": "atoms", "beta": "1/2"},
        id="feddc, fast and slow", marks=pytest.mark.slow,
    ),
    pytest.param({"parametrisation": "atoms", "personal": "local-atoms"}, id="local atoms", marks=pytest.mark.slow),
]  # fmt: skip
KILLS = [
    pytest.param("link", "between rounds"),
    pytest.param("link", "in a round", marks=pytest.mark.slow),
    pytest.param("server app", "between rounds"),
    pytest.param("server app", "in a round"),
]
Rows = list[tuple[int, int, int]]  # round, clients that reported, clients that did not
THREE = replace(SMALL, clients=3)
LONGER = replace(THREE, algorithm="scaffold", epochs=30)  # long enough to be killed in the middle of it


@pytest.mark.parametrize("changes", CASES)
def test_three_nodes_give_the_simulators_model(changes: dict[str, str], tmp_path: Path) -> None:
    experiment = replace(THREE, **changes)
    app = write_app(tmp_path / "app", experiment)
    with deployed(tmp_path / "deployment", node_configs(tmp_path, 3)) as deployment:
        deployment.run(app, {"out": str(tmp_path / "runs"), "wait": PATIENT}, timeout=LONG)
    assert is_the_simulators(tmp_path / "runs" / "it", experiment)


def rounds_without_a_node(folder: Path, fail: Callable[[Deployment], None], mend: Callable[[Deployment], None]) -> Rows:
    """Lets the third of three nodes fail while it trains in round 1, and mends it after that round."""
    app = write_app(folder / "app", replace(LONGER, rounds=4))
    with deployed(folder / "deployment", node_configs(folder, 3)) as deployment:
        at = {
            "round 2: asking": while_training(deployment, 2, 2, lambda: fail(deployment)),
            "round 2: loss": lambda: mend(deployment),
        }
        config = {"rounds": 4, "out": str(folder / "runs"), "min-train-nodes": 2, "timeout": 60.0}
        deployment.run(app, config, timeout=LONG, each_line=acting(at))
    return [(row["round"], row["clients"], row["failed"]) for row in read_rounds(folder / "runs" / "it")]


@pytest.mark.slow
def test_a_node_that_is_killed_in_a_round_is_left_out_until_it_is_back(tmp_path: Path) -> None:
    rows = rounds_without_a_node(tmp_path, lambda it: kill_part(it, "node-2"), lambda it: start_node(it, 2))
    assert [rows[number] for number in (0, 1, 3)] == [(0, 3, 0), (1, 2, 1), (3, 3, 0)]
    assert rows[2] in ((2, 3, 0), (2, 2, 1))  # a new process may come too late for the next round


def test_a_node_that_hangs_is_left_out_and_its_late_answer_is_not_taken(tmp_path: Path) -> None:
    rows = rounds_without_a_node(tmp_path, lambda it: hold_node(it, 2), lambda it: let_node_go(it, 2))
    assert [row[0] for row in rows] == [0, 1, 2, 3]
    assert rows[1] == (1, 2, 1) and rows[3] == (3, 3, 0)  # in round 2 it may still be busy with the old order


@pytest.mark.parametrize(("what", "when"), KILLS)
def test_a_server_that_is_killed_goes_on_as_if_nothing_had_been(what: str, when: str, tmp_path: Path) -> None:
    experiment = replace(LONGER, parametrisation="atoms", beta="1/2")
    app, config = write_app(tmp_path / "app", experiment), {"out": str(tmp_path / "runs"), "wait": PATIENT}
    with deployed(tmp_path / "deployment", node_configs(tmp_path, 3)) as deployment:
        kill = partial(kill_part, deployment, "link") if what == "link" else partial(kill_server_app, deployment)
        at = {
            "between rounds": {"round 1: loss": kill},
            "in a round": {"round 2: asking": while_training(deployment, 0, 2, kill)},
        }
        with pytest.raises(DeploymentError):
            deployment.run(app, config, timeout=LONG, each_line=acting(at[when]))
        assert len(read_rounds(tmp_path / "runs" / "it")) <= 1  # the second was not over
        if what == "link":
            deployment.start_link()
        deployment.run(app, {**config, "resume": True}, timeout=LONG)
    assert is_the_simulators(tmp_path / "runs" / "it", experiment)


def test_too_few_nodes_end_a_run_in_peace_and_it_goes_on_when_they_are_back(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", THREE)
    config = {"out": str(tmp_path / "runs"), "min-train-nodes": 3, "wait": 30.0}
    with deployed(tmp_path / "deployment", node_configs(tmp_path, 3)) as deployment:
        at = {"round 1: loss": lambda: end_node(deployment, 2)}
        lines = deployment.run(app, config, timeout=LONG, each_line=acting(at))  # or Flower would say that it failed
        assert len([line for line in lines if "stopped in round 2" in line]) == 1
        assert not [line for line in lines if "Traceback" in line]
        start_node(deployment, 2)
        deployment.run(app, {**config, "resume": True}, timeout=LONG)
    assert is_the_simulators(tmp_path / "runs" / "it", THREE)


def test_a_private_run_counts_every_round_through_a_kill_and_names_nobody(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    experiment = replace(THREE, fraction=0.7, sampling="poisson", dp_noise=2.0)
    app, config = write_app(tmp_path / "app", experiment), {"out": str(tmp_path / "runs"), "timeout": 90.0}
    with deployed(tmp_path / "deployment", node_configs(tmp_path, 3)) as deployment:
        kill = acting({"round 1: epsilon": partial(kill_server_app, deployment)})
        with pytest.raises(DeploymentError):
            deployment.run(app, config, timeout=LONG, each_line=kill)
        end_node(deployment, 2)
        lines = deployment.run(app, {**config, "resume": True}, timeout=LONG)
    said = read_result(tmp_path / "runs" / "it").extra["privacy"]
    assert said["rounds"] in (3, 4)  # the second may have been drawn when the kill came
    assert said["epsilon"] == epsilon_of(0.7, 2.0, said["rounds"], 1e-5)
    rows = read_rounds(tmp_path / "runs" / "it")
    assert [(row["round"], row["loss"], row["clients"], row["failed"]) for row in rows] == [
        (t, None, 2, 0) for t in range(3)
    ]
    assert [line for line in lines if "round 3: epsilon" in line]
    assert not [line for line in lines if re.search(r"round \d+: (asking|left out|refused|client)|samples", line)]


@pytest.mark.slow
def test_a_registered_stranger_does_not_train_as_a_client_whose_node_is_away(tmp_path: Path) -> None:
    experiment = replace(SMALL, clients=2)
    app, config = write_app(tmp_path / "app", experiment), {"out": str(tmp_path / "runs"), "min-train-nodes": 2}
    node, other = node_configs(tmp_path, 2)
    deployment = Deployment(
        tmp_path / "deployment", [node, other, other], tls=True, env={}
    )  # the third is the stranger
    with ExitStack() as ending:
        ending.callback(deployment.end)
        deployment.start_link()
        deployment.register_nodes()
        deployment.start_nodes([0, 1])
        at = {"round 1: loss": lambda: end_node(deployment, 1)}
        lines = deployment.run(app, {**config, "wait": 30.0}, timeout=LONG, each_line=acting(at))
        assert len([line for line in lines if "stopped in round 2" in line]) == 1
        kill_part(deployment, "link")
        deployment.start_link()  # with its database
        start_node(deployment, 2)
        lines = deployment.run(app, {**config, "wait": 60.0, "resume": True}, timeout=LONG)
        stranger = re.compile(r"WARNING :\s+node \d+ says that it is client 1, which belongs to another key")
        assert len([line for line in lines if stranger.match(line)]) == 1
        assert len([line for line in lines if "stopped in round 2" in line]) == 1
        start_node(deployment, 1)
        deployment.run(app, {**config, "resume": True}, timeout=LONG)
    assert is_the_simulators(tmp_path / "runs" / "it", experiment)


def while_training(deployment: Deployment, client: int, number: int, act: Callable[[], object]) -> Callable[[], object]:
    """Waits until a node says that it trains, acts at once, and sees to it that the node had not answered by then."""

    def wait() -> None:
        until, words = time.monotonic() + LONG, f"round {number}: training as client {client}"
        while not any(begun := [words in line for line in deployment.log(f"node-{client}")]):
            assert time.monotonic() < until, "it never trained"
            time.sleep(0.02)
        act()
        after = deployment.log(f"node-{client}")[begun.index(True) :]
        assert not [line for line in after if "Sending: train" in line], "it had answered already"

    return wait


def acting(at: dict[str, Callable[[], object]]) -> Callable[[str], None]:
    """Does something when a line is heard for the first time."""
    waiting = dict(at)

    def hear(line: str) -> None:
        for words in [words for words in waiting if words in line]:
            waiting.pop(words)()

    return hear
