"""Personalised methods, one file per paper. A new one is its file, a line in ``METHODS`` and a card in the docs."""

from collections.abc import Callable

from fedatoms.core.lookup import find
from fedatoms.personal.base import Collaboration, Part, Personal, Phase, Told
from fedatoms.personal.ditto import ditto
from fedatoms.personal.fedbn import fedbn
from fedatoms.personal.fedpac import fedpac
from fedatoms.personal.fedper import fedper
from fedatoms.personal.fedrep import fedrep
from fedatoms.personal.finetune import finetune, finetune_head
from fedatoms.personal.lg_fedavg import lg_fedavg
from fedatoms.personal.local import local
from fedatoms.personal.local_atoms import local_atoms
from fedatoms.personal.pfedpara import pfedpara

METHODS: dict[str, Callable[..., Personal]] = {  # the first argument, if any, is what --personal-strength sets
    "none": lambda: Personal(),
    "local-atoms": local_atoms,
    "local-atoms-and-head": lambda: local_atoms(head=True),
    "local": local,
    "finetune": finetune,
    "finetune-head": finetune_head,
    "ditto": ditto,
    "fedper": fedper,
    "fedrep": fedrep,
    "lg-fedavg": lg_fedavg,
    "fedbn": fedbn,
    "pfedpara": pfedpara,
    "fedpac": fedpac,
}


def personal(name: str, strength: float | None = None) -> Personal:
    """Builds a personalised method by name; ``strength`` replaces its authors' default (a pull).

    >>> personal("ditto", 0.1).phases[1].pull
    0.1
    """
    factory = find(name, METHODS, "personalised method")
    if strength is None:
        return factory()
    if name not in ("ditto", "fedpac"):
        raise ValueError(f"personal strength {strength}, but {name} has none. Leave it out, or use ditto or fedpac.")
    return factory(strength)


__all__ = ["METHODS", "Collaboration", "Part", "Personal", "Phase", "Told", "personal"]
