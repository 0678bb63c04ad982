"""Federated learning with filter atoms: extra clients at no extra cost.

Names are imported when they are first used, so ``import fedatoms`` is quick and the command line's help needs no torch.
"""

import importlib
from typing import TYPE_CHECKING

from fedatoms.core.version import __version__

if TYPE_CHECKING:
    from fedatoms.adapt.fit import inputs_of, load_personal, personal_model, personalise, save_personal
    from fedatoms.algorithms import ALGORITHMS, Algorithm, algorithm
    from fedatoms.algorithms.fedavg import fedavg
    from fedatoms.algorithms.feddc import feddc
    from fedatoms.algorithms.feddyn import feddyn
    from fedatoms.algorithms.fedopt import fedadam, fedavgm
    from fedatoms.algorithms.fedprox import fedprox
    from fedatoms.algorithms.scaffold import scaffold
    from fedatoms.data.federation import Federation, federation
    from fedatoms.engine.client_round import Training
    from fedatoms.engine.exchange import Exchange, every_round, fast_slow
    from fedatoms.engine.loop import Trained, train
    from fedatoms.engine.spec import Simulation
    from fedatoms.experiment.fields import Experiment
    from fedatoms.experiment.presets import preset
    from fedatoms.nn.atoms import AtomConv2d, decompose, fuse, is_decomposed
    from fedatoms.nn.groups import groups
    from fedatoms.nn.hadamard import factorise, personal_factors
    from fedatoms.runs.execute import run
    from fedatoms.runs.loading import load_model
    from fedatoms.runs.results import Result

_HOMES = {
    "fedatoms.algorithms": ("ALGORITHMS", "Algorithm", "algorithm"),
    "fedatoms.algorithms.fedavg": ("fedavg",),
    "fedatoms.algorithms.feddc": ("feddc",),
    "fedatoms.algorithms.feddyn": ("feddyn",),
    "fedatoms.algorithms.fedopt": ("fedadam", "fedavgm"),
    "fedatoms.algorithms.fedprox": ("fedprox",),
    "fedatoms.algorithms.scaffold": ("scaffold",),
    "fedatoms.data.federation": ("Federation", "federation"),
    "fedatoms.nn.atoms": ("AtomConv2d", "decompose", "fuse", "is_decomposed"),
    "fedatoms.nn.groups": ("groups",),
    "fedatoms.engine.exchange": ("Exchange", "every_round", "fast_slow"),
    "fedatoms.experiment.fields": ("Experiment",),
    "fedatoms.nn.hadamard": ("factorise", "personal_factors"),
    "fedatoms.runs.loading": ("load_model",),
    "fedatoms.engine.client_round": ("Training",),
    "fedatoms.adapt.fit": ("inputs_of", "load_personal", "personal_model", "personalise", "save_personal"),
    "fedatoms.experiment.presets": ("preset",),
    "fedatoms.runs.execute": ("run",),
    "fedatoms.runs.results": ("Result",),
    "fedatoms.engine.spec": ("Simulation",),
    "fedatoms.engine.loop": ("Trained", "train"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "AtomConv2d",
    "Exchange",
    "Experiment",
    "Federation",
    "Result",
    "Simulation",
    "Trained",
    "Training",
    "__version__",
    "algorithm",
    "decompose",
    "every_round",
    "factorise",
    "fast_slow",
    "fedadam",
    "fedavg",
    "fedavgm",
    "feddc",
    "feddyn",
    "federation",
    "fedprox",
    "fuse",
    "groups",
    "inputs_of",
    "is_decomposed",
    "load_model",
    "load_personal",
    "personal_factors",
    "personal_model",
    "personalise",
    "preset",
    "run",
    "save_personal",
    "scaffold",
    "train",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'fedatoms' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
