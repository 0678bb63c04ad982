"""A SuperNode whose ClientApps are forked from a Python that has torch already, instead of each starting its own.

Flower starts ``flwr-clientapp`` for every message, by its name. So a folder with a stand-in of that name comes first in
the PATH of the SuperNode; the stand-in asks a child of the SuperNode, which imported everything when it began, to fork.
A forked ClientApp is as fresh as a started one: nothing of an app is imported before, and no tensor was made.
"""

import contextlib
import importlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedatoms.flower import stand_in
from fedatoms.flower.commands import program
from fedatoms.flower.patience import OF_CLIENT, eagerly
from fedatoms.flower.watcher import environment

NODE, CLIENT, PLACE = "flower-supernode", "flwr-clientapp", "fork"
IMPORTED = ("flwr.supernode.cli", "torch", "fedatoms.flower.client")  # what each message would wait for
PAUSE = 0.2  # seconds between two looks at whether the SuperNode still runs
HEARING = 5.0  # seconds for a stand-in to say its words
LONGEST = 1 << 16  # bytes of its words


def supernode(words: Sequence[str]) -> int:
    """Turns this process into ``flower-supernode`` with these words, once it has started the child that forks.

    So signals and exit statuses are Flower's own, and the child ends with the SuperNode, whatever ends that.
    """
    if not hasattr(os, "fork"):
        raise OSError(f"processes are forked here, which this system cannot. Use {NODE} instead.")
    node, client = (program(name, {"PATH": _path()}) for name in (NODE, CLIENT))
    folder = Path(tempfile.mkdtemp(prefix="fedatoms-"))  # for its owner only
    try:
        listener = listen(folder / PLACE)
        _write_stand_in(folder / CLIENT, folder / PLACE, client)
        number = listener.fileno()
        child = [sys.executable, "-P", "-m", __name__, str(folder), str(os.getpid()), str(number)]
        subprocess.Popen(child, stdin=subprocess.DEVNULL, env=environment(), pass_fds=[number])
    except BaseException:
        shutil.rmtree(folder)
        raise
    os.execve(node, [node, *words], {**os.environ, "PATH": os.pathsep.join([str(folder), _path()])})


def listen(place: Path) -> socket.socket:
    """Listens at a place for stand-ins; those that come before somebody answers wait."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(place))
    except OSError as error:
        listener.close()
        raise OSError(f"no socket at {place}: {error}. Set TMPDIR to a folder with a shorter path.") from None
    listener.listen()
    return listener


def task_of(listener: socket.socket, parent: int) -> list[str] | None:
    """Forks for each stand-in; returns its words in the fork, and None in this process when its parent has ended."""
    listener.settimeout(PAUSE)
    while os.getppid() == parent:
        _reap()
        try:
            caller, _ = listener.accept()
        except TimeoutError:
            continue
        with caller:
            if (words := _forked(caller)) is not None:
                listener.close()
                return words
    return None


def _fork_until(parent: int, listener: socket.socket, folder: Path) -> None:
    """Imports what ClientApps need and forks them, until the parent has ended; a fork does what a ClientApp does."""
    usual = {each: _inherited(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    _handle(dict.fromkeys(usual, signal.SIG_IGN))  # they are for the SuperNode, which this process outlives by moments
    words = None
    try:
        for name in IMPORTED:
            if os.getppid() == parent:  # else it has refused its words
                importlib.import_module(name)
        words = task_of(listener, parent)
    except Exception:
        traceback.print_exc()
        listener.close()  # Flower starts its own from now on
        while os.getppid() == parent:  # whose PATH begins with the folder: nobody else may make it anew
            time.sleep(PAUSE)
    if words is None:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        _handle(usual)
        sys.argv = [CLIENT, *words]
        with eagerly(OF_CLIENT):
            importlib.import_module(IMPORTED[0]).flwr_clientapp()


def _inherited(number: signal.Signals) -> signal.Handlers:
    """Returns what a started program does at a signal: it is ignored if it was, as by nohup."""
    return signal.SIG_IGN if signal.getsignal(number) == signal.SIG_IGN else signal.SIG_DFL


def _handle(handlers: Mapping[signal.Signals, signal.Handlers]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _forked(caller: socket.socket) -> list[str] | None:
    """Forks a process that writes where the stand-in writes; returns the stand-in's words in it, else None."""
    caller.settimeout(HEARING)
    outputs: list[int] = []
    try:
        said, outputs, _, _ = socket.recv_fds(caller, LONGEST, 2)
        words = [str(word) for word in json.loads(said)]
        child = os.fork()
    except (OSError, TypeError, ValueError):  # without an answer the stand-in helps itself
        _close(outputs)
        return None
    if child:
        _close(outputs)
        with contextlib.suppress(OSError):
            caller.sendall(b".")
        return None
    try:
        for number, output in enumerate(outputs, start=1):
            os.dup2(output, number)
        _close(outputs)
        _draw_anew()
    except BaseException:
        os._exit(1)  # what the other process does at an error is not for its fork
    return words


def _close(descriptors: Sequence[int]) -> None:
    for each in descriptors:
        os.close(each)


def _draw_anew() -> None:
    """Gives a fork draws of its own, as a started process has: Flower's noise for privacy comes from NumPy's state.

    Python's own generator does it by itself.
    """
    if (numpy := sys.modules.get("numpy.random")) is not None:
        numpy.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:  # there is none
        return


def _path() -> str:
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])


def _write_stand_in(path: Path, place: Path, client: str) -> None:
    words = [sys.executable, "-IS", str(Path(stand_in.__file__).resolve()), str(place), client]
    path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    path.chmod(0o700)


if __name__ == "__main__":
    _fork_until(int(sys.argv[2]), socket.socket(fileno=int(sys.argv[3])), Path(sys.argv[1]))
