"""Data inside the page: as JSON in a script, or packed until a figure or another baseline needs it."""

import base64
import gzip
import json
import math
from collections.abc import Sequence
from itertools import pairwise

from fedatoms.evidence.page.plotly import Json


def as_script(data: Json) -> str:
    """Returns data as JSON that is safe inside a script.

    >>> as_script({"name": "</script>"})
    '{"name":"\\\\u003c/script>"}'
    """
    return _json(data).replace("<", "\\u003c")


def packed(data: Json) -> str:
    """Returns data compressed, in letters: what only figures and other baselines need.

    >>> json.loads(gzip.decompress(base64.b64decode(packed({"a": 1}))))
    {'a': 1}
    """
    return letters(gzip.compress(_json(data).encode(), mtime=0))


def letters(content: bytes) -> str:
    """Returns bytes as letters that may stand in a script.

    >>> letters(b"abc")
    'YWJj'
    """
    return base64.b64encode(content).decode()


def steps(values: Sequence[float], per: float) -> Json:
    """Returns numbers as whole parts, ``per`` to one, each less the one before: these are small and pack well.

    >>> steps([47.5, 48.01, 47.99], 100)
    {'per': 100, 'by': [4750, 51, -2]}
    """
    parts = [round(value * per) for value in values]
    return {"per": per, "by": [after - before for before, after in pairwise([0, *parts])]}


def parts_of(values: Sequence[float], digits: int) -> float:
    """Returns how many parts of one keep so many digits of the largest number.

    >>> parts_of([0.5, 31.25], 4), parts_of([], 4)
    (100.0, 1000.0)
    """
    largest = max(map(abs, values), default=0.0) or 1.0
    return 10.0 ** (digits - 1 - math.floor(math.log10(largest)))


def _json(data: Json) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False)
