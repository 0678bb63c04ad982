"""Federated learning with filter atoms: extra clients at no extra cost.

The names of the ten-line program stand here; every other one in the folder where it lives: ``fedatoms.algorithms``,
``objectives``, ``optimisers``, ``personal``, ``nn``, ``data``, ``engine``, ``adapt``, ``flower`` and ``testing``. All
are imported when first used, so ``import fedatoms`` is quick and the command line's help needs no torch.
"""

import importlib
from typing import TYPE_CHECKING

from fedatoms.core.lazy import did_you_mean, lazily
from fedatoms.core.version import __version__

if TYPE_CHECKING:
    from fedatoms import adapt, algorithms, data, engine, flower, nn, objectives, optimisers, personal
    from fedatoms import testing as testing
    from fedatoms.engine.loop import train
    from fedatoms.engine.spec import Simulation
    from fedatoms.engine.training import Training
    from fedatoms.experiment.fields import Experiment
    from fedatoms.experiment.presets import preset
    from fedatoms.nn.atoms import decompose, fuse
    from fedatoms.runs.execute import run
    from fedatoms.runs.loading import load_model
    from fedatoms.runs.results import Result

__all__ = [
    "Experiment",
    "Result",
    "Simulation",
    "Training",
    "__version__",
    "adapt",
    "algorithms",
    "data",
    "decompose",
    "engine",
    "flower",
    "fuse",
    "load_model",
    "nn",
    "objectives",
    "optimisers",
    "personal",
    "preset",
    "run",
    "train",
]

_HOMES = {
    "Experiment": "experiment.fields",
    "Result": "runs.results",
    "Simulation": "engine.spec",
    "Training": "engine.training",
    "decompose": "nn.atoms",
    "fuse": "nn.atoms",
    "load_model": "runs.loading",
    "preset": "experiment.presets",
    "run": "runs.execute",
    "train": "engine.loop",
}
_BESIDE = ("testing",)  # for tests of your own methods alone
_MOVED = {  # names of 0.1.0, for the error that says where each is now
    **dict.fromkeys(("inputs_of", "load_personal", "personal_model", "personalise", "save_personal"), "adapt"),
    **dict.fromkeys(("ALGORITHMS", "Algorithm", "algorithm", "fedadam", "fedavg", "fedavgm"), "algorithms"),
    **dict.fromkeys(("feddc", "feddyn", "fedprox", "scaffold"), "algorithms"),
    **dict.fromkeys(("Federation", "federation"), "data"),
    **dict.fromkeys(("Exchange", "Trained", "every_round", "fast_slow"), "engine"),
    **dict.fromkeys(("AtomConv2d", "factorise", "groups", "is_decomposed", "personal_factors"), "nn"),
}


def _hint(name: str) -> str:
    """Says where a name is that is not here: one that has moved, or the nearest here or in a folder."""
    if name in _MOVED:
        return f". fedatoms.{name} has moved since 0.1.0: use fedatoms.{_MOVED[name]}.{name}"
    places = dict[str, str]()
    for folder in _FOLDERS:  # none needs torch before one of its names is used
        places |= {each: f"fedatoms.{folder}.{each}" for each in importlib.import_module(f"fedatoms.{folder}").__all__}
    return did_you_mean(name, {**places, **{each: f"fedatoms.{each}" for each in __all__}})


_FOLDERS = {name: name for name in (*__all__, *_BESIDE) if name not in _HOMES and name != "__version__"}
if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, {**_HOMES, **_FOLDERS}, _hint)


def __dir__() -> list[str]:
    return __all__
