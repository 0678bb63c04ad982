"""Names of experiments for people: the method, the setting, and what differs from other experiments."""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fedatoms.algorithms import TABLE as ALGORITHMS
from fedatoms.experiment.fields import EXECUTION_FIELDS, Experiment
from fedatoms.experiment.parse import is_private, period_of
from fedatoms.experiment.relevance import OF_PARTITION
from fedatoms.experiment.unusual import privacy_words

_METHOD = {"algorithm", "parametrisation", "atoms", "fixed", "personal", "aggregation", "uploads"}  # always in a name
_ONLY_WITH_ATOMS = {"init", "atoms_lr", "atoms_decay", "where"}
_SETTING = {"dataset", "holdout", "partition", "clients"}.union(*OF_PARTITION.values())
_SETTING |= {"attack", "dp_epsilon", "dp_noise", "dp_delta"}  # what was done to a run, and none of its merits
_NEVER = _METHOD | _SETTING | {"seed", *EXECUTION_FIELDS}  # the others are named where they differ
_NAMED = [field.name for field in dataclasses.fields(Experiment) if field.name not in _NEVER]


def setting(experiment: Experiment) -> str:
    """Returns the data set of an experiment and its partition over clients.

    >>> setting(Experiment(classes_per_client=3))
    'digits, 20 clients with 3 classes each'
    >>> setting(Experiment(partition="iid", holdout=0.1))
    'digits, 20 clients, iid (scored on held-out images)'
    """
    (dataset, clients, spread), rest = _place(experiment)
    link = " with" if experiment.partition == "shards" else ","
    more = f" ({', '.join(rest)})" if rest else ""
    return f"{dataset}, {clients}{link} {spread}{more}"


def _place(experiment: Experiment) -> tuple[list[str], list[str]]:
    """Returns the parts of a setting: data set, clients and partition; and what most settings do not have."""
    spread = {
        "iid": "iid",
        "shards": f"{experiment.classes_per_client} classes each",
        "dirichlet": f"Dirichlet {experiment.dirichlet:g}",
    }[experiment.partition]
    rest = [f"sizes {experiment.unbalanced:g}"] if experiment.unbalanced and experiment.partition == "dirichlet" else []
    rest += ["distinct"] if experiment.distinct and experiment.partition == "shards" else []
    rest += ["scored on held-out images"] if experiment.holdout else []
    rest += [f"attack {experiment.attack}"] if experiment.attack else []
    return [experiment.dataset, f"{experiment.clients} clients", spread], [*rest, *_privacy(experiment)]


def _privacy(experiment: Experiment) -> list[str]:
    """Says what privacy was asked for; of a given noise also how often it is used, as that decides what it is worth."""
    at = [f"delta {experiment.dp_delta:g}"] if is_private(experiment) else []
    often = [f"{experiment.rounds} rounds of {experiment.fraction:g}"] if experiment.dp_noise is not None else []
    return [*privacy_words(experiment), *at, *often]


def labels(experiments: Sequence[Experiment]) -> list[str]:
    """Names experiments of one setting: the method, then all fields that vary among them.

    >>> labels([Experiment(), Experiment(parametrisation="atoms"), Experiment(lr=0.5)])
    ['fedavg, lr 0.1', 'fedavg + 9 atoms, lr 0.1', 'fedavg, lr 0.5']
    """
    varied = [name for name in _NAMED if len(_values(experiments, name)) > 1]
    return [", ".join([method_name(one), *(_show(one, n) for n in varied if _matters(one, n))]) for one in experiments]


def distinct_names(experiments: Sequence[Experiment], among: Sequence[Experiment] = ()) -> tuple[str, list[str]]:
    """Returns the setting that all share, if any, and names: the method, unusual values, and the setting if not shared.

    A value is unusual unless more than half of these experiments and those ``among`` them have it.

    >>> distinct_names([Experiment(), Experiment(lr=0.5), Experiment(algorithm="fedprox")])
    ('digits, 20 clients with 2 classes each', ['fedavg', 'fedavg, lr 0.5', 'fedprox'])
    >>> distinct_names([Experiment(), Experiment(partition="iid")])[1]
    ['fedavg; digits, 20 clients with 2 classes each', 'fedavg; digits, 20 clients, iid']
    """
    usual = {name: _majority(_values([*experiments, *among], name)) for name in _NAMED}
    settings = [setting(one) for one in experiments]
    shared = settings[0] if len(set(settings)) == 1 else ""
    unusual = [[_show(one, name) for name in _NAMED if _is_unusual(one, name, usual)] for one in experiments]
    names = [", ".join([method_name(one), *fields]) for one, fields in zip(experiments, unusual, strict=True)]
    return shared, names if shared else [f"{name}; {where}" for name, where in zip(names, settings, strict=True)]


def differences(mine: Experiment, base: Experiment) -> str:
    """Writes what an experiment has, and in brackets what a baseline has, where they differ and it matters.

    >>> differences(Experiment(parametrisation="atoms", lr=0.3), Experiment())
    '9 atoms (plain), lr 0.3 (0.1)'
    >>> differences(Experiment(algorithm="scaffold"), Experiment())
    'scaffold (fedavg)'
    """
    words = [f"{ours} ({theirs})" for ours, theirs in _methods(mine, base)]
    words += [f"{ours} ({theirs.split(' ', 1)[1]})" for ours, theirs in _fields(mine, base)]
    return ", ".join(words)


def unlike(mine: Experiment, base: Experiment) -> list[tuple[str, str]]:
    """Returns what an experiment has, and what another has, where they differ and it matters: method and setting.

    >>> unlike(Experiment(lr=0.3, partition="iid", holdout=0.1), Experiment())
    [('lr 0.3', 'lr 0.1'), ('iid', '2 classes each'), ('scored on held-out images', 'not scored on held-out images')]
    """
    (ours, more), (theirs, others) = _place(mine), _place(base)
    where = [both for both in zip(ours, theirs, strict=True) if both[0] != both[1]]
    rest = [(each, f"not {each}") for each in more if each not in others]
    rest += [(f"not {each}", each) for each in others if each not in more]
    return [*_methods(mine, base), *_fields(mine, base), *where, *rest]


def _methods(mine: Experiment, base: Experiment) -> list[tuple[str, str]]:
    both = [(one.algorithm, layers(one), one.personal) for one in (mine, base)]
    return [(ours, theirs) for ours, theirs in zip(*both, strict=True) if ours != theirs]


def _fields(mine: Experiment, base: Experiment) -> list[tuple[str, str]]:
    fields = [
        name for name in (*_NAMED, "fixed", "aggregation", "uploads") if _matters(mine, name) and _matters(base, name)
    ]
    shown = [(_show(mine, name), _show(base, name)) for name in fields]
    return [(ours, theirs) for ours, theirs in shown if ours != theirs]


def layers(experiment: Experiment) -> str:
    """Names what the layers of a network are made of.

    >>> layers(Experiment()), layers(Experiment(parametrisation="atoms"))
    ('plain', '9 atoms')
    """
    kind = experiment.parametrisation
    return f"{experiment.atoms} atoms" if kind == "atoms" else kind


def seeds(numbers: Sequence[int]) -> str:
    """Writes a list of seeds.

    >>> seeds([0]), seeds([0, 1])
    ('seed 0', 'seeds 0, 1')
    """
    return f"seed{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def natural_order(text: str) -> list[tuple[int, str]]:
    """Returns a sort key in which digits count as numbers.

    >>> sorted(["run-10", "run-2", "run"], key=natural_order)
    ['run', 'run-2', 'run-10']
    """
    parts = re.split(r"(\d+)", text)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts if part]


def method_name(experiment: Experiment) -> str:
    """Returns the algorithm, the parametrisation, the fixed groups, the personalised method, and unusual uploads.

    >>> method_name(Experiment(parametrisation="atoms", personal="local-atoms"))
    'fedavg + 9 atoms, local-atoms'
    >>> method_name(Experiment(parametrisation="atoms", fixed="atoms"))
    'fedavg + 9 atoms, fixed atoms'
    >>> method_name(Experiment(aggregation="krum:1", uploads="8-bit"))
    'fedavg, krum:1, 8-bit uploads'
    >>> method_name(Experiment(aggregation="my.rules:middle"))
    'fedavg, middle'
    """
    kind = experiment.parametrisation
    layers = {"plain": "", "atoms": f" + {experiment.atoms} atoms"}.get(kind, f" + {kind}")
    fixed = f", fixed {experiment.fixed}" if experiment.fixed else ""
    own = "" if experiment.personal == "none" else f", {experiment.personal}"
    rule = "" if experiment.aggregation == Experiment.aggregation else f", {_rule(experiment.aggregation)}"
    uploads = "" if experiment.uploads == Experiment.uploads else f", {experiment.uploads} uploads"
    return f"{experiment.algorithm}{layers}{fixed}{own}{rule}{uploads}"


def _rule(aggregation: str) -> str:
    """Names an aggregation rule; one of a module of one's own by its function alone."""
    function = aggregation.rpartition(":")[2]
    return function if function.isidentifier() else aggregation


def atoms_used(experiments: Iterable[Experiment]) -> str:
    """Returns the numbers of atoms, each with its learning rate if that is not the one of the other parameters.

    >>> fast = Experiment(parametrisation="atoms", atoms=25, atoms_lr=2.0)
    >>> atoms_used([fast, Experiment(parametrisation="atoms"), Experiment()])
    '9 atoms or 25 atoms with 2 times the learning rate'
    """
    found = sorted({(one.atoms, one.atoms_lr) for one in experiments if one.parametrisation == "atoms"})
    return " or ".join(
        f"{number} atoms" + (f" with {rate:g} times the learning rate" if rate != 1 else "") for number, rate in found
    )


def _values(experiments: Sequence[Experiment], name: str) -> Counter[object]:
    """Counts the values of a field over the experiments that it affects."""
    return Counter(getattr(one, name) for one in experiments if _matters(one, name))


def _majority(values: Counter[object]) -> set[object]:
    """Returns the value of more than half, if there is one."""
    return {value for value, count in values.items() if 2 * count > values.total()}


def _is_unusual(experiment: Experiment, name: str, usual: Mapping[str, set[object]]) -> bool:
    return _matters(experiment, name) and getattr(experiment, name) not in usual[name]


def _matters(experiment: Experiment, name: str) -> bool:
    """Returns whether a field affects an experiment."""
    if name in _ONLY_WITH_ATOMS:
        return experiment.parametrisation == "atoms"
    if name == "controls":
        return ALGORITHMS.has(experiment.algorithm, "controls", outside=True)
    if name == "gamma":
        return experiment.parametrisation in ("fedpara", "pfedpara")
    if name in ("fast", "slow_local"):
        return period_of(experiment.beta) > 1
    if name in ("personal_strength", "last_epochs", "own_test"):
        return experiment.personal != "none"
    return True


def _show(experiment: Experiment, name: str) -> str:
    """Writes a field and its value.

    >>> _show(Experiment(weights_sha256="5793" * 16), "weights_sha256"), _show(Experiment(), "fixed")
    ('weights 57935793', 'fixed none')
    """
    value = getattr(experiment, name)
    if name == "weights_sha256":
        name, value = "weights", value[:8]
    if value == "":
        value = "none"
    if name == "beta":
        value = "1" if (period := period_of(value)) == 1 else f"1/{period}"
    if name == "aggregation":
        value = _rule(value)
    return f"{name.replace('_', '-')} {value:g}" if isinstance(value, float) else f"{name.replace('_', '-')} {value}"
