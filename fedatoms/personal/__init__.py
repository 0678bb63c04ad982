"""Personalised methods, one file per paper; imports algorithms, nn and core.

A new one is its file, its line in ``METHODS`` (and its import, for type checkers), and its card in docs/methods: no
other file names it. ``fedatoms.personal.local_atoms()`` makes one; the table itself needs no torch.
"""

from typing import TYPE_CHECKING

from fedatoms.core.lazy import lazily
from fedatoms.core.methods import Method, Table

if TYPE_CHECKING:
    from fedatoms.personal._ditto import ditto as ditto
    from fedatoms.personal._fedbn import fedbn as fedbn
    from fedatoms.personal._fedpac import fedpac as fedpac
    from fedatoms.personal._fedper import fedper as fedper
    from fedatoms.personal._fedrep import fedrep as fedrep
    from fedatoms.personal._finetune import finetune as finetune
    from fedatoms.personal._finetune import finetune_head as finetune_head
    from fedatoms.personal._lg_fedavg import lg_fedavg as lg_fedavg
    from fedatoms.personal._local import local as local
    from fedatoms.personal._local_atoms import local_atoms as local_atoms
    from fedatoms.personal._local_atoms import local_atoms_and_head as local_atoms_and_head
    from fedatoms.personal._pfedpara import pfedpara as pfedpara
    from fedatoms.personal.base import Collaboration as Collaboration
    from fedatoms.personal.base import FeatureReport as FeatureReport
    from fedatoms.personal.base import Part as Part
    from fedatoms.personal.base import Personal as Personal
    from fedatoms.personal.base import Phase as Phase

METHODS: dict[str, Method] = {
    "none": Method("none", "base:Personal", traits={"baseline"}),
    "local-atoms": Method("Local atoms", "_local_atoms:local_atoms"),
    "local-atoms-and-head": Method("Local atoms and head", "_local_atoms:local_atoms_and_head"),
    "local": Method("Local training", "_local:local"),
    "finetune": Method("Fine-tuning", "_finetune:finetune", traits={"baseline"}),
    "finetune-head": Method("Fine-tuning of the head", "_finetune:finetune_head"),
    "ditto": Method("Ditto", "_ditto:ditto", strength="pull"),
    "fedper": Method("FedPer", "_fedper:fedper"),
    "fedrep": Method("FedRep", "_fedrep:fedrep"),
    "lg-fedavg": Method("LG-FedAvg", "_lg_fedavg:lg_fedavg"),
    "fedbn": Method("FedBN", "_fedbn:fedbn"),
    "pfedpara": Method("pFedPara", "_pfedpara:pfedpara"),
    "fedpac": Method("FedPAC", "_fedpac:fedpac", strength="align"),
}
TABLE = Table("personalised method", __name__, METHODS, field="personal", strength="personal_strength")


def personal(name: str, strength: float | None = None) -> "Personal":
    """Builds a personalised method by its name in the table, or "module:factory" of your own.

    ``strength`` replaces the authors' default of the argument that the table names, or of a factory's first one.

    >>> personal("ditto", 0.1).phases[1].pull
    0.1
    """
    from fedatoms.personal.base import Personal

    return TABLE.build(name, strength, Personal)


_HOMES = {**TABLE.homes(), **dict.fromkeys(("Collaboration", "FeatureReport", "Part", "Phase"), "base")}
__all__ = sorted(["METHODS", "personal", *_HOMES])
if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, _HOMES)
