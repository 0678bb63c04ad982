"""Local atoms: Chen & Qiu, "Extra Clients at No Extra Cost", ICML 2025, section on personalisation."""

from fedatoms.core.options import Group
from fedatoms.personal.base import Personal, Phase, of_groups


def local_atoms() -> Personal:
    """Gives each client personal atoms beside the global ones, under the shared coefficients.

    In a round the client first fits its personal parameters with all that it received fixed; then it trains the
    received model, global atoms included, and uploads that.

    >>> local_atoms().beside
    True
    """
    return _beside("atoms")


def local_atoms_and_head() -> Personal:
    """Gives each client personal atoms and a personal head beside the global ones.

    >>> [phase.moves for phase in local_atoms_and_head().phases]
    ['own', 'shared']
    """
    return _beside("atoms", "head")


def _beside(*own: Group) -> Personal:
    return Personal(of_groups(*own), beside=True, phases=(Phase("own"), Phase("shared", view="global")))
