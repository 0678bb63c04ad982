"""A whole federation on this machine: a SuperLink, SuperNodes and a few rounds; all of it is removed at the end."""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir

from fedatoms.core.lookup import counted
from fedatoms.core.options import check_range
from fedatoms.core.run_files import RESULT
from fedatoms.flower.commands import Value
from fedatoms.flower.deploy import DeploymentError, deployed, new_token, quote
from fedatoms.flower.new_app import new
from fedatoms.flower.private_files import FOLDER
from fedatoms.flower.watcher import watched
from fedatoms.runs.comparison import Line, compare
from fedatoms.runs.results import read_result

NAME = "demo"
LONGEST = 1800.0  # seconds
ROUND = re.compile(r"round (\d+): loss .*")  # counted from 1, as the server logs it


def demo(nodes: int, rounds: int, *, tls: bool, say: Callable[[str], None], done: Callable[[int], None]) -> list[Line]:
    """Deploys the template on loopback and runs it; ``say`` gets each message, ``done`` each finished round."""
    check_range("nodes", nodes, command="flower")
    check_range("rounds", rounds)
    with _folder() as (folder, token):
        app, state = folder / "app", str(folder / "state")
        new(app)
        configs: list[dict[str, Value]] = [
            {"partition-id": i, "num-partitions": nodes, "state-dir": state} for i in range(nodes)
        ]
        say(f"starting a SuperLink and {nodes} SuperNodes{' with TLS and keys' if tls else ''}")
        with deployed(folder / "deployment", configs, tls=tls, token=token) as deployment:
            say(f"all {nodes} nodes are online; running {counted(rounds, 'round')}")

            def each_line(line: str) -> None:
                if found := ROUND.search(line):
                    say(found[0])
                    done(int(found[1]))

            config: dict[str, Value] = {"clients": nodes, "rounds": rounds, "out": str(folder / "runs"), "name": NAME}
            lines = deployment.run(app, config, timeout=LONGEST, each_line=each_line)
            say("stopping all of it")
        if not (folder / "runs" / NAME / RESULT).exists():
            raise DeploymentError(quote("the nodes did not answer", lines))
        return compare([read_result(folder / "runs" / NAME)])


@contextmanager
def _folder() -> Iterator[tuple[Path, str]]:
    """Makes a folder and a token for marks; the folder is removed, and what bears the mark ends, whatever ends us."""
    token = new_token()
    folder = Path(gettempdir()) / f"fedatoms-{token}"
    with watched(token, folder):  # before there is a folder: from its first moment on it will be removed
        folder.mkdir(FOLDER)
        try:
            yield folder, token
        finally:
            shutil.rmtree(folder)
