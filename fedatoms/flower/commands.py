"""Flower's commands: their arguments, ports, certificates and environment, so that they stay on this machine."""

import contextlib
import json
import os
import random
import re
import shutil
import socket
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import fedatoms
from fedatoms.core.extras import how_to_add
from fedatoms.flower.keys import Certificates, NodeKey

Value = str | int | float | bool
Config = Mapping[str, Value]

LOOPBACK = "127.0.0.1"
# below the ephemeral ports: an outgoing connection could take the port of a killed SuperLink
PORTS = range(20_000, 32_768)
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # it would install torch anew for each run
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "",  # each message starts a Python: it should not compile this package anew
}


def link_command(address: str, database: Path, server: Certificates | None) -> list[str]:
    """Returns the command of a SuperLink with its ``database``; with certificates, its nodes need registered keys."""
    host, port = address.split(":")
    command = ["flower-superlink", "--host", host, "--port", port, "--database", str(database)]
    command += ["--disable-runtime-dependency-installation"]
    if server is None:
        return [*command, "--insecure"]
    command += ["--ssl-ca-certfile", str(server.ca), "--ssl-certfile", str(server.certificate)]
    return [*command, "--ssl-keyfile", str(server.key), "--enable-supernode-auth"]


def node_command(
    address: str, port: int, config: Config, key: NodeKey | None, ca: Path | None, *, warm: bool = False
) -> list[str]:
    """Returns the command of a SuperNode of the SuperLink at ``address``; ``port`` is for its own subprocesses.

    A ``warm`` one keeps torch loaded.
    """
    command = ["fedatoms", "flower", "supernode"] if warm else ["flower-supernode"]
    command += ["--superlink", address, "--port", str(port)]
    command += ["--node-config", config_words(config)] if config else []
    command += ["--auth-supernode-private-key", str(key.private)] if key else []
    return [*command, "--root-certificates", str(ca)] if ca else [*command, "--insecure"]


def connection(address: str, ca: Path | None) -> str:
    """Returns the text of the file that tells ``flwr`` its SuperLink."""
    trust = f"root-certificates = {_toml(str(ca))}" if ca else "insecure = true"
    return f'[superlink]\ndefault = "link"\n\n[superlink.link]\naddress = "{address}"\n{trust}\n'


def config_words(config: Config) -> str:
    """Formats a config for ``--node-config`` and ``--run-config``.

    >>> print(config_words({"partition-id": 0, "fraction": 0.5, "tls": True, "title": "two words"}))
    partition-id=0 fraction=0.5 tls=true title="two words"
    """
    for name in config:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise ValueError(f"the name {name!r} is not of letters, digits, - and _, as names in a Flower config are")
    return " ".join(f"{name}={_toml(value)}" for name, value in config.items())


def free_ports(count: int) -> list[int]:
    """Returns distinct free ports of the loopback interface."""
    with contextlib.ExitStack() as bound:  # all at once, so that none is found twice
        ports: list[int] = []
        for port in random.SystemRandom().sample(PORTS, len(PORTS)):
            if len(ports) == count:
                return ports
            with contextlib.suppress(OSError):
                bound.enter_context(socket.socket()).bind((LOOPBACK, port))
                ports.append(port)
    raise OSError(f"fewer than {count} ports from {PORTS.start} to {PORTS.stop - 1} are free. End what holds them.")


def environment(home: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of all processes: nothing is sent home, installed or looked up elsewhere."""
    given = {**os.environ, **extra}
    scripts = sysconfig.get_path("scripts")  # Flower finds its programs by PATH
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


def program(name: str, env: Mapping[str, str]) -> str:
    """Finds a program of Flower, next to this Python first."""
    found = shutil.which(name, path=env["PATH"])
    if found is None:
        raise FileNotFoundError(f"{name} is not installed. Type: {how_to_add('flower')}")
    return found


def _toml(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return repr(value)
    # Flower ends a string at the next quote, escaped or not; TOML wants DEL escaped, JSON does not
    inner = json.dumps(value, ensure_ascii=False)[1:-1].replace('\\"', "\\u0022").replace("\x7f", "\\u007f")
    return f'"{inner}"'


def _import_paths(given: str) -> list[str]:
    """Returns the first import paths of apps: they run in other folders, but import this very package."""
    ours = Path(fedatoms.__file__).parents[1]
    installed = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    paths = [*([] if ours in installed else [ours]), *(Path(path) for path in given.split(os.pathsep) if path)]
    return [str(path.resolve()) for path in paths]
