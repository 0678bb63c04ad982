"""fedatoms flower new | keys | supernode | demo: a real federation; the roster has its own file."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from tyro.conf import FlagCreatePairsOff, arg

from fedatoms.cli.console import counting, line, show_table, suggest, terminal
from fedatoms.cli.parsing import Job, Options
from fedatoms.core.extras import need
from fedatoms.core.lookup import as_word, counted
from fedatoms.core.options import check_range

APP = arg(metavar="DIR", help="A new folder for the app.")
KEYS = arg(metavar="DIR", help="A new folder for the files.")
HOST = arg(metavar="NAME", help="Name under which nodes reach the server.")
ADDRESS = arg(metavar="IP", help="Address of the server.")
KEYED = arg(metavar="N", help="Nodes that get a key.")
NODES = arg(metavar="N", help="SuperNodes, each a client.")
ROUNDS = arg(metavar="N", help="Rounds.")
TLS = arg(help="Use TLS, and admit only nodes whose keys are registered.", help_behavior_hint="")


def new_options(words: Sequence[str]) -> Options:
    """Returns the options of ``flower new``."""

    def new(folder: Annotated[Path, APP], /) -> Job:
        """Writes a Flower app to fill in with your network and data; it learns the built-in digits as it is."""
        return lambda: _new(folder)

    return new


def keys_options(words: Sequence[str]) -> Options:
    """Returns the options of ``flower keys``."""

    def keys(
        folder: Annotated[Path, KEYS],
        /,
        *,
        host: Annotated[str, HOST] = "localhost",
        address: Annotated[str, ADDRESS] = "127.0.0.1",
        nodes: Annotated[int, KEYED] = 3,
    ) -> Job:
        """Makes certificates for a server, and keys for its nodes.

        Files whose names do not end in .crt, .pem or .pub are secrets; no file is ever overwritten.
        """
        return lambda: _keys(folder, host, address, nodes)

    return keys


def supernode_options(words: Sequence[str]) -> Options:
    """Returns the options of ``flower supernode``, which are Flower's."""

    def supernode() -> Job:
        """Starts flower-supernode with the words that follow, which are Flower's (`flower-supernode --help`).

        Messages to it need not wait until Python has imported torch: it is kept loaded, and forked for each of them.
        """
        return lambda: _supernode(words)

    return supernode


def demo_options(words: Sequence[str]) -> Options:
    """Returns the options of ``flower demo``."""

    def demo(
        *,
        nodes: Annotated[int, NODES] = 3,
        rounds: Annotated[int, ROUNDS] = 3,
        tls: Annotated[bool, TLS, FlagCreatePairsOff] = False,
    ) -> Job:
        """Runs a whole federation on this machine: a SuperLink, SuperNodes and some rounds. Nothing stays behind."""
        return lambda: _demo(nodes, rounds, tls=tls)

    return demo


def _new(folder: Path) -> int:
    check_flower()
    from fedatoms.flower.new_app import new

    console = terminal()
    for path in new(folder):
        line(console, str(path))
    line(console, f"\nYour network and data go into {folder / 'federation' / 'task.py'}.")
    suggest(console, (f"flwr run {as_word(folder)} local --stream", "runs it here; more in docs/federation.md"))
    return 0


def _keys(folder: Path, host: str, address: str, nodes: int) -> int:
    check_range("nodes", nodes, command="flower")
    check_flower()
    from fedatoms.flower.keys import certificates, check_reached, node_key

    check_reached(host, address)
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty. Use a new folder: keys are never overwritten.")
    folder.mkdir(parents=True, exist_ok=True)
    files = [*certificates(folder, [host], [address])]
    files += [file for number in range(nodes) for file in node_key(folder, f"node-{number}")]
    console = terminal()
    for file in files:
        line(console, str(file))
    suggest(console, ("fedatoms flower new DIR", "the app; docs/federation.md starts it with these files"))
    return 0


def _supernode(words: Sequence[str]) -> int:
    check_flower()
    from fedatoms.flower.warm import supernode

    return supernode(words)


def _demo(nodes: int, rounds: int, *, tls: bool) -> int:
    check_range("nodes", nodes, command="flower")
    check_range("rounds", rounds)
    check_flower()
    from fedatoms.cli.result_tables import tables
    from fedatoms.flower.demonstration import demo
    from fedatoms.flower.deploy import DeploymentError

    console = terminal()
    try:
        with counting(console, "federation", rounds) as done:
            lines = demo(nodes, rounds, tls=tls, say=lambda text: line(console, text), done=done)
    except DeploymentError as error:  # with the end of the log: one line would not help
        print(f"fedatoms: {error}", file=sys.stderr)
        return 2
    for table in tables(lines, f"{counted(nodes, 'node')}, {counted(rounds, 'round')}"):
        show_table(console, table)
    suggest(console, ("fedatoms flower new DIR", "an app to fill in with your network and data"))
    return 0


def check_flower() -> None:
    """Refuses a command that needs Flower where it is not installed."""
    need("a federation", "flower", "flwr")
