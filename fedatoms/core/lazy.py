"""Names of a package that are imported when they are first used: importing the package itself stays quick."""

import importlib
from collections.abc import Callable, Mapping


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Returns the ``__getattr__`` of a package: ``homes`` says in which of its modules each name lives.

    >>> lazily("fedatoms.core", {"find": "lookup"})("find").__name__
    'find'
    """

    def attribute(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return attribute
