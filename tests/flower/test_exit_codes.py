"""Flower's codes are explained, here and on the page, and a server that is killed has a last word."""

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.supercore.error import ApiErrorCode
from flwr.supercore.exit import ExitCode
from support.deployed_app import light_app
from support.flower_grid import SMALL, OneProcess, task_of

from fedatoms.flower import client_app
from fedatoms.flower.deploy import DeploymentError, deployed, quote
from fedatoms.flower.exit_codes import CODES, explain
from fedatoms.flower.last_words import KILLED, outlived
from fedatoms.flower.processes import marked

PAGE = Path(__file__).parents[2] / "docs" / "federation.md"
SERVER = """
import time

from flwr.serverapp import ServerApp

from fedatoms.flower.last_words import outlived

app = ServerApp()


@app.main()
def main(grid, context):
    with outlived(grid):
        print("waiting", flush=True)
        time.sleep(600)
"""
CLIENT = "from flwr.clientapp import ClientApp\n\napp = ClientApp()\n"


def test_every_code_is_one_of_flower_s_and_stands_on_the_page_with_its_causes() -> None:
    theirs = {*(int(each) for each in ApiErrorCode), *(each for each in vars(ExitCode).values() if type(each) is int)}
    page = " ".join(PAGE.read_text().split())
    for code, causes in CODES.items():
        assert code in theirs
        assert f"| {code} |" in page and all(cause in page.replace("`", "") for cause in causes), code


def test_a_code_with_two_causes_is_explained_by_both() -> None:
    said = quote("node-1 ended with status 1", ["Failed to activate SuperNode. (code: 2004)"])
    assert said.count("code 2004: the key is not registered") == 1 and ", or the node was killed" in said
    assert explain(["all is well", "code: 999999"]) == []


def test_a_grid_without_a_superlink_needs_no_last_word(tmp_path: Path) -> None:
    with outlived(OneProcess(client_app(task_of(SMALL)), SMALL, tmp_path)):
        pass


@pytest.mark.slow
def test_a_server_app_that_is_killed_ends_the_stream_with_a_last_word(tmp_path: Path) -> None:
    app = light_app(tmp_path / "app", "waiting", CLIENT, SERVER)
    with deployed(tmp_path / "deployment", [{"partition-id": 0}]) as deployment:

        def kill(line: str) -> None:
            if line.endswith("waiting"):
                for process in marked(deployment.mark("link"), "flwr-serverapp"):
                    os.kill(process, signal.SIGKILL)

        with pytest.raises(DeploymentError, match="the ServerApp ended without a word") as error:
            deployment.run(app, {}, timeout=300, each_line=kill)
    assert str(error.value).count(KILLED) == 2  # in the stream, and as the status of the run
