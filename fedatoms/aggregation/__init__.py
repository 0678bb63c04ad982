"""Aggregation rules, what may take the place of the mean of a round's uploads; one file per paper; imports core.

A new one is its file, its line in ``RULES`` (and its import, for type checkers), and its line in docs/robustness.md.
``fedatoms.aggregation.krum()`` makes one; the table itself needs no torch.
"""

from contextlib import suppress
from typing import TYPE_CHECKING

from fedatoms.core.lazy import lazily
from fedatoms.core.lookup import find
from fedatoms.core.methods import Method, Table
from fedatoms.core.options import range_of

if TYPE_CHECKING:
    from fedatoms.aggregation._centred_clipping import centred_clipping as centred_clipping
    from fedatoms.aggregation._coordinates import median as median
    from fedatoms.aggregation._coordinates import trimmed as trimmed
    from fedatoms.aggregation._geometric_median import geometric_median as geometric_median
    from fedatoms.aggregation._krum import krum as krum
    from fedatoms.aggregation._krum import multi_krum as multi_krum
    from fedatoms.aggregation._mean import mean as mean
    from fedatoms.aggregation._nearest_mixing import nearest_mixing as nearest_mixing
    from fedatoms.aggregation._norm_bound import norm_bound as norm_bound
    from fedatoms.aggregation.base import Points as Points
    from fedatoms.aggregation.base import Rule as Rule

RULES: dict[str, Method] = {
    "mean": Method("mean", "_mean:mean"),
    "median": Method("median", "_coordinates:median"),
    "trimmed": Method("trimmed mean", "_coordinates:trimmed", strength="trim"),
    "krum": Method("Krum", "_krum:krum", strength="liars"),
    "multi-krum": Method("multi-Krum", "_krum:multi_krum", strength="liars"),
    "geometric-median": Method("geometric median", "_geometric_median:geometric_median", strength="steps"),
    "norm-bound": Method("norm bound", "_norm_bound:norm_bound", strength="radius"),
    "centred-clipping": Method("centred clipping", "_centred_clipping:centred_clipping", strength="radius"),
    "nearest-mixing": Method("nearest-neighbour mixing", "_nearest_mixing:nearest_mixing", strength="liars"),
}
TABLE = Table("aggregation", __name__, RULES, field="aggregation", strength="parameter")


def aggregation(text: str) -> "Rule":
    """Builds a rule by its name in the table, with its parameter after a colon; or "module:factory" of your own.

    >>> aggregation("krum").fewest, aggregation("krum:2").fewest
    (5, 7)
    >>> aggregation("trimmed:0.7")
    Traceback (most recent call last):
    ...
    ValueError: aggregation=trimmed:0.7: parameter=0.7 is not in [0, 0.5). Use for example trimmed:0.2.
    """
    from fedatoms.aggregation.base import Rule

    name, colon, number = text.partition(":")
    if not colon or (name not in RULES and _number(number) is None):
        return TABLE.build(text, None, Rule)
    method = find(name, RULES, TABLE.kind)
    try:
        if (parameter := _number(number)) is None:
            use = f"Use {range_of(f'aggregation {method.strength}').use}." if method.strength else f"Use {name}."
            raise ValueError(f"{number!r} is not a number. {use}")
        return TABLE.build(name, parameter, Rule)
    except ValueError as error:
        advice = str(error).replace("Use for example ", f"Use for example {name}:")
        raise ValueError(f"aggregation={text}: {advice}") from None


def _number(text: str) -> float | None:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return None


_HOMES = {**TABLE.homes(), **dict.fromkeys(("Points", "Rule"), "base")}
__all__ = sorted(["RULES", "aggregation", *_HOMES])
if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, _HOMES)
