"""The roster of a federation: whose key each client has, and how many samples; a file that the operator keeps.

Without a roster the first key that claims a client owns it, and a node's number of samples is believed. With one,
nobody else takes part, and nobody weighs more than the operator was told. No torch.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol, TypedDict

from fedatoms.core.border import read_bytes
from fedatoms.core.files import replace_file
from fedatoms.core.lookup import some
from fedatoms.core.options import check_range
from fedatoms.core.records import fit, read_record

FORM = "Make it with fedatoms flower roster."


class Entry(NamedTuple):
    """A client: the SHA-256 of its node's public key, and the most samples and test images that it may have."""

    key: str
    samples: int
    tests: int


class Claim(Protocol):
    """What a node says of itself when it joins."""

    @property
    def client(self) -> int: ...

    @property
    def samples(self) -> int: ...

    @property
    def tests(self) -> int: ...


def why_not_on(roster: Mapping[int, Entry], claim: Claim, key: str | None) -> str:
    """Says why a node is not the client of the roster that it claims to be; empty if it is.

    >>> from fedatoms.flower.wire import NodeInfo
    >>> why_not_on({0: Entry("0a1b", 50, 10)}, NodeInfo(0, "", 60, 10), "0a1b")
    'says that it has 60 samples, but 50 on the roster. If it is right, change the roster.'
    """
    entry = roster.get(claim.client)
    if entry is None:
        return f"says that it is client {claim.client}, who is not on the roster. Add it with fedatoms flower roster."
    if key != entry.key:
        return (
            f"says that it is client {claim.client}, but has the key {(key or 'none')[:16]} and the roster "
            f"{entry.key[:16]}. If its machine was replaced, change the roster with fedatoms flower roster."
        )
    for count, most, what in ((claim.samples, entry.samples, "samples"), (claim.tests, entry.tests, "test images")):
        if count > most:
            return f"says that it has {count} {what}, but {most} on the roster. If it is right, change the roster."
    return ""


def load_roster(path: str, clients: int | None = None) -> dict[int, Entry] | None:
    """Reads a roster; None if there is no path. Every client of it must be one of the experiment's."""
    if not path:
        return None
    if not Path(path).exists():
        raise ValueError(f"roster={path!r}: there is no such file. {FORM}")
    entries = _read(Path(path))
    if clients is not None and (beyond := [client for client in entries if client >= clients]):
        raise ValueError(
            f"{path} has client {min(beyond)}, but the experiment has {clients}, from 0. Change one of them."
        )
    return entries


def add(path: Path, client: int, entry: Entry) -> dict[int, Entry]:
    """Writes a client into a roster, in the place of an entry that it has; returns all entries.

    One key for two clients is refused: a node is one client.
    """
    for option, number in (("client", client), ("samples", entry.samples), ("tests", entry.tests)):
        check_range(option, number, command="flower")
    before = _read(path) if path.exists() else {}
    if twice := [other for other, each in before.items() if each.key == entry.key and other != client]:
        raise ValueError(f"client {twice[0]} of {path} has this key already. Give each node a key of its own.")
    return _write(path, {**before, client: entry})


def remove(path: Path, client: int) -> dict[int, Entry]:
    """Takes a client off a roster; returns the other entries."""
    before = load_roster(str(path)) or {}
    if client not in before:
        raise ValueError(f"client {client} is not on {path}. Clients on it: {some(map(str, before))}.")
    return _write(path, {other: entry for other, entry in before.items() if other != client})


def checksum_of(public: Path) -> str:
    """Returns the checksum of a public key in a file such as ``node-0.pub``, in the form in which Flower has it."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    try:
        key = serialization.load_ssh_public_key(read_bytes(public))
    except FileNotFoundError:
        raise ValueError(f"{public}: there is no such file. Use the node's .pub file.") from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(f"{public} is no public key ({error}). Use the node's .pub file.") from None
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_bytes(serialization.Encoding.PEM, form)).hexdigest()


def _write(path: Path, entries: Mapping[int, Entry]) -> dict[int, Entry]:
    ordered = dict(sorted(entries.items()))
    replace_file(path, (json.dumps({str(k): each._asdict() for k, each in ordered.items()}, indent=2) + "\n").encode())
    return ordered


class _Line(TypedDict):
    key: str
    samples: int
    tests: int


def _read(path: Path) -> dict[int, Entry]:
    lines = fit(read_record(path), dict[str, _Line], str(path))
    if odd := [client for client in lines if not client.isdecimal()]:
        raise ValueError(f"{path}: {odd[0]!r} is not the number of a client. {FORM}")
    return {int(client): Entry(**line) for client, line in lines.items()}
