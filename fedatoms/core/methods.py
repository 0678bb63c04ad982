"""Tables of methods: one line each, known before torch is imported; and "module:factory" for methods from outside."""

import importlib
import inspect
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, NamedTuple, TypeVar

from fedatoms.core.lookup import article, find, nearest, one_line
from fedatoms.core.outside import Factory, check_is_no_file, from_outside, naming

T = TypeVar("T")
Trait = Literal[
    "controls",  # turns a client's move into a gradient, by the learning rate that the field ``controls`` names
    "replaces",  # the server's next model is the mean of the uploads, and nothing else
    "baseline",  # what others of its kind are compared with
]


class Method(NamedTuple):
    """A line of a table: what help, labels and checks say of a method without importing it."""

    label: str  # as its paper writes it
    factory: str  # "module:function" in the table's package
    strength: str | None = None  # the factory's argument that a strength sets
    traits: Collection[Trait] = ()


class Table(NamedTuple):
    """Methods of one kind by name, the package that holds them, and the fields of an experiment that choose one."""

    kind: str
    package: str
    methods: Mapping[str, Method]
    field: str
    strength: str  # the field that sets the strength

    def homes(self) -> dict[str, str]:
        """Returns the module of each factory."""
        paths = (method.factory.partition(":") for method in self.methods.values())
        return {function: module for module, _, function in paths}

    def help(self) -> str:
        """Explains the field that chooses a method."""
        return f"{self.kind.capitalize()}: {in_words(self.methods)}; or module:factory of your own."

    def strength_help(self) -> str:
        """Explains the field that sets a strength."""
        return f"The {self.kind}'s own parameter ({self.strengths()}); None takes its authors' default."

    def having(self, trait: Trait) -> str:
        """Lists the methods that have a trait."""
        return in_words((name for name in self.methods if self.has(name, trait)), "and")

    def strengths(self) -> str:
        """Says which argument a strength sets, and in which methods."""
        named = {method.strength: "" for method in self.methods.values() if method.strength}
        for argument in named:
            named[argument] = in_words((n for n, m in self.methods.items() if m.strength == argument), "and")
        return ", ".join(f"{argument} of {methods}" for argument, methods in named.items())

    def has(self, name: str, trait: Trait, *, outside: bool = False) -> bool:
        """Says whether a method has a trait; ``outside`` is the answer for one that is not in the table."""
        return trait in self.methods[name].traits if name in self.methods else outside

    def build(self, name: str, strength: float | None, of: type[T]) -> T:
        """Builds a method of the table, or of "module:factory", whose first argument is its strength."""
        factory, argument = self._outside(name) if ":" in name else self._inside(name)
        if strength is not None and argument is None:
            raise ValueError(
                f"{self.strength}={strength}, but {name} has none. Leave it out, or use {article(self.kind)} "
                f"{self.kind} that has one: {self.strengths()}."
            )
        with naming({self.kind: name}):
            made = factory() if strength is None or argument is None else self._strong(factory, argument, strength)
        if not isinstance(made, of):
            raise ValueError(
                f"{self.field}={name!r} returns {type(made).__name__}: a factory must return a {self._public(of)}."
            )
        return made

    def strength_of(self, name: str, strength: float | None) -> tuple[Factory, str, float] | None:
        """Returns the factory of a method of the table, the argument that a strength sets, and its value; None without.

        >>> from fedatoms.algorithms import TABLE
        >>> TABLE.strength_of("feddyn", None)[1:], TABLE.strength_of("feddyn", 0.1)[1:]
        (('a', 0.01), ('a', 0.1))
        """
        argument = self.methods[name].strength if name in self.methods else None
        if argument is None:
            return None
        factory, _ = self._inside(name)
        usual = inspect.signature(factory).parameters.get(argument)
        if usual is None:
            return None
        return factory, argument, usual.default if strength is None else strength

    def call(self, value: object) -> str:
        """Returns the call that makes the method which was meant by its name, or by its factory alone.

        >>> Table("algorithm", "fedatoms.algorithms", {"a-b": Method("AB", "_ab:a_b")}, "", "").call("A-b")
        'fedatoms.algorithms.a_b()'
        """
        name = getattr(value, "__name__", value)
        functions = {known: method.factory.partition(":")[2] for known, method in self.methods.items()}
        near = nearest(name.replace("_", "-"), functions, cutoff=0.6) if isinstance(name, str) else ""
        return f"{self.package}.{functions[near or next(iter(functions))]}()"

    def _strong(self, factory: Factory, argument: str, strength: float) -> object:
        """Calls a factory with a strength; its errors call that what the caller calls it."""
        try:
            return factory(**{argument: strength})
        except ValueError as error:
            renamed = re.sub(rf"(?<![\w.]){argument}(?==)", self.strength, one_line(error))
            raise ValueError(renamed).with_traceback(error.__traceback__) from error

    def _inside(self, name: str) -> tuple[Factory, str | None]:
        if name not in self.methods:
            check_is_no_file(name, self.field)
        method = find(name, self.methods, self.kind)
        module, _, function = method.factory.partition(":")
        factory: Factory = getattr(importlib.import_module(f"{self.package}.{module}"), function)
        return factory, method.strength

    def _outside(self, name: str) -> tuple[Factory, str | None]:
        rule = "Type module:factory, as mine:build for build() in mine.py of this folder"
        factory = from_outside(name, self.field, rule)
        parameters = inspect.signature(factory).parameters.values()
        if needed := [each.name for each in parameters if each.default is each.empty and each.kind in _TAKEN]:
            raise ValueError(
                f"{self.field}={name!r}: the factory needs {in_words(needed, 'and')}, but is called without arguments, "
                f"or with its strength alone. Give each argument a default."
            )
        return factory, next((each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD), None)

    def _public(self, of: type) -> str:
        return f"{self.package}.{of.__name__}"


_TAKEN = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)


def in_words(names: Iterable[str], last: str = "or") -> str:
    """Lists names as a sentence does.

    >>> in_words(["fedavg", "feddc", "feddyn"]), in_words(["a", "b"], "and"), in_words(["mu"])
    ('fedavg, feddc or feddyn', 'a and b', 'mu')
    """
    *first, end = names
    return f"{', '.join(first)} {last} {end}" if first else end
