"""fedatoms flower: a real federation."""

import dataclasses
import importlib.util
import sys
from pathlib import Path

from fedatoms.cli.args import parse
from fedatoms.cli.console import terminal
from fedatoms.core.lookup import unknown


def command(words: list[str]) -> int:
    """Makes an app or keys, or runs a federation on this machine."""
    commands = {"new": _flower_new, "keys": _flower_keys, "demo": _flower_demo}
    if not words or words[0] in ("-h", "--help") or (words[:1] == ["new"] and {"-h", "--help"} & set(words)):
        print("fedatoms flower new DIR                                   a Flower app to fill in, which works as it is")
        print("fedatoms flower keys DIR [--host NAME] [--nodes N]        certificates for a server, keys for its nodes")
        print("fedatoms flower demo [--nodes N] [--rounds N] [--tls]     a SuperLink and SuperNodes on this machine\n")
        print("See docs/federation.md for the way from there to machines that do not trust each other.")
        return 0
    if words[0] not in commands:
        raise unknown(words[0], commands, "flower command")
    if importlib.util.find_spec("flwr") is None:
        raise ValueError('Flower is not installed. Use pip install "fedatoms[flower]".')
    return commands[words[0]](words[1:])


@dataclasses.dataclass(frozen=True)
class FlowerKeys:
    """Files for a federation with TLS; those without .crt, .pem or .pub are secrets."""

    host: str = "localhost"
    """Name under which nodes reach the server."""
    address: str = "127.0.0.1"
    """Address of the server."""
    nodes: int = 3
    """Nodes that get a key."""


@dataclasses.dataclass(frozen=True)
class FlowerDemo:
    """A federation on this machine's loopback, run and ended."""

    nodes: int = 3
    """SuperNodes."""
    rounds: int = 3
    """Rounds."""
    tls: bool = False
    """TLS, and only nodes whose keys are registered."""


def _flower_new(words: list[str]) -> int:
    if len(words) != 1 or words[0].startswith("-"):
        raise ValueError("name one new folder: fedatoms flower new DIR")
    from fedatoms.flower.new import new

    console = terminal()
    for path in new(Path(words[0])):
        console.print(str(path), highlight=False)
    console.print(f"\nYour network and data go into {Path(words[0]) / 'federation' / 'task.py'}.", highlight=False)
    return 0


def _flower_keys(words: list[str]) -> int:
    if "-h" not in words and "--help" not in words and (not words or words[0].startswith("-")):
        raise ValueError("name a new folder: fedatoms flower keys DIR [--host NAME] [--nodes N]")
    folder = Path(words[0])
    settings = parse("flower keys", words[1:] if not words[0].startswith("-") else words, FlowerKeys())
    from fedatoms.flower.keys import certificates, node_key

    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty. Use a new folder: keys are never overwritten.")
    folder.mkdir(parents=True, exist_ok=True)
    files = [*certificates(folder, [settings.host], [settings.address])]
    files += [file for i in range(settings.nodes) for file in node_key(folder, f"node-{i}")]
    for file in files:
        terminal().print(str(file), highlight=False)
    return 0


def _flower_demo(words: list[str]) -> int:
    settings = parse("flower demo", words, FlowerDemo())
    from fedatoms.cli.tables import counting, tables
    from fedatoms.flower.demo import demo
    from fedatoms.flower.deploy import DeploymentError

    console = terminal()
    try:
        with counting(console, "federation", settings.rounds) as done:
            lines = demo(settings.nodes, settings.rounds, tls=settings.tls, say=console.print, done=done)
    except DeploymentError as error:  # with the end of the log: one line would not help
        print(f"fedatoms: {error}", file=sys.stderr)
        return 2
    for table in tables(lines, f"{settings.nodes} nodes, {settings.rounds} rounds"):
        console.print(table)
    return 0
