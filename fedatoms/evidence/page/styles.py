"""How lines and bars look: a colour for each method, the same in every figure; solid with atoms, dashed without.

The line of a network's factors is dashed and dotted, beside that of its filters.

What is no method, such as groups of parameters, is grey, and told apart by textures and marks. The luminance of each
colour is between 0.13 and 0.27, so each has a contrast of 3:1 and more on both backgrounds.
"""

import zlib
from collections.abc import Sequence

from fedatoms.algorithms import ALGORITHMS
from fedatoms.core.options import Group
from fedatoms.evidence.results.measures import FACTORS
from fedatoms.experiment.fields import Experiment
from fedatoms.personal import METHODS

COLOURS = (
    "#2378c3",  # blue
    "#c8590a",  # orange
    "#1a8a5c",  # green
    "#b8509c",  # magenta
    "#d0443f",  # red
    "#8264d8",  # violet
    "#84781a",  # olive
    "#1786a3",  # teal
    "#a0694a",  # brown
    "#5c8a1f",  # lime
)
GREYS = ("#6e6e6e", "#8c8c8c")  # of no method
TEXTURES: dict[
    Group, tuple[str, str]
] = {  # of bars: a grey or the text's colour, and Plotly's name of what is drawn in it
    "atoms": ("", ""),
    "coefficients": (GREYS[0], "/"),
    "head": (GREYS[0], "x"),
    "rest": (GREYS[1], ""),
    "statistics": (GREYS[0], "."),
}
SPOT = {"color": "#ffffff", "line": {"color": "#1b1f26", "width": 2}}  # a mark that is seen on any shade
DASHES = {"plain": "dash", "atoms": "solid"}  # other parametrisations, and factors as they are, are dotted
MARKS = ("", "circle", "square", "diamond", "triangle-up", "x", "cross", "star", "triangle-down", "pentagon")
OPEN = tuple(f"{mark}-open" for mark in MARKS[1:])


def colour_of(experiment: Experiment) -> str:
    """Returns the colour of a method: of its algorithm, or of its personalised method.

    >>> colour_of(Experiment()) == colour_of(Experiment(parametrisation="atoms")) == COLOURS[0]
    True
    """
    if experiment.personal != "none":
        return _from(experiment.personal, [name for name in METHODS if name != "none"])
    return _from(experiment.algorithm, list(ALGORITHMS))


def dash_of(experiment: Experiment) -> str:
    """Returns how a line is broken.

    >>> [dash_of(Experiment(parametrisation=kind)) for kind in ("plain", "atoms", "fedpara")]
    ['dash', 'solid', 'dot']
    """
    return DASHES.get(experiment.parametrisation, "dot")


def line_styles(experiments: Sequence[Experiment]) -> list[dict[str, str]]:
    """Returns the style of each line of a figure; variants of one method differ in their marks.

    Personalised methods have a mark in any case, as there are more methods than colours: theirs are used twice.

    >>> [style["mark"] for style in line_styles([Experiment(), Experiment(lr=0.3), Experiment(algorithm="fedprox")])]
    ['', 'circle', '']
    """
    seen: dict[tuple[str, str], int] = {}
    found = []
    for one in experiments:
        look = colour_of(one), dash_of(one)
        place = seen[look] = seen.get(look, -1 if one.personal == "none" else 0) + 1
        found.append({"colour": look[0], "dash": look[1], "mark": _mark(place)})
    return found


def looks(names: Sequence[str]) -> list[dict[str, str]]:
    """Returns the style of lines that are known by name alone: a method's, or greys and marks for other names.

    >>> [(look["colour"], look["dash"]) for look in looks(["fedavg", "fedavg + 9 atoms", "5 models"])]
    [('#2378c3', 'dash'), ('#2378c3', 'solid'), ('#6e6e6e', 'solid')]
    >>> looks(["fedavg + 9 atoms, factors"])[0]["dash"]
    'dot'
    """
    seen: dict[tuple[str, str] | None, int] = {}
    found = []
    for name in names:
        look = _of_name(name)
        place = seen[look] = seen.get(look, -1) + 1
        colour, dash = look or (GREYS[place % len(GREYS)], "solid")
        found.append({"colour": colour, "dash": dash, "mark": _mark(place + (look is None))})
    return found


def _of_name(name: str) -> tuple[str, str] | None:
    """Returns the look of a method that begins a name; "plain" and "9 atoms" alone are FedAvg's."""
    first = name.split()[0].rstrip(",") if name else ""
    kind = "atoms" if " atoms" in name else "fedpara" if "fedpara" in name else "plain"
    if first in ALGORITHMS:
        dash = "dot" if name.endswith(FACTORS) else DASHES.get(kind, "dot")
        return _from(first, list(ALGORITHMS)), dash
    alone = name == "plain" or (first.isdecimal() and name == f"{first} atoms")
    return (COLOURS[0], DASHES[kind]) if alone else None


def _mark(place: int) -> str:
    every = (*MARKS, *OPEN)
    return every[place] if place < len(every) else f"{every[1 + place % (len(every) - 1)]}-dot"


def _from(name: str, known: Sequence[str]) -> str:
    place = known.index(name) if name in known else zlib.crc32(name.encode())
    return COLOURS[place % len(COLOURS)]
