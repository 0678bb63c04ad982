"""fedatoms presets: the named experiments."""

from collections.abc import Sequence

from fedatoms.cli.console import suggest, terminal
from fedatoms.cli.parsing import Job, Options
from fedatoms.evidence.paper.tables import cells_of
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.presets import PRESETS


def options(words: Sequence[str]) -> Options:
    """Returns the options: there are none."""

    def presets() -> Job:
        """Lists the presets: their method, network and table of the paper. Use them with `fedatoms run PRESET`."""
        return _presets

    return presets


def _presets() -> int:
    rows = [(name, method(one), network(one), table(one)) for name, one in PRESETS.items()]
    heads = ("preset", "method", "network", "paper")
    widths = [max(len(row[n]) for row in (heads, *rows)) for n in range(len(heads))]
    for row in (heads, *rows):
        print(" ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    suggest(terminal(), ("fedatoms run fedavg-atoms", "trains one; --help lists what may change"))
    return 0


def method(experiment: Experiment) -> str:
    """Names the method: the personalised one if there is one, and the algorithm if that is not the default.

    >>> method(Experiment(algorithm="feddc")), method(Experiment(algorithm="fedprox", personal="finetune"))
    ('feddc', 'finetune, fedprox')
    """
    if experiment.personal == "none":
        return experiment.algorithm
    return experiment.personal + (f", {experiment.algorithm}" if experiment.algorithm != Experiment.algorithm else "")


def network(experiment: Experiment) -> str:
    """Says how the network is parametrised.

    >>> network(Experiment()), network(Experiment(parametrisation="atoms"))
    ('plain', '9 atoms')
    """
    return f"{experiment.atoms} atoms" if experiment.parametrisation == "atoms" else experiment.parametrisation


def table(experiment: Experiment) -> str:
    """Names the table of the paper in which an experiment has a cell, if there is one.

    >>> table(PRESETS["ditto-personal-cifar10-2"]), table(PRESETS["fedavg"])
    ('Table 2', '-')
    """
    found = sorted({cell.table for cell in cells_of(experiment)})
    return f"Table {found[0]}" if found else "-"
