"""A SuperNode that keeps torch loaded: its ClientApps are forked, and learn the model of the simulator."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from support.deployed_app import SMALL, is_the_simulators, node_configs, write_app

from fedatoms.flower import stand_in, warm
from fedatoms.flower.deploy import deployed
from fedatoms.flower.processes import PAUSE, kill, marked

FORKER = """
import os, random, sys
from pathlib import Path
if sys.argv[2:] == ["draws"]:
    import numpy.random, torch
from fedatoms.flower.warm import listen, task_of

listener = listen(Path(sys.argv[1]))
print("listens", flush=True)
words = task_of(listener, os.getppid())
if words == ["draw"]:
    print(random.random(), numpy.random.normal(), torch.rand(1).item(), flush=True)
elif words is not None:
    print("forked", *words, flush=True)
"""
FAILING = """
import os, sys
from pathlib import Path
from fedatoms.flower import warm

warm.IMPORTED = ("there_is_no_such_module",)
warm._fork_until(os.getppid(), warm.listen(Path(sys.argv[1]) / warm.PLACE), Path(sys.argv[1]))
"""
START = """
import sys
from fedatoms.flower import warm
warm._path = lambda: sys.argv[1] + ":/bin:/usr/bin"
warm.supernode(sys.argv[2:])
"""


@contextmanager
def forking(place: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", FORKER, str(place), *words], stdout=subprocess.PIPE, text=True
    ) as forker:
        assert forker.stdout is not None and forker.stdout.readline() == "listens\n"
        try:
            yield forker
        finally:
            forker.kill()


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o700)
    return path


def run_stand_in(place: Path, own: Path, *words: str) -> str:
    command = [sys.executable, "-IS", stand_in.__file__, str(place), str(own), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def node_lines(folder: Path, commands: str, *words: str) -> list[str]:
    """What a script in the place of flower-supernode prints; nothing may stay behind."""
    programs, temporary = folder / "bin", folder / "t"
    programs.mkdir()
    temporary.mkdir()
    script(programs / "flower-supernode", f"#!/bin/sh\n{commands}\nexit 7\n")
    script(programs / "flwr-clientapp", "#!/bin/sh\necho cold\n")
    command, env = [sys.executable, "-c", START, str(programs), *words], {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 7, done.stderr
    wait_until(lambda: not any(temporary.iterdir()))
    return done.stdout.splitlines()


def wait_until(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(PAUSE)


def test_a_stand_in_is_answered_by_a_fork_that_writes_where_it_writes(tmp_path: Path) -> None:
    own = script(tmp_path / "own", '#!/bin/sh\necho "own $*"\n')
    with forking(tmp_path / "fork"):
        for number in range(3):
            assert run_stand_in(tmp_path / "fork", own, "--token", f"a b{number}") == f"forked --token a b{number}\n"


def test_no_two_forks_draw_the_same_noise(tmp_path: Path) -> None:
    with forking(tmp_path / "fork", "draws"):
        drawn = [run_stand_in(tmp_path / "fork", tmp_path / "own", "draw").split() for _ in range(3)]
    assert all(len({*column}) == 3 for column in zip(*drawn, strict=True)) and len(drawn[0]) == 3


def test_where_nobody_forks_flowers_own_program_does_the_work(tmp_path: Path) -> None:
    own = script(tmp_path / "own", '#!/bin/sh\necho "own $*"\n')
    assert run_stand_in(tmp_path / "fork", own, "--insecure") == "own --insecure\n"
    with forking(tmp_path / "fork") as forker:
        forker.kill()
        forker.wait()
        assert run_stand_in(tmp_path / "fork", own, "--insecure") == "own --insecure\n"


def test_an_app_that_installs_packages_of_its_own_is_never_forked(tmp_path: Path) -> None:
    own, flag = script(tmp_path / "own", '#!/bin/sh\necho "own $*"\n'), stand_in.OTHER_PACKAGES
    with forking(tmp_path / "fork"):
        assert run_stand_in(tmp_path / "fork", own, flag) == f"own {flag}\n"


def test_words_that_are_none_end_nothing(tmp_path: Path) -> None:
    own = script(tmp_path / "own", '#!/bin/sh\necho "own $*"\n')
    with forking(tmp_path / "fork"):
        for said in (b"{", b"3", b""):
            with socket.socket(socket.AF_UNIX) as to:
                to.connect(str(tmp_path / "fork"))
                to.sendall(said)
                to.shutdown(socket.SHUT_WR)
                assert to.recv(1) == b""
        assert run_stand_in(tmp_path / "fork", own, "on") == "forked on\n"


def test_words_that_are_none_leave_no_file_open(tmp_path: Path) -> None:
    with forking(tmp_path / "fork") as forker:
        opened = [_sent_nonsense(tmp_path / "fork", forker.pid) for _ in range(5)]
    assert len({*opened}) == 1


def _sent_nonsense(place: Path, forker: int) -> int:
    """Sends two files with words that are none; returns how many files the forker then has open."""
    with socket.socket(socket.AF_UNIX) as to:
        to.connect(str(place))
        socket.send_fds(to, [b"{"], [1, 2])
        assert to.recv(1) == b""
    return len(os.listdir(f"/proc/{forker}/fd"))


def test_a_forker_that_fails_keeps_its_folder_which_is_first_in_the_nodes_path(tmp_path: Path) -> None:
    """Otherwise anybody on the machine could make it anew, with a program that the node would run."""
    own = script(tmp_path / "own", '#!/bin/sh\necho "own $*"\n')
    command = [sys.executable, "-c", FAILING, str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as forker:
        try:
            assert forker.stderr is not None and any("ModuleNotFoundError" in line for line in iter(forker.stderr))
            assert run_stand_in(tmp_path / warm.PLACE, own, "--insecure") == "own --insecure\n"
            time.sleep(2 * warm.PAUSE)
            assert forker.poll() is None and (tmp_path / warm.PLACE).exists()
        finally:
            forker.kill()


def test_a_node_is_flowers_with_its_words_and_status_and_leaves_nothing_behind(tmp_path: Path) -> None:
    lines = node_lines(tmp_path, 'echo "words $*"\necho "client $(command -v flwr-clientapp)"', "--port", "a=1 b=2")
    said = dict(line.split(" ", 1) for line in lines)
    assert said["words"] == "--port a=1 b=2"
    assert Path(said["client"]).parent.parent == tmp_path / "t"


@pytest.mark.slow
def test_a_fork_does_what_flowers_own_client_does(tmp_path: Path) -> None:
    lines = node_lines(tmp_path, "flwr-clientapp --help | cat")
    assert any("Run a Flower ClientApp" in line for line in lines)
    assert not any("cold" in line for line in lines)


def test_the_socket_is_in_a_folder_of_its_owner_alone(tmp_path: Path) -> None:
    lines = node_lines(tmp_path, 'f=$(dirname "$(command -v flwr-clientapp)"); stat -c %a "$f"; ls "$f"')
    assert lines == ["700", "flwr-clientapp", "fork"]


def test_a_folder_whose_path_is_too_long_for_a_socket_is_named_and_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(OSError, match=r"Set TMPDIR to a folder with a shorter path"):
        warm.supernode([])
    assert list(deep.iterdir()) == []


@pytest.mark.slow
def test_what_is_imported_before_a_fork_starts_no_thread_of_python_and_no_device() -> None:
    """Native ones of a library for matrices may be there; such libraries see to forks themselves."""
    code = """
import importlib, threading
from fedatoms.flower.warm import IMPORTED
for name in IMPORTED:
    importlib.import_module(name)
import torch
assert threading.active_count() == 1, threading.enumerate()
assert not torch.cuda.is_initialized()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@contextmanager
def flowers_own(nodes: Sequence[str]) -> Iterator[dict[str, set[int]]]:
    """Notes the ClientApps that Flower starts on its own: not stand-ins, whose words have its name in them, too."""
    own, over = Path(sys.executable).with_name("flwr-clientapp"), threading.Event()
    command = f"{own.read_text().splitlines()[0].removeprefix('#!')}\0{own}"
    seen: dict[str, set[int]] = {node: set() for node in nodes}

    def look() -> None:
        while not over.wait(0.3):
            for node, ids in seen.items():
                ids.update(marked(node, command))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


@pytest.mark.slow
def test_a_federation_of_warm_nodes_gives_the_simulators_model_also_when_a_forker_is_killed(tmp_path: Path) -> None:
    experiment = replace(SMALL, clients=2, rounds=3, algorithm="scaffold", parametrisation="atoms", beta="1/2")
    app = write_app(tmp_path / "app", experiment)
    forkers = "-m\0fedatoms.flower.warm"
    env = {"TMPDIR": os.environ.get("TMPDIR", "/tmp")}
    with deployed(tmp_path / "deployment", node_configs(tmp_path, 2), warm=True, env=env) as deployment:
        nodes = [deployment.mark(f"node-{i}") for i in range(2)]
        assert all(len(marked(node, forkers)) == 1 for node in nodes)

        def each_line(line: str) -> None:
            if "round 1: loss" in line:
                kill(nodes[1], forkers)

        with flowers_own(nodes) as seen:
            deployment.run(app, {"rounds": 3, "out": str(tmp_path / "runs")}, timeout=600, each_line=each_line)
        assert not seen[nodes[0]] and seen[nodes[1]]  # none on the node that was left alone
        os.kill(deployment.parts["node-0"].process.pid, signal.SIGKILL)
        wait_until(lambda: not marked(nodes[0], forkers))
    assert is_the_simulators(tmp_path / "runs" / "it", experiment)
