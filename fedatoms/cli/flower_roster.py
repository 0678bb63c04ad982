"""fedatoms flower roster: whose key each client of a federation has, and how many samples."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from tyro.conf import arg

from fedatoms.cli.console import line, suggest, terminal
from fedatoms.cli.flower import check_flower
from fedatoms.cli.parsing import Job, Options
from fedatoms.core.lookup import as_word

if TYPE_CHECKING:
    from fedatoms.flower.roster import Entry

FILE = arg(metavar="FILE", help="The roster; a new file is made.")
CLIENT = arg(metavar="N", help="The client to add or change: the partition-id of its node, from 0.")
KEY = arg(metavar="PUBLIC-KEY", help="The node's public key, such as keys/node-0.pub.")
SAMPLES = arg(metavar="COUNT", help="The most samples that its node may train on.")
REMOVE = arg(metavar="N", help="The client to take off.")
TESTS = arg(metavar="COUNT", help="The most test images that its node may have.")


class Added(NamedTuple):
    """A client to add or change, if any."""

    client: int | None
    key: Path | None
    samples: int | None
    tests: int


def options(words: Sequence[str]) -> Options:
    """Returns the options of ``flower roster``."""

    def roster(
        file: Annotated[Path, FILE],
        /,
        *,
        client: Annotated[int | None, CLIENT] = None,
        key: Annotated[Path | None, KEY] = None,
        samples: Annotated[int | None, SAMPLES] = None,
        tests: Annotated[int, TESTS] = 0,
        remove: Annotated[int | None, REMOVE] = None,
    ) -> Job:
        """Says whose key each client of a federation has, and how many samples, in a file that the operator keeps.

        Without options it lists the file. With roster="FILE" in the run config, the server turns away every node that
        is not in it, or has another key or more samples.
        """
        return lambda: _roster(file, remove, Added(client, key, samples, tests))

    return roster


def _roster(file: Path, gone: int | None, added: Added) -> int:
    check_flower()
    entries = _changed(file, gone, added)
    console = terminal()
    for number, entry in entries.items():
        line(console, f"client {number}: key {entry.key[:16]}, {entry.samples} samples, {entry.tests} test images")
    config = as_word(f'roster="{file.resolve()}"')
    suggest(console, (f"flwr run DIR link --run-config {config}", "lets in nobody else"))
    return 0


def _changed(file: Path, gone: int | None, added: Added) -> "dict[int, Entry]":
    from fedatoms.flower.roster import Entry, add, checksum_of, load_roster, remove

    if gone is not None:
        return remove(file, gone)
    client, key, samples, tests = added
    if client is not None and key is not None and samples is not None:
        return add(file, client, Entry(checksum_of(key), samples, tests))
    if any(each is not None for each in (client, key, samples)):
        raise ValueError("a client of a roster needs --client, --key and --samples. Give all, or none to list it.")
    return load_roster(str(file)) or {}
