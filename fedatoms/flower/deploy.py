"""Starts a SuperLink and SuperNodes on this machine's loopback, and ends all that it started."""

import contextlib
import json
import re
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedatoms.flower.commands import (
    LOOPBACK,
    Config,
    config_words,
    connection,
    environment,
    free_ports,
    link_command,
    node_command,
    program,
)
from fedatoms.flower.exit_codes import explain
from fedatoms.flower.keys import NodeKey, certificates, node_key
from fedatoms.flower.private_files import FILE, FOLDER, private, shut
from fedatoms.flower.processes import PAUSE, end, kill, start
from fedatoms.flower.watcher import watched

EachLine = Callable[[str], None]

STARTING = 60.0  # seconds until a new process must answer
ASKING = 60.0  # seconds for a command that only queries
TRIES = 3  # starts of a SuperNode, which gives up when its first handshake fails, as on a busy machine it may
FAILED_HANDSHAKE = "SSL/TLS handshake error"
TAIL = 15  # lines of a log in an error


class DeploymentError(RuntimeError):
    """A process of the deployment failed, or a run on it; the message ends with the last lines of its log."""


class Part(NamedTuple):
    """A process of the deployment, and where in its log this start of it begins."""

    process: subprocess.Popen[bytes]
    log: Path
    begin: int


@contextlib.contextmanager
def deployed(
    folder: Path,
    nodes: Sequence[Config],
    *,
    tls: bool = False,
    warm: bool = False,
    env: Mapping[str, str] | None = None,
    token: str = "",
) -> Iterator["Deployment"]:
    """Starts a SuperLink and one SuperNode for each node config; on exit ends them and all that they started.

    With ``tls`` the SuperLink accepts only nodes whose keys are registered, as those of these nodes are. ``warm`` nodes
    keep torch loaded. All of it ends too if this process is killed; whoever gives a ``token``, with which marks begin,
    sees to that.
    """
    mine = token or new_token()
    deployment = Deployment(folder, nodes, tls=tls, warm=warm, env=env or {}, token=mine)
    with contextlib.nullcontext() if token else watched(mine):
        try:
            deployment.start_link()
            deployment.register_nodes()
            deployment.start_nodes()
            yield deployment
        finally:
            deployment.end()


def new_token() -> str:
    """Returns the beginning of marks that no other process has."""
    return uuid.uuid4().hex


class Deployment:
    """A SuperLink and its SuperNodes, each of which can be started again; see ``deployed``."""

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[Config],
        *,
        tls: bool,
        env: Mapping[str, str],
        warm: bool = False,
        token: str = "",
    ) -> None:
        self.folder = folder.resolve()
        self.logs = self.folder / "logs"
        if self.logs.exists():
            raise FileExistsError(f"{self.folder} has a deployment in it already. Use a new folder.")
        with private():
            self.logs.mkdir(parents=True)
        self.address = f"{LOOPBACK}:{free_ports(1)[0]}"
        self._configs, self._warm = nodes, warm
        self._server = certificates(self.folder) if tls else None
        self._keys = [node_key(self.folder, f"node-{i}") if tls else None for i in range(len(nodes))]
        self.ca = self._server and self._server.ca
        home = self.folder / "flower"
        home.mkdir(mode=FOLDER)
        (home / "config.toml").write_text(connection(self.address, self.ca))
        self._env = environment(home, env)
        self._token = token or new_token()
        self.parts: dict[str, Part] = {}

    def run(
        self,
        app: Path,
        config: Config | None = None,
        *,
        timeout: float,
        each_line: EachLine = lambda line: None,
    ) -> list[str]:
        """Runs an app to its end, passes on each line of its log as it comes, and returns all of them.

        ``each_line`` may kill and start parts; if it raises an error, or the timeout is over, the run is stopped.
        """
        words = ["flwr", "run", str(app.resolve()), "--stream", "--run-config", config_words(config or {})]
        client = self._launch("client", words)
        late = threading.Timer(timeout, client.kill)
        lines: list[str] = []
        try:
            late.start()
            for raw in client.stdout or ():
                lines.append(_plain(raw))
                each_line(lines[-1])
            self._check(client.wait(), lines, timeout)
        except Exception:
            self._stop(lines)
            raise
        finally:
            late.cancel()
            _close(client)
        return lines

    def start_link(self) -> None:
        """Starts the SuperLink, at the same address and with the same database as before, and waits for it."""
        database = self.folder / "link.db"
        for file in self.folder.glob(f"{database.name}*"):  # SQLite's journals too
            shut(file)
        self.start("link", link_command(self.address, database, self._server))
        self._wait("link", self._answers)

    def start_nodes(self, which: Iterable[int] | None = None) -> None:
        """Starts SuperNodes, all unless told which, and waits until they are online."""
        chosen = list(range(len(self._configs)) if which is None else which)
        for i in chosen:
            self._start_node(i)
        for i in chosen:
            self._wait_for_node(i)

    def register_nodes(self) -> None:
        """Tells the SuperLink the nodes' keys, if they have any."""
        for key in self._keys:
            if key is not None:
                self.ask("supernode", "register", str(key.public))

    def try_node(self, key: NodeKey | None, *, timeout: float = 20.0) -> list[str]:
        """Starts one more SuperNode with another key or none, and ends it; returns its log, refused or not."""
        name = "node-extra"
        part = self.start(name, node_command(self.address, free_ports(1)[0], {}, key, self.ca))
        until = time.monotonic() + timeout
        while part.process.poll() is None and not self.is_online(name) and time.monotonic() < until:
            time.sleep(PAUSE)
        end(self.mark(name))
        part.process.wait()
        return self.log(name)

    def online(self) -> int:
        """Returns how many nodes the SuperLink believes to be online; it notices a killed one after a minute."""
        return sum(node["status"] == "online" for node in _table(self.ask("supernode", "list"), "nodes"))

    def ask(self, *words: str) -> str:
        """Runs a ``flwr`` command on this SuperLink, and returns its answer in JSON."""
        client = self._launch("client", ["flwr", *words, "--format", "json"])
        try:
            output, _ = client.communicate(timeout=ASKING)
            lines = [_plain(line) for line in output.splitlines()]
            if client.returncode:
                raise DeploymentError(quote(f"flwr {' '.join(words)} ended with status {client.returncode}", lines))
        except subprocess.TimeoutExpired:
            raise DeploymentError(f"flwr {' '.join(words)} did not answer within {ASKING:g} s") from None
        finally:
            _close(client)
        return "\n".join(lines)

    def log(self, name: str) -> list[str]:
        """Returns what a part, "link" or "node-0" and so on, has printed since it was last started."""
        part = self.parts[name]
        with part.log.open("rb") as file:
            file.seek(part.begin)
            return [_plain(line) for line in file.read().splitlines()]

    def end(self) -> None:
        """Ends all that was started: nodes first, so that they can unregister from the SuperLink."""
        try:
            for name in ("client", "node-", "link"):
                end(f"{self._token}/{name}")
        finally:
            kill(f"{self._token}/")
            for part in self.parts.values():
                part.process.wait()

    def mark(self, name: str) -> str:
        """Returns the mark of a part, by which its processes are found."""
        return f"{self._token}/{name}/"  # the second slash: node-1 is not node-10

    def start(self, name: str, command: Sequence[str]) -> Part:
        """Starts a part by its command, with a log of its own."""
        if name in self.parts and self.parts[name].process.poll() is None:
            raise ValueError(f"{name} is running: kill it before it is started again")
        log = self.logs / f"{name}.log"
        log.touch(FILE)
        shut(log)
        begin = log.stat().st_size
        self.parts[name] = Part(self._launch(name, command, log), log, begin)
        return self.parts[name]

    def _launch(self, name: str, command: Sequence[str], log: Path | None = None) -> subprocess.Popen[bytes]:
        found = [program(command[0], self._env), *command[1:]]
        return start(found, self.mark(name), env=self._env, cwd=self.folder, log=log)

    def _start_node(self, i: int) -> None:
        key, warm = self._keys[i], self._warm
        command = node_command(self.address, free_ports(1)[0], self._configs[i], key, self.ca, warm=warm)
        self.start(f"node-{i}", command)

    def _wait_for_node(self, i: int) -> None:
        name = f"node-{i}"
        for last in (False,) * (TRIES - 1) + (True,):
            try:
                return self._wait(name, self.is_online)
            except DeploymentError:
                if last or not any(FAILED_HANDSHAKE in line for line in self.log(name)):
                    raise
            self._start_node(i)

    def _wait(self, name: str, ready: Callable[[str], bool]) -> None:
        until = time.monotonic() + STARTING
        while not ready(name):
            ended = self.parts[name].process.poll()
            if ended is not None:
                raise DeploymentError(quote(f"{name} ended with status {ended}", self.log(name)))
            if time.monotonic() > until:
                raise DeploymentError(quote(f"{name} did not answer within {STARTING:g} s", self.log(name)))
            time.sleep(PAUSE)

    def _answers(self, name: str) -> bool:
        host, port = self.address.split(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            return any("Uvicorn running" in line for line in self.log(name))  # or another process answers
        return False

    def is_online(self, name: str) -> bool:
        """Says whether the SuperLink has accepted a SuperNode."""
        return any("SuperNode ID:" in line for line in self.log(name))  # the SuperLink gives it one

    def _check(self, status: int, lines: Sequence[str], timeout: float) -> None:
        if status == -signal.SIGKILL:
            raise DeploymentError(quote(f"the run did not end within {timeout:g} s", lines))
        if status:
            raise DeploymentError(quote(f"flwr run ended with status {status}", lines))
        # the stream of a failed run ends like any other, with status 0
        run = _table(self.ask("list", "--run-id", _run_id(lines)), "runs")[0]
        if run["status"] != "finished:completed":
            raise DeploymentError(quote(f"the run is {run['status']} ({run['status-details']})", lines))

    def _stop(self, lines: Sequence[str]) -> None:
        with contextlib.suppress(DeploymentError):  # it has ended, or the SuperLink is down
            self.ask("stop", _run_id(lines))


def quote(problem: str, lines: Sequence[str]) -> str:
    """Writes an error with the end of a log below it, and the causes of the codes in that."""
    end = lines[-TAIL:] or ["nothing"]
    return "\n".join([f"{problem}; its last lines:", *(f"  {line}" for line in end), *explain(end)])


def _close(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _run_id(lines: Sequence[str]) -> str:
    found = [match[1] for line in lines if (match := re.search(r"Successfully started run (\d+)", line))]
    if not found:
        raise DeploymentError(quote("the run did not start", lines))
    return found[0]


def _table(answer: str, name: str) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = json.loads(answer)[name]
    return rows


def _plain(line: bytes) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line.decode(errors="replace")).rstrip()
