"""Names of a package that are imported when they are first used: importing the package itself stays quick."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping

from fedatoms.core.lookup import nearest

Hint = Callable[[str], str]  # from a name that is not there to what to use instead, or ""


def lazily(package: str, homes: Mapping[str, str], hint: Hint | None = None) -> Callable[[str], object]:
    """Returns the ``__getattr__`` of a package: ``homes`` says in which of its modules each name lives.

    A folder of the package lives in itself. Without a ``hint`` an unknown name is answered with the nearest.

    >>> lazily("fedatoms.core", {"find": "lookup"})("find").__name__
    'find'
    >>> lazily("fedatoms.core", {"find": "lookup"})("Fnd")
    Traceback (most recent call last):
    ...
    AttributeError: module 'fedatoms.core' has no attribute 'Fnd'. Did you mean fedatoms.core.find?
    """

    def attribute(name: str) -> object:
        if name in homes:
            module = importlib.import_module(f"{package}.{homes[name]}")
            return module if homes[name] == name else getattr(module, name)
        hinted = hint(name) if hint else did_you_mean(name, {each: f"{package}.{each}" for each in homes})
        said = f"module {package!r} has no attribute {name!r}{hinted}"
        # `from package import name` asks by this function, and says nothing of what an AttributeError says.
        imported = sys._getframe(1).f_code.co_name == "_handle_fromlist"
        if hinted and imported and importlib.util.find_spec(f"{package}.{name}") is None:
            raise ImportError(said, name=package)
        raise AttributeError(said)

    return attribute


def did_you_mean(name: str, paths: Mapping[str, str]) -> str:
    """Returns the end of an error: the path of the name that is nearest, if one is near.

    >>> did_you_mean("SCAFFOLD", {"scaffold": "fedatoms.algorithms.scaffold"}), did_you_mean("__file__", {"file": ""})
    ('. Did you mean fedatoms.algorithms.scaffold?', '')
    """
    near = "" if name.startswith("_") else nearest(name, paths, cutoff=0.6)
    return f". Did you mean {paths[near]}?" if near else ""
