"""One run on Flower's own simulation, where Ray is installed: the simulator's model, bit for bit."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")

from support.deployed_app import SMALL, is_the_simulators, write_app

from fedatoms.flower.commands import config_words, environment, program
from fedatoms.flower.processes import end, start

LOCAL = """
[superlink]
default = "local"

[superlink.local]
address = ":local-in-memory:"
options.num-supernodes = 2
options.backend.client-resources.num-cpus = 1
options.backend.init-args.num-cpus = 2
"""


@pytest.mark.slow
def test_flower_s_simulation_gives_the_simulators_model(tmp_path: Path) -> None:
    experiment = replace(SMALL, clients=2, rounds=2, algorithm="scaffold", parametrisation="atoms", beta="1/2")
    app, home, mark = write_app(tmp_path / "app", experiment), tmp_path / "flower", f"{tmp_path}/"
    home.mkdir()
    (home / "config.toml").write_text(LOCAL)
    env = environment(home, {})
    words = config_words({"rounds": 2, "out": str(tmp_path / "runs"), "state-dir": str(tmp_path / "state")})
    command = [program("flwr", env), "run", str(app), "--stream", "--run-config", words]
    try:
        flower = start(command, mark, env=env, cwd=tmp_path)
        said, _ = flower.communicate(timeout=300)
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"it did not end: {error.output}")
    finally:
        end(mark)
    assert (tmp_path / "runs" / "it" / "result.json").exists(), said.decode()
    assert is_the_simulators(tmp_path / "runs" / "it", experiment)
