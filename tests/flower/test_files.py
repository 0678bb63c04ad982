"""Flower's files are for their owner only, whatever the umask: runs, nodes' states, databases and logs."""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.small import identical

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict
from support.flower_grid import OWN_ATOMS, App, OneProcess, all_of, in_a_test, on_flower, round_of, task_of

from fedatoms.flower import client_app, processes, server_app
from fedatoms.flower.deploy import Deployment
from fedatoms.flower.private_files import private, shut
from fedatoms.runs.lock import locked

UMASKS = pytest.mark.parametrize("umask", [0o000, 0o022], ids=["000", "022"])


@contextmanager
def under(umask: int) -> Iterator[None]:
    """Sets the umask of this process, and sees to it that nobody has changed it meanwhile."""
    before = os.umask(umask)
    try:
        yield
    finally:
        assert os.umask(before) == umask


def open_ones(*folders: Path) -> list[str]:
    """Lists what others than its owner may do something with."""
    found = [path for folder in folders for path in (folder, *folder.rglob("*"))]
    assert len(found) > 1
    modes = [(str(path), stat.S_IMODE(path.stat().st_mode), path.is_dir()) for path in found]
    return [f"{name}: {mode:o}" for name, mode, is_folder in modes if mode != (0o700 if is_folder else 0o600)]


def let_all_in(*folders: Path) -> None:
    """Leaves files as an older version did."""
    for path in [path for folder in folders for path in (folder, *folder.rglob("*"))]:
        path.chmod(0o755 if path.is_dir() else 0o644)


@UMASKS
def test_runs_and_what_nodes_keep_are_for_their_owner_also_if_they_were_open_before(umask: int, tmp_path: Path) -> None:
    whole, (runs, nodes) = replace(OWN_ATOMS, rounds=2, eval_every=2), (tmp_path / "runs", tmp_path / "nodes")
    with under(umask):
        on_flower(replace(whole, rounds=1), tmp_path)
        assert open_ones(runs, nodes) == []
        let_all_in(runs, nodes)
        on_flower(whole, tmp_path, resume=True)
    (state,) = nodes.iterdir()
    assert open_ones(runs / "it", state) == []  # what lies above is the operator's
    assert list(state.rglob("personal.safetensors"))
    on_flower(whole, tmp_path / "whole")
    assert identical(*(all_of(each, whole) for each in (tmp_path, tmp_path / "whole")))


@UMASKS
def test_a_run_in_progress_is_shut_too(umask: int, tmp_path: Path) -> None:
    seen = []

    def look(client: int, message: Message, app: App) -> Message:
        reply = app(message)
        if round_of(message) == 1:
            seen.append(open_ones(tmp_path / "runs", tmp_path / "nodes"))
        return reply

    with under(umask):
        on_flower(replace(OWN_ATOMS, rounds=2), tmp_path, look)
    assert seen == [[]] * 4


def test_an_app_that_fails_leaves_the_umask_of_its_process_as_it_was(tmp_path: Path) -> None:
    task = task_of(OWN_ATOMS)
    grid = OneProcess(client_app(task), OWN_ATOMS, tmp_path / "nodes", lambda client, message, app: 1 / 0)
    config = {"wait": 0.0, "timeout": 0.0, "out": str(tmp_path / "runs"), "name": "it"}
    with under(0o022), in_a_test(), pytest.raises(ZeroDivisionError):
        server_app(task)(grid, Context(1, 1, {}, RecordDict(), config))


def test_what_a_link_leads_to_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "data").mkdir(mode=0o755)
    (tmp_path / "data" / "file").touch(0o644)
    (tmp_path / "run" / "link").symlink_to(tmp_path / "data")
    (tmp_path / "run" / "file").symlink_to(tmp_path / "data" / "file")
    shut(tmp_path / "run")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "data", tmp_path / "data" / "file")] == [
        0o755,
        0o644,
    ]


def test_a_server_that_is_refused_leaves_the_modes_of_files_as_they_are(tmp_path: Path) -> None:
    with under(0o022):
        on_flower(replace(OWN_ATOMS, rounds=1), tmp_path)
        folder = tmp_path / "runs" / "it"
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        before = open_ones(folder)
        with pytest.raises(ValueError, match="already holds a run"):
            on_flower(OWN_ATOMS, tmp_path)
        with locked(folder), pytest.raises(ValueError, match="is being written by"):
            on_flower(OWN_ATOMS, tmp_path, resume=True)
        assert before and open_ones(folder) == before
        on_flower(OWN_ATOMS, tmp_path, resume=True)
        assert open_ones(folder) == []


def test_threads_that_write_privately_at_once_leave_the_umask_as_it_was() -> None:
    with under(0o022):
        first, second = private(), private()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert os.umask(0o077) == 0o077  # the second is still within
        second.__exit__(None, None, None)


def test_what_is_not_there_needs_no_shutting(tmp_path: Path) -> None:
    shut(tmp_path / "nothing")


@UMASKS
def test_processes_that_are_started_write_for_their_owner_only(umask: int, tmp_path: Path) -> None:
    code = "import os, pathlib; pathlib.Path('link.db').touch(); os.mkdir('folder'); print('started')"
    with under(umask):
        process = processes.start([sys.executable, "-c", code], "files/", env={}, cwd=tmp_path, log=tmp_path / "log")
        assert process.wait() == 0
    assert (tmp_path / "log").read_text() == "started\n"
    assert open_ones(*(tmp_path / each for each in ("link.db", "folder", "log"))) == []


@UMASKS
def test_a_deployment_shuts_its_database_and_logs_also_if_they_were_open_before(
    umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Deployment, "_wait", lambda self, name, ready: self.parts[name].process.wait())
    code = "from pathlib import Path; [Path(n).open('a').close() for n in ('link.db', 'link.db-wal')]; print('up')"
    monkeypatch.setattr("fedatoms.flower.deploy.link_command", lambda *words: [sys.executable, "-c", code])
    with under(umask):
        deployment = Deployment(tmp_path / "deployment", [], tls=False, env={})
        files = [tmp_path / "deployment" / name for name in ("link.db", "link.db-wal", "logs")]
        deployment.start_link()
        assert open_ones(*files) == []
        let_all_in(files[0], files[1], tmp_path / "deployment" / "logs" / "link.log")
        deployment.start_link()
    assert deployment.log("link") == ["up"]
    assert open_ones(*files) == []
