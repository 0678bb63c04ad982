"""JSON is read as Python reads it, and records that no schema fits are refused in our own words."""

import json
import math
from typing import TypedDict

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedatoms.core.records import fit, parse, unsealed


class Named(TypedDict):
    """A record with a name."""

    name: str


@pytest.mark.parametrize("raw", [{"\ud800": 1}, {"name": "a", "\udfff": 2}])
def test_half_a_character_is_named_with_its_place(raw: object) -> None:
    with pytest.raises(ValueError, match=r"^a\.json, line 3 holds a half character") as found:
        fit(raw, Named, "a.json, line 3")
    assert not isinstance(found.value, UnicodeError)


def test_a_record_that_is_too_deep_for_its_checksum_is_refused_in_a_line() -> None:
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(ValueError, match=r"^a\.json is nested too deeply$"):
        unsealed({"deep": deep, "seal": 1}, "a.json")


ATOMS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(ATOMS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))


@given(
    VALUES, st.integers(0, 60), st.sampled_from([b"", b"-", b".", b"e9", b"00", b'"', b"}", b"\\ud8", b"\xff", b"\t"])
)
@example(-0.0, 0, b"")
@example(10**30, 0, b"")
@example(1.5, 3, b"e999")
def test_text_is_read_as_python_reads_it_also_if_it_is_spoilt(value: object, place: int, spoilt: bytes) -> None:
    whole = json.dumps(value).encode()
    text = whole[:place] + spoilt + whole[place:]
    try:
        expected = json.loads(text)
        assert all(math.isfinite(number) for number in numbers_in(expected))
    except (ValueError, AssertionError):
        with pytest.raises(ValueError, match=r"^a\.json (is not whole JSON|holds)"):
            parse(text, "a.json")
    else:
        assert repr(parse(text, "a.json")) == repr(expected)


def numbers_in(value: object) -> list[float]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [value] if isinstance(value, float) else [number for each in inner for number in numbers_in(each)]
