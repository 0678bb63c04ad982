"""Names for people: what an experiment is, in which setting, and by what it differs from others there."""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fedatoms.experiment.fields import EXECUTION_FIELDS, Experiment
from fedatoms.experiment.parse import period_of

_METHOD = {"algorithm", "parametrisation", "atoms", "fixed", "personal"}  # named always
_NO_MATTER = {"seed", *EXECUTION_FIELDS}
_ONLY_WITH_ATOMS = {"init", "atoms_lr", "atoms_decay", "where"}
_SETTING = {"dataset", "holdout", "partition", "clients", "classes_per_client", "distinct", "dirichlet", "unbalanced"}
_NAMED = [field.name for field in dataclasses.fields(Experiment) if field.name not in _METHOD | _NO_MATTER | _SETTING]


def setting(experiment: Experiment) -> str:
    """Says on which data an experiment runs, and how they are spread over clients.

    >>> setting(Experiment(classes_per_client=3))
    'digits, 20 clients with 3 classes each'
    >>> setting(Experiment(partition="iid", holdout=0.1))
    'digits, 20 clients, iid (scored on held-out images)'
    """
    spread = {
        "iid": ", iid",
        "shards": f" with {experiment.classes_per_client} classes each",
        "dirichlet": f", Dirichlet {experiment.dirichlet:g}",
    }[experiment.partition]
    rest = [f"sizes {experiment.unbalanced:g}"] if experiment.unbalanced and experiment.partition == "dirichlet" else []
    rest += ["distinct"] if experiment.distinct and experiment.partition == "shards" else []
    rest += ["scored on held-out images"] if experiment.holdout else []
    more = f" ({', '.join(rest)})" if rest else ""
    return f"{experiment.dataset}, {experiment.clients} clients{spread}{more}"


def labels(experiments: Sequence[Experiment]) -> list[str]:
    """Names experiments of one setting: the method, and then what else differs among them.

    >>> labels([Experiment(), Experiment(parametrisation="atoms"), Experiment(lr=0.5)])
    ['fedavg, lr 0.1', 'fedavg + 9 atoms, lr 0.1', 'fedavg, lr 0.5']
    """
    varied = [name for name in _NAMED if len(_values(experiments, name)) > 1]
    return [", ".join([method(one), *(_show(one, n) for n in varied if _matters(one, n))]) for one in experiments]


def told_apart(experiments: Sequence[Experiment], among: Sequence[Experiment] = ()) -> tuple[str, list[str]]:
    """Returns the setting if all share one, and names: the method, what is not as in most, the setting if not shared.

    Most are more than half of these experiments and of those they stand ``among``.

    >>> told_apart([Experiment(), Experiment(lr=0.5), Experiment(algorithm="fedprox")])
    ('digits, 20 clients with 2 classes each', ['fedavg', 'fedavg, lr 0.5', 'fedprox'])
    >>> told_apart([Experiment(), Experiment(partition="iid")])[1]
    ['fedavg; digits, 20 clients with 2 classes each', 'fedavg; digits, 20 clients, iid']
    """
    usual = {name: _most(_values([*experiments, *among], name)) for name in _NAMED}
    settings = [setting(one) for one in experiments]
    shared = settings[0] if len(set(settings)) == 1 else ""
    names = [
        ", ".join([method(one), *(_show(one, n) for n in _NAMED if _is_odd(one, n, usual))]) for one in experiments
    ]
    return shared, names if shared else [f"{name}; {where}" for name, where in zip(names, settings, strict=True)]


def seeds(numbers: Sequence[int]) -> str:
    """Names seeds.

    >>> seeds([0]), seeds([0, 1])
    ('seed 0', 'seeds 0, 1')
    """
    return f"seed{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def natural(text: str) -> list[tuple[int, str]]:
    """Returns what to sort a name by: its numbers count as numbers.

    >>> sorted(["run-10", "run-2", "run"], key=natural)
    ['run', 'run-2', 'run-10']
    """
    parts = re.split(r"(\d+)", text)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts if part]


def method(experiment: Experiment) -> str:
    """Names the algorithm, the parametrisation, what is fixed of it, and the personalisation.

    >>> method(Experiment(parametrisation="atoms", personal="local-atoms"))
    'fedavg + 9 atoms, local-atoms'
    >>> method(Experiment(parametrisation="atoms", fixed="atoms"))
    'fedavg + 9 atoms, fixed atoms'
    """
    kind = experiment.parametrisation
    layers = {"plain": "", "atoms": f" + {experiment.atoms} atoms"}.get(kind, f" + {kind}")
    fixed = f", fixed {experiment.fixed}" if experiment.fixed else ""
    own = "" if experiment.personal == "none" else f", {experiment.personal}"
    return f"{experiment.algorithm}{layers}{fixed}{own}"


def atoms_of(experiments: Iterable[Experiment]) -> str:
    """Says with which atoms experiments run, and with which learning rate if it is not that of the other parameters.

    >>> fast = Experiment(parametrisation="atoms", atoms=25, atoms_lr=2.0)
    >>> atoms_of([fast, Experiment(parametrisation="atoms"), Experiment()])
    '9 atoms or 25 atoms with 2 times the learning rate'
    """
    found = sorted({(one.atoms, one.atoms_lr) for one in experiments if one.parametrisation == "atoms"})
    return " or ".join(
        f"{number} atoms" + (f" with {rate:g} times the learning rate" if rate != 1 else "") for number, rate in found
    )


def _values(experiments: Sequence[Experiment], name: str) -> Counter[object]:
    """Counts the values of a field where it changes anything."""
    return Counter(getattr(one, name) for one in experiments if _matters(one, name))


def _most(values: Counter[object]) -> set[object]:
    """Returns the value that more than half have, if there is one."""
    return {value for value, count in values.items() if 2 * count > values.total()}


def _is_odd(experiment: Experiment, name: str, usual: Mapping[str, set[object]]) -> bool:
    return _matters(experiment, name) and getattr(experiment, name) not in usual[name]


def _matters(experiment: Experiment, name: str) -> bool:
    """Says whether a field changes anything in an experiment."""
    if name in _ONLY_WITH_ATOMS:
        return experiment.parametrisation == "atoms"
    if name == "controls":
        return experiment.algorithm in ("scaffold", "feddc")
    if name == "gamma":
        return experiment.parametrisation in ("fedpara", "pfedpara")
    if name in ("fast", "slow_local"):
        return period_of(experiment.beta) > 1
    if name in ("personal_strength", "last_epochs", "own_test"):
        return experiment.personal != "none"
    return True


def _show(experiment: Experiment, name: str) -> str:
    value = getattr(experiment, name)
    if name == "beta":
        value = "1" if (period := period_of(value)) == 1 else f"1/{period}"
    return f"{name.replace('_', '-')} {value:g}" if isinstance(value, float) else f"{name.replace('_', '-')} {value}"
