"""How often a process asks for the parts of a message that are on their way, each tensor being two of them.

Flower announces a message before its parts are there, and who pulls it too early waits for a second, then for two, four
and so on up to ten. A ServerApp that looks for answers five times a second comes too early in most rounds, and waited
for one to three seconds. Flower has arguments for them, but no setting, so its functions get these arguments here.
"""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

EAGER: Mapping[str, float | None] = {
    "initial_backoff": 0.05,  # seconds
    "backoff_cap": 1.0,  # seconds, to which the wait doubles
    "max_tries_per_object": None,  # 500 tries were 83 minutes: now ``max_time`` is the limit, two hours
}
OF_SERVER = ("flwr.superlink.grid.http_grid", "pull_objects")
OF_CLIENT = ("flwr.supernode.runtime.run_clientapp", "pull_and_inflate_object_from_tree")


@contextmanager
def eagerly(*places: tuple[str, str]) -> Iterator[None]:
    """Lets the functions of Flower that pull parts of messages ask sooner, and so more often, for those not there yet.

    A Flower that has no such function is left as it is.
    """
    with ExitStack() as stack:
        for module, name in places:
            with suppress(ModuleNotFoundError, AttributeError):
                home = importlib.import_module(module)
                found = getattr(home, name)
                setattr(home, name, partial(found, **EAGER))
                stack.callback(setattr, home, name, found)
        yield
