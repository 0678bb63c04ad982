"""Local atoms: Chen & Qiu, "Extra Clients at No Extra Cost", ICML 2025, section on personalisation."""

from fedatoms.personal.base import Personal, Phase, groups


def local_atoms(head: bool = False) -> Personal:
    """Gives each client atoms (and a head) of its own beside the global ones, under the shared coefficients.

    In a round the client first fits its own part with all that it received fixed; then it trains the received model,
    global atoms included, and uploads that.

    >>> local_atoms().beside
    True
    """
    own = groups("atoms", "head") if head else groups("atoms")
    return Personal(own, beside=True, phases=(Phase("own"), Phase("shared", view="global")))
