"""Models and methods of the user's, "module:factory": imported, suggested where meant, and named when they fail."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb

from fedatoms.core.lookup import one_line
from fedatoms.core.memory import is_out_of_memory

Factory = Callable[..., object]


def from_outside(name: str, field: str, rule: str) -> Factory:
    """Imports "module:factory", also from the current folder; an error names the field and ends with the rule.

    >>> from_outside("math:sqrt", "model", "Type module:factory")(9)
    3.0
    >>> from_outside("math:root", "model", "Type module:factory")
    Traceback (most recent call last):
    ...
    ValueError: model='math:root': 'math' has no function or class 'root'. Type module:factory
    """
    module, _, attribute = name.partition(":")
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())  # as `python -m` does
    importlib.invalidate_caches()
    try:
        factory: object = getattr(importlib.import_module(module), attribute, None)
    except Exception as error:  # whatever the user's file raises
        if module.endswith(".py") and Path(module).is_file():
            raise ValueError(f"{field}={name!r} names a file. Use {field}={_module(module)}:{attribute}.") from error
        raise ValueError(f"{field}={name!r}: importing {module!r} fails ({error!r}). {rule}") from error
    if not callable(factory):
        raise ValueError(f"{field}={name!r}: {module!r} has no function or class {attribute!r}. {rule}")
    return factory


def check_is_no_file(name: str, field: str) -> None:
    """Refuses the name of a Python file of this folder where "module:factory" is meant."""
    path = Path(f"{name.removesuffix('.py')}.py")
    if path.is_file():
        raise ValueError(f"{field}={name!r} names no factory. Use {field}={_module(str(path))}:FACTORY, of {path}.")


@contextmanager
def naming(yours: Mapping[str, str]) -> Iterator[None]:
    """Says which model or method of the user's raised an error: ``yours`` has names by what they are.

    >>> import json
    >>> with naming({"algorithm": "json.decoder:JSONDecoder", "model": "lenet"}):
    ...     json.loads("{")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: your algorithm json.decoder:JSONDecoder failed in line ...: JSONDecodeError: Expecting ...
    """
    try:
        yield
    except Exception as error:
        frames = [(frame.f_globals.get("__name__"), line) for frame, line in walk_tb(error.__traceback__)]
        for kind, name in yours.items():
            lines = [line for module, line in frames if ":" in name and module == name.partition(":")[0]]
            if lines and not is_out_of_memory(error):
                said = f"{type(error).__name__}: {one_line(error)}"
                raise ValueError(f"your {kind} {name} failed in line {lines[-1]}: {said}") from error
        raise


def _module(path: str) -> str:
    """Returns the module of a file, as Python imports it.

    >>> _module("mine.py"), _module("./ours/mine.py")
    ('mine', 'ours.mine')
    """
    return ".".join(Path(path).with_suffix("").parts)
