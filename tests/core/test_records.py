"""Records that no schema fits are refused in our own words."""

from typing import TypedDict

import pytest

from fedatoms.core.records import fit


class Named(TypedDict):
    """A record with a name."""

    name: str


@pytest.mark.parametrize("raw", [{"\ud800": 1}, {"name": "a", "\udfff": 2}])
def test_half_a_character_is_named_with_its_place(raw: object) -> None:
    with pytest.raises(ValueError, match=r"^a\.json, line 3 holds a half character") as found:
        fit(raw, Named, "a.json, line 3")
    assert not isinstance(found.value, UnicodeError)
