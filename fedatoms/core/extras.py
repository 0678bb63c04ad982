"""Extras: packages that only some need, and the line that says what to type where one is not installed. No torch."""

import importlib.util


def has(*packages: str) -> bool:
    """Says whether packages are installed, without importing them.

    >>> has("torch", "numpy"), has("torch", "no-such-package")
    (True, False)
    """
    return not _missing(packages)


def need(what: str, extra: str, *packages: str, otherwise: str = "") -> None:
    """Refuses what needs packages of an extra of ours that are not installed.

    >>> need("a plot", "plot", "torch")
    >>> need("a plot", "plot", "no-such-package", otherwise=", or leave --plot out")
    Traceback (most recent call last):
    ...
    ValueError: a plot needs no-such-package. Type: pip install "fedatoms[plot]", or leave --plot out
    """
    if missing := _missing(packages):
        raise ValueError(f"{what} needs {' and '.join(missing)}. Type: {how_to_add(extra)}{otherwise}")


def how_to_add(extra: str) -> str:
    """Returns what to type for an extra; pip adds it to the fedatoms that is installed, wherever that came from.

    >>> how_to_add("plot")
    'pip install "fedatoms[plot]"'
    """
    return f'pip install "fedatoms[{extra}]"'


def _missing(packages: tuple[str, ...]) -> list[str]:
    return [name for name in packages if importlib.util.find_spec(name) is None]
