"""Ways to damage a file: bits, lines, fields, and things that are no files."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path, random.Random, Path], None]  # the file, draws, and the same file of another run

TERABYTE = 1 << 40
WHOLE = {  # instead of a JSON file, or of a line of one
    "{}": "{}",
    "[]": "[]",
    "null": "null",
    "NaN": "NaN",
    "1e999": "1e999",
    "text": '"text"',
    "true": "true",
    "a hundred thousand [": "[" * 100_000,
    "a hundred thousand {": '{"a":' * 100_000,
    "ten thousand digits": "1" * 10_000,
    "half a surrogate": '"\\ud800"',
    "not UTF-8": "\udcff\udcfe",
    "zeros": "\0" * 100,
    "spaces": " " * 100,
}
VALUES: tuple[object, ...] = (
    None, True, False, 0, -1, 1, 3, 10**6, 2**63, 10**30, 0.5, -0.5, float("nan"), float("inf"), 1e308, "", "x",
    "../..", "\0", "a" * 10_000, "\ud800", "[red]", [], [1], [[]], {}, {"a": 1}, [None] * 1000,
)  # fmt: skip


def damages_of(file: str) -> list[str]:
    """Names the damages that fit a file."""
    fitting = [*BYTES, *BYTES, *NO_FILES]
    if file.endswith(".json"):
        fitting += [*JSON, *["field"] * 8, "field lost", "field more"]
    if file.endswith(".jsonl"):
        fitting += [*LINES, *["line's field"] * 8]
    if file.endswith(".safetensors"):
        fitting += [*TENSORS, *TENSORS]
    return fitting


def _bytes(change: Callable[[bytes, random.Random], bytes]) -> Damage:
    return lambda path, draws, other: _write(path, change(path.read_bytes() or b"\0", draws))


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _bit(content: bytes, draws: random.Random) -> bytes:
    place = draws.randrange(8 * len(content))
    return _set(content, place // 8, content[place // 8] ^ (1 << place % 8))


def _byte(content: bytes, draws: random.Random) -> bytes:
    place = draws.randrange(len(content))
    return _set(content, place, (content[place] + draws.randrange(1, 256)) % 256)


def _digit(content: bytes, draws: random.Random) -> bytes:
    """Changes a digit of a text, which stays a number."""
    places = [place for place, byte in enumerate(content) if chr(byte).isdigit()] or [0]
    place = draws.choice(places)
    return _set(content, place, ord(str((content[place] - 47) % 10)))


def _set(content: bytes, place: int, byte: int) -> bytes:
    return content[:place] + bytes([byte]) + content[place + 1 :]


def _other(path: Path, draws: random.Random, other: Path) -> None:
    if other.is_file():
        shutil.copy(other, path)
    else:
        path.unlink()


BYTES: dict[str, Damage] = {
    "bit": _bytes(_bit),
    "byte": _bytes(_byte),
    "digit": _bytes(_digit),
    "cut": _bytes(lambda content, draws: content[: draws.randrange(len(content))]),
    "without its last byte": _bytes(lambda content, draws: content[:-1]),
    "emptied": _bytes(lambda content, draws: b""),
    "doubled": _bytes(lambda content, draws: content * 2),
    "tail": _bytes(lambda content, draws: content + draws.randbytes(50)),
    "zeros within": _bytes(lambda content, draws: content[:9] + bytes(64) + content[9 + 64 :]),
    "noise": _bytes(lambda content, draws: draws.randbytes(len(content))),
    "another run's": _other,
}


def _instead(make: Callable[[Path], None]) -> Damage:
    def damage(path: Path, draws: random.Random, other: Path) -> None:
        path.unlink()
        make(path)

    return damage


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, TERABYTE)


NO_FILES: dict[str, Damage] = {
    "pipe": _instead(os.mkfifo),
    "folder": _instead(Path.mkdir),
    "link to /dev/zero": _instead(lambda path: path.symlink_to("/dev/zero")),
    "link to itself": _instead(lambda path: path.symlink_to(path)),
    "link to nothing": _instead(lambda path: path.symlink_to("/nothing/there")),
    "sparse terabyte": _instead(_sparse),
    "lost": _instead(lambda path: None),
}


def _text(text: str) -> Damage:
    return lambda path, draws, other: _write(path, text.encode(errors="surrogateescape"))


def _field(path: Path, draws: random.Random, other: Path) -> None:
    _write(path, _dumped(_changed(json.loads(path.read_text()), draws)))


def _changed(value: object, draws: random.Random) -> object:
    """Gives one field, at any depth, a value of another type or size."""
    assert isinstance(value, dict)
    inside = [key for key, one in value.items() if isinstance(one, dict) and one]
    if inside and draws.random() < 0.5:
        key = draws.choice(inside)
        return {**value, key: _changed(value[key], draws)}
    return {**value, draws.choice(list(value)): draws.choice(VALUES)}


def _field_lost(path: Path, draws: random.Random, other: Path) -> None:
    value = json.loads(path.read_text())
    del value[draws.choice(list(value))]
    _write(path, _dumped(value))


def _field_more(path: Path, draws: random.Random, other: Path) -> None:
    _write(path, _dumped({**json.loads(path.read_text()), "nobody": draws.choice(VALUES)}))


def _dumped(value: object) -> bytes:
    return json.dumps(value, indent=2).encode()


JSON: dict[str, Damage] = {name: _text(text) for name, text in WHOLE.items()}
FIELDS: dict[str, Damage] = {"field": _field, "field lost": _field_lost, "field more": _field_more}


def _lines(change: Callable[[list[str], int, random.Random], list[str]]) -> Damage:
    def damage(path: Path, draws: random.Random, other: Path) -> None:
        lines = path.read_text().splitlines()
        changed = change(lines, draws.randrange(len(lines)), draws)
        _write(path, "".join(f"{line}\n" for line in changed).encode(errors="surrogateescape"))

    return damage


def _line(text: str) -> Damage:
    return _lines(lambda lines, at, draws: [*lines[:at], text, *lines[at + 1 :]])


def _line_field(lines: list[str], at: int, draws: random.Random) -> list[str]:
    return [*lines[:at], json.dumps(_changed(json.loads(lines[at]), draws)), *lines[at + 1 :]]


LINES: dict[str, Damage] = {
    "line twice": _lines(lambda lines, at, draws: [*lines[: at + 1], *lines[at:]]),
    "last line twice": _lines(lambda lines, at, draws: [*lines, lines[-1]]),
    "line lost": _lines(lambda lines, at, draws: [*lines[:at], *lines[at + 1 :]]),
    "lines swapped": _lines(lambda lines, at, draws: [*lines[:at], *reversed(lines[at:])]),
    "blank line": _lines(lambda lines, at, draws: [*lines[:at], "", *lines[at:]]),
    "last line cut": _lines(lambda lines, at, draws: [*lines[:-1], lines[-1][: len(lines[-1]) // 2]]),
    **{f"line {name}": _line(text) for name, text in WHOLE.items()},
}
LINE_FIELDS: dict[str, Damage] = {"line's field": _lines(_line_field)}


def _header(change: Callable[[dict[str, object], random.Random], object]) -> Damage:
    def damage(path: Path, draws: random.Random, other: Path) -> None:
        content = path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        header = json.dumps(change(json.loads(content[8 : 8 + size]), draws)).encode()
        _write(path, len(header).to_bytes(8, "little") + header + content[8 + size :])

    return damage


def _of_a_tensor(name: str, value: object) -> Damage:
    def change(header: dict[str, object], draws: random.Random) -> object:
        which = draws.choice([key for key in header if key != "__metadata__"])
        return {**header, which: {**header[which], name: value}}  # type: ignore[dict-item]

    return _header(change)


def _renamed(header: dict[str, object], draws: random.Random) -> object:
    which = draws.choice([key for key in header if key != "__metadata__"])
    return {f"{key}2" if key == which else key: value for key, value in header.items()}


TENSORS: dict[str, Damage] = {
    "header of exabytes": _bytes(lambda content, draws: b"\xff" * 7 + b"\x7f" + content[8:]),
    "header {}": _header(lambda header, draws: {}),
    "header []": _header(lambda header, draws: []),
    "header deep": _bytes(lambda content, draws: (99_999).to_bytes(8, "little") + b"[" * 99_999),
    "int32": _of_a_tensor("dtype", "I32"),
    "float64": _of_a_tensor("dtype", "F64"),
    "no such type": _of_a_tensor("dtype", "F7"),
    "huge shape": _of_a_tensor("shape", [2**40, 2**20]),
    "negative shape": _of_a_tensor("shape", [-1]),
    "offsets of exabytes": _of_a_tensor("data_offsets", [0, 2**62]),
    "renamed": _header(_renamed),
    "no metadata": _header(lambda header, draws: {key: one for key, one in header.items() if key != "__metadata__"}),
    "metadata x": _header(lambda header, draws: {**header, "__metadata__": {"images": "x"}}),
    "metadata deep": _header(lambda header, draws: {**header, "__metadata__": {"images": "[" * 100_000}}),
    "metadata huge": _header(
        lambda header, draws: {**header, "__metadata__": {"images": '{"classes": 99999999999, "shape": [1, 8, 8]}'}}
    ),
    "metadata large": _header(
        lambda header, draws: {**header, "__metadata__": {"images": '{"classes": 10, "shape": [1, 999999, 999999]}'}}
    ),
    "nan": _bytes(lambda content, draws: content[:-4] + b"\x00\x00\xc0\x7f"),
}
DAMAGES: dict[str, Damage] = {**BYTES, **NO_FILES, **JSON, **FIELDS, **LINES, **LINE_FIELDS, **TENSORS}
