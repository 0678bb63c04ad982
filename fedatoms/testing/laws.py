"""A law is a function that raises if a method breaks it; its docstring is the law. These hold for every method."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from torch import nn

from fedatoms.core.lookup import one_line
from fedatoms.engine.loop import train
from fedatoms.engine.spec import Simulation
from fedatoms.testing.small import WHOLE, check_same, clients, network, one_thread, resumed, tensors

T = TypeVar("T")
Law = Callable[[Simulation], None]
ROUNDS = 3
ROUNDING = 1e-9  # of sums in another order, in float64


def made_by(factory: Callable[[], T], of: type[T]) -> T:
    """Calls a factory without arguments, and refuses what is not a method.

    >>> made_by(float, int)
    Traceback (most recent call last):
    ...
    AssertionError: float() returns float, not int. Let the factory return one
    """
    made = factory()
    if not isinstance(made, of):
        raise AssertionError(
            f"{name_of(factory)}() returns {type(made).__name__}, not {of.__name__}. Let the factory return one"
        )
    return made


def keep(laws: Iterable[Law], sim: Simulation, name: str) -> None:
    """Checks one law after the other; an AssertionError names the method, the law, and what broke it."""
    for law in laws:
        try:
            with one_thread():
                law(sim)
        except Exception as error:  # whatever the method's own code raises
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            law_broken = f"{name} breaks the law {law.__name__!r}: {_sentence(law)}"
            raise AssertionError(f"{law_broken} But {kind}{one_line(error)}") from error


def name_of(factory: Callable[..., object]) -> str:
    """Names a factory in an error.

    >>> name_of(float)
    'float'
    """
    return getattr(factory, "__name__", repr(factory))


def repeatable(sim: Simulation) -> None:
    """Two runs give the same bits: all that is remembered lies in memories, and nothing draws from a global stream."""
    check_same(tensors(train(sim, ROUNDS)), tensors(train(sim, ROUNDS)))


def resumable(sim: Simulation) -> None:
    """A run that is stopped and resumed from its checkpoint gives the bits of one that never stopped."""
    check_same(resumed(sim, stop=2, until=ROUNDS), tensors(train(sim, ROUNDS)))


def vectorised(sim: Simulation) -> None:
    """Clients that train at once end where they end one by one, in blocks of any size."""
    at_once_as_one_by_one(sim, blocks=(1, 3))


def at_once_as_one_by_one(sim: Simulation, blocks: Iterable[int]) -> None:
    """Compares two rounds, the second with memories, of clients that train at once and one by one."""
    one_by_one = tensors(train(replace(sim, map="one_by_one"), 2))
    for block in blocks:
        at_once = tensors(train(replace(sim, map="vectorised", block=block), 2))
        check_same(at_once, one_by_one, ROUNDING)


def without_order(sim: Simulation) -> None:
    """The order of the clients does not matter."""
    if any(isinstance(layer, nn.modules.dropout._DropoutNd) for layer in sim.model.modules()):
        sim = replace(sim, model=network(dropout=False))  # a client draws by its number
    sim = replace(sim, training=WHOLE, fraction=1.0, failures=0.0)
    there, back = (train(replace(sim, data=clients(order=order)), ROUNDS) for order in ((0, 1, 2, 3), (3, 2, 1, 0)))
    check_same(there.state.server.params, back.state.server.params, ROUNDING)


def alone(sim: Simulation) -> None:
    """A federation of one client trains, and stays finite."""
    train(replace(sim, data=clients(order=[2]), fraction=1.0, failures=0.0), ROUNDS)


def _sentence(law: Callable[..., object]) -> str:
    return " ".join((law.__doc__ or "").split())
