"""Starts a SuperLink and SuperNodes on this machine's loopback, and ends all that it started."""

import contextlib
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sysconfig
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import fedatoms
from fedatoms.flower.keys import NodeKey, certificates, node_key
from fedatoms.flower.processes import MARK, PAUSE, end, kill, start

Value = str | int | float | bool
EachLine = Callable[[str], None]

LOOPBACK = "127.0.0.1"
# below those that the system gives to outgoing connections: one of these could take the port of a killed SuperLink
PORTS = range(20_000, 32_768)
STARTING = 60.0  # seconds until a new process must answer
ASKING = 60.0  # seconds for a command that only asks
TAIL = 15  # lines of a log in an error
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # it would install torch anew for each run
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "PYTHONUNBUFFERED": "1",
}


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
    nodes: Sequence[Mapping[str, Value]],
    *,
    tls: bool = False,
    env: Mapping[str, str] | None = None,
) -> Iterator["Deployment"]:
    """Starts a SuperLink and one SuperNode for each node config; ends them, and all they started, on the way out.

    With ``tls`` they speak TLS, and the SuperLink lets in only nodes whose keys are registered, which these are.
    """
    deployment = Deployment(folder, nodes, tls=tls, env=env or {})
    try:
        deployment.start_link()
        deployment.register_nodes()
        deployment.start_nodes()
        yield deployment
    finally:
        deployment.end()


class Deployment:
    """A SuperLink and its SuperNodes, each of which can be killed and started again; see ``deployed``."""

    def __init__(
        self, folder: Path, nodes: Sequence[Mapping[str, Value]], *, tls: bool, env: Mapping[str, str]
    ) -> None:
        self.folder = folder.resolve()
        self.logs = self.folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        link_port, *self._node_ports = free_ports(1 + len(nodes))
        self.address = f"{LOOPBACK}:{link_port}"
        self._configs = [config_words(node) for node in nodes]
        self._certificates = certificates(self.folder) if tls else None
        self._keys = [node_key(self.folder, f"node-{i}") if tls else None for i in range(len(nodes))]
        self._env = _environment(self.folder / "flower", env)
        self._token = uuid.uuid4().hex
        self._parts: dict[str, Part] = {}
        self._write_connection()

    def run(
        self,
        app: Path,
        config: Mapping[str, Value] | None = None,
        *,
        timeout: float,
        each_line: EachLine = lambda line: None,
    ) -> list[str]:
        """Runs an app to its end, hands on each line of its log as it comes, and returns all of them.

        ``each_line`` may kill and start parts. A run that is late, or that it breaks off with an error, is stopped.
        """
        command = self._flwr("run", str(app.resolve()), "--stream", "--run-config", config_words(config or {}))
        client = start(command, self._mark("client"), env=self._env, cwd=self.folder)
        late = threading.Timer(timeout, client.kill)
        lines: list[str] = []
        try:
            late.start()
            for raw in client.stdout or ():
                lines.append(_plain(raw))
                each_line(lines[-1])
            if late.finished.is_set():
                raise DeploymentError(_quote(f"the run did not end within {timeout:g} s", lines))
            self._check(client.wait(), lines)
        except Exception:
            self._stop(lines)
            raise
        finally:
            late.cancel()
            _close(client)
        return lines

    def start_link(self) -> None:
        """Starts the SuperLink, at the same address and with the same database as before, and waits for it."""
        self._start("link", self._link_command())
        self._wait("link", self._answers)

    def start_node(self, i: int) -> None:
        """Starts a SuperNode and waits until it is online; without TLS it has a new identity each time."""
        self.start_nodes([i])

    def start_nodes(self, which: Iterable[int] | None = None) -> None:
        """Starts SuperNodes, all unless told which, and waits until they are online."""
        names = {i: f"node-{i}" for i in (range(len(self._configs)) if which is None else which)}
        for i, name in names.items():
            self._start(name, self._node_command(self._node_ports[i], self._configs[i], self._keys[i]))
        for name in names.values():
            self._wait(name, self._is_online)

    def register_nodes(self) -> None:
        """Tells the SuperLink the nodes' keys, if they have any."""
        for key in self._keys:
            if key is not None:
                self.ask("supernode", "register", str(key.public))

    def kill_link(self) -> None:
        """Kills the SuperLink and all it started, the server's side of runs included, as a power cut would."""
        self._kill("link")

    def kill_node(self, i: int) -> None:
        """Kills a SuperNode and all it started, as a power cut would."""
        self._kill(f"node-{i}")

    def kill_server_app(self) -> int:
        """Kills the server's side of runs, but not the SuperLink, and returns how many processes these were."""
        return kill(self._mark("link"), "flwr-serverapp")

    def try_node(self, key: NodeKey | None, *, timeout: float = 20.0) -> list[str]:
        """Starts one more SuperNode with another key or none, and ends it; returns its log, refused or not."""
        name = "node-extra"
        part = self._start(name, self._node_command(free_ports(1)[0], "", key))
        until = time.monotonic() + timeout
        while part.process.poll() is None and not self._is_online(name) and time.monotonic() < until:
            time.sleep(PAUSE)
        end(self._mark(name))
        part.process.wait()
        return self.log(name)

    def online(self) -> int:
        """Returns how many nodes the SuperLink believes to be online; it notices a killed one after a minute."""
        return sum(node["status"] == "online" for node in _table(self.ask("supernode", "list"), "nodes"))

    def ask(self, *words: str) -> str:
        """Runs a ``flwr`` command on this SuperLink, and returns its answer in JSON."""
        command = self._flwr(*words, "--format", "json")
        env = {**self._env, MARK: self._mark("client")}
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=ASKING, env=env, cwd=self.folder, check=False
        )
        if ran.returncode:
            raise DeploymentError(_quote(f"flwr {' '.join(words)} failed", (ran.stdout + ran.stderr).splitlines()))
        return ran.stdout

    def log(self, name: str) -> list[str]:
        """Returns what a part, "link" or "node-0" and so on, has printed since it was last started."""
        part = self._parts[name]
        with part.log.open("rb") as file:
            file.seek(part.begin)
            return [_plain(line) for line in file.read().splitlines()]

    def end(self) -> None:
        """Ends all that was started: nodes first, which say goodbye to the SuperLink."""
        try:
            for name in ("client", "node-", "link"):
                end(f"{self._token}/{name}")
        finally:
            kill(f"{self._token}/")
            for part in self._parts.values():
                part.process.wait()

    def _mark(self, name: str) -> str:
        return f"{self._token}/{name}/"  # the second slash: node-1 is not node-10

    def _start(self, name: str, command: Sequence[str]) -> Part:
        if name in self._parts and self._parts[name].process.poll() is None:
            raise ValueError(f"{name} is running: kill it before it is started again")
        log = self.logs / f"{name}.log"
        log.touch()
        begin = log.stat().st_size
        process = start(command, self._mark(name), env=self._env, cwd=self.folder, log=log)
        self._parts[name] = Part(process, log, begin)
        return self._parts[name]

    def _wait(self, name: str, ready: Callable[[str], bool]) -> None:
        until = time.monotonic() + STARTING
        while not ready(name):
            ended = self._parts[name].process.poll()
            if ended is not None:
                raise DeploymentError(_quote(f"{name} ended with status {ended}", self.log(name)))
            if time.monotonic() > until:
                raise DeploymentError(_quote(f"{name} did not answer within {STARTING:g} s", self.log(name)))
            time.sleep(PAUSE)

    def _answers(self, name: str) -> bool:
        host, port = self.address.split(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            return self._parts[name].process.poll() is None  # or it is not the SuperLink that answers
        return False

    def _is_online(self, name: str) -> bool:
        return any("SuperNode ID:" in line for line in self.log(name))  # the SuperLink gives it one

    def _kill(self, name: str) -> None:
        kill(self._mark(name))
        self._parts[name].process.wait()

    def _check(self, status: int, lines: Sequence[str]) -> None:
        if status:
            raise DeploymentError(_quote(f"flwr run ended with status {status}", lines))
        # the stream of a failed run ends like any other, with status 0
        run = _table(self.ask("list", "--run-id", _run_id(lines)), "runs")[0]
        if run["status"] != "finished:completed":
            raise DeploymentError(_quote(f"the run is {run['status']} ({run['status-details']})", lines))

    def _stop(self, lines: Sequence[str]) -> None:
        with contextlib.suppress(DeploymentError, subprocess.TimeoutExpired):  # it has ended, or the SuperLink is down
            self.ask("stop", _run_id(lines))

    def _write_connection(self) -> None:
        """Makes this SuperLink the one that ``flwr`` talks to."""
        home = Path(self._env["FLWR_HOME"])
        home.mkdir(exist_ok=True)
        trust = (
            "insecure = true"
            if self._certificates is None
            else f"root-certificates = {_toml(str(self._certificates.ca))}"
        )
        connection = f'[superlink]\ndefault = "link"\n\n[superlink.link]\naddress = "{self.address}"\n{trust}\n'
        (home / "config.toml").write_text(connection)

    def _flwr(self, *words: str) -> list[str]:
        return [_program("flwr", self._env), *words]

    def _link_command(self) -> list[str]:
        host, port = self.address.split(":")
        command = [_program("flower-superlink", self._env), "--host", host, "--port", port]
        command += ["--database", str(self.folder / "link.db"), "--disable-runtime-dependency-installation"]
        if self._certificates is None:
            return [*command, "--insecure"]
        ca, certificate, key = map(str, self._certificates)
        command += ["--ssl-ca-certfile", ca, "--ssl-certfile", certificate, "--ssl-keyfile", key]
        return [*command, "--enable-supernode-auth"]

    def _node_command(self, port: int, config: str, key: NodeKey | None) -> list[str]:
        command = [_program("flower-supernode", self._env), "--superlink", self.address, "--port", str(port)]
        command += ["--node-config", config] if config else []
        command += ["--auth-supernode-private-key", str(key.private)] if key else []
        return [
            *command,
            *(["--root-certificates", str(self._certificates.ca)] if self._certificates else ["--insecure"]),
        ]


def config_words(config: Mapping[str, Value]) -> str:
    """Writes a config as ``--node-config`` and ``--run-config`` want it.

    >>> print(config_words({"partition-id": 0, "fraction": 0.5, "tls": True, "title": "two words"}))
    partition-id=0 fraction=0.5 tls=true title="two words"
    """
    for name in config:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise ValueError(f"the name {name!r} is not of letters, digits, - and _, as names in a Flower config are")
    return " ".join(f"{name}={_toml(value)}" for name, value in config.items())


def free_ports(count: int) -> list[int]:
    """Returns different ports of the loopback on which nobody listens now."""
    with contextlib.ExitStack() as bound:  # all at once, so that none is found twice
        ports: list[int] = []
        for port in random.SystemRandom().sample(PORTS, len(PORTS)):
            if len(ports) == count:
                return ports
            with contextlib.suppress(OSError):
                bound.enter_context(socket.socket()).bind((LOOPBACK, port))
                ports.append(port)
    raise OSError(f"fewer than {count} ports from {PORTS.start} to {PORTS.stop - 1} are free. End what holds them.")


def _toml(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return repr(value)
    # Flower cuts words at the next quote, escaped or not; TOML wants DEL escaped, JSON does not
    inner = json.dumps(value, ensure_ascii=False)[1:-1].replace('\\"', "\\u0022").replace("\x7f", "\\u007f")
    return f'"{inner}"'


def _environment(home: Path, extra: Mapping[str, str]) -> dict[str, str]:
    given = {**os.environ, **extra}
    scripts = sysconfig.get_path("scripts")  # Flower finds its helpers by PATH
    near = ",".join([LOOPBACK, "localhost", *filter(None, [given.get("no_proxy") or given.get("NO_PROXY")])])
    return {
        **os.environ,
        **QUIET,
        **extra,
        "FLWR_HOME": str(home),
        "PATH": os.pathsep.join([scripts, given.get("PATH", os.defpath)]),
        "PYTHONPATH": os.pathsep.join(_import_paths(given.get("PYTHONPATH", ""))),
        "NO_PROXY": near,
        "no_proxy": near,
    }


def _import_paths(given: str) -> list[str]:
    """Returns where apps look for modules first: they run in other folders, but import this very package."""
    ours = Path(fedatoms.__file__).parents[1]
    installed = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    paths = [*([] if ours in installed else [ours]), *(Path(path) for path in given.split(os.pathsep) if path)]
    return [str(path.resolve()) for path in paths]


def _program(name: str, env: Mapping[str, str]) -> str:
    found = shutil.which(name, path=env["PATH"])
    if found is None:
        raise FileNotFoundError(f"{name} is not installed. Type: pip install 'fedatoms[flower]'")
    return found


def _close(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _run_id(lines: Sequence[str]) -> str:
    found = [match[1] for line in lines if (match := re.search(r"Successfully started run (\d+)", line))]
    if not found:
        raise DeploymentError(_quote("the run did not start", lines))
    return found[0]


def _table(answer: str, name: str) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = json.loads(answer)[name]
    return rows


def _plain(line: bytes) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line.decode(errors="replace")).rstrip()


def _quote(problem: str, lines: Sequence[str]) -> str:
    return "\n".join([f"{problem}; its last lines:", *(f"  {line}" for line in lines[-TAIL:] or ["nothing"])])
