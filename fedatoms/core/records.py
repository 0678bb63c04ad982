"""JSON by schema, decoded by msgspec and sealed by checksums; an error names file, line and field. No torch."""

import hashlib
import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn, TypeVar

from fedatoms.core.border import open_regular, read_bytes

MOST = 10**9  # bytes of a file of records, at most
SEAL = "seal"
FORMAT = "format"  # 2: the file is sealed
CHUNK = 1 << 20
T = TypeVar("T")


def read_record(path: Path, where: str = "", *, must_be_sealed: bool = False) -> dict[str, object]:
    """Reads a file that holds one record, and checks its seal if it has one; ``where`` replaces its path in errors."""
    where = where or str(path)
    values = fit(parse(read_bytes(path, MOST), where), dict[str, object], where)
    return unsealed(values, where, must_be_sealed=must_be_sealed)


def parse(text: bytes | str, where: str, *, older: bool = False) -> object:
    """Reads JSON; NaN and infinity, which JSON does not have, are refused, or in a file of an ``older`` version None.

    >>> parse("[NaN]", "a.json")
    Traceback (most recent call last):
    ...
    ValueError: a.json holds NaN, which is not a number of JSON
    """
    import msgspec  # takes as long to import as all that a help needs

    try:
        return msgspec.json.decode(text)  # what it takes it reads as json does, in an eighth of the time
    except (msgspec.DecodeError, ValueError, RecursionError):
        return _parse_slowly(text, where, older=older)


def _parse_slowly(text: bytes | str, where: str, *, older: bool) -> object:
    """Reads what only json takes, such as half characters or another encoding, or says what is wrong with it."""
    try:
        return json.loads(text, parse_constant=_none if older else _refuse, parse_float=_finite)
    except _NotANumber as error:
        raise ValueError(f"{where} holds {error}, which is not a number of JSON") from None
    except RecursionError:
        raise ValueError(f"{where} is nested too deeply") from None
    except ValueError as error:  # also for bytes that are not text
        raise ValueError(f"{where} is not whole JSON ({error})") from None


def fit(raw: object, kind: type[T], where: str) -> T:
    """Returns a value that has exactly the types of a schema; fields that the schema does not know are left out.

    >>> fit({"round": "x"}, dict[str, int], "rounds.jsonl, line 3")
    Traceback (most recent call last):
    ...
    ValueError: rounds.jsonl, line 3: [...]: expected int, got str
    """
    import msgspec

    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).replace("`", "").partition(" - at ")
        parts = [where, place.removeprefix("$").removeprefix("."), f"{problem[:1].lower()}{problem[1:]}"]
        raise ValueError(": ".join(filter(None, parts))) from None
    except UnicodeEncodeError:  # a JSON text may hold half of a pair of escapes
        raise ValueError(f"{where} holds a half character, which is no text") from None


def sealed(values: Mapping[str, object], previous: int = 0) -> dict[str, object]:
    """Adds a checksum to a record: of its content, and of the seal of the record before it if there is one.

    >>> sealed({"round": 0})
    {'round': 0, 'seal': 3236901472}
    """
    return {**values, SEAL: _checksum(values, previous)}


def unsealed(
    values: Mapping[str, object], where: str, previous: int = 0, *, must_be_sealed: bool = False
) -> dict[str, object]:
    """Returns a record without its seal, which must match; a record of an older version has none."""
    content = {name: value for name, value in values.items() if name != SEAL}
    try:
        changed = SEAL in values and values[SEAL] != _checksum(content, previous)
    except RecursionError:
        raise ValueError(f"{where} is nested too deeply") from None
    if changed:
        raise ValueError(f"{where} does not match its checksum: it was changed")
    if SEAL not in values and (must_be_sealed or content.get(FORMAT) == 2):
        raise ValueError(f"{where} has lost its checksum: it was changed")
    return content


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file, read piece by piece."""
    found = hashlib.sha256()
    with open_regular(path) as file:
        while piece := file.read(CHUNK):
            found.update(piece)
    return found.hexdigest()


def _checksum(values: Mapping[str, object], previous: int) -> int:
    return zlib.crc32(json.dumps(values, sort_keys=True, default=str).encode(), previous)


class _NotANumber(ValueError):
    pass


def _refuse(constant: str) -> NoReturn:
    raise _NotANumber(constant)


def _none(constant: str) -> None:
    return None


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)
