"""Fields that matter only beside some value of another one: what is given elsewhere is told in one line. No torch."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from fedatoms.algorithms import TABLE as ALGORITHMS
from fedatoms.experiment.fields import Experiment, Implied
from fedatoms.experiment.parse import period_of
from fedatoms.objectives import TABLE as OBJECTIVES
from fedatoms.personal import TABLE as PERSONAL

OF_PARTITION: dict[str, tuple[str, ...]] = {  # the fields that matter with a partition alone
    "dirichlet": ("dirichlet", "unbalanced"),
    "shards": ("classes_per_client", "distinct"),
    "iid": (),
}


class Beside(NamedTuple):
    """Some fields, where they matter, the field that decides it, and what to use there."""

    fields: tuple[str, ...]
    matter: Callable[[Experiment], bool]
    decides: str
    instead: str


def _of_partition(name: str) -> Beside:
    return Beside(OF_PARTITION[name], lambda one: one.partition == name, "partition", f"partition={name}")


def _has_atoms(experiment: Experiment) -> bool:
    return experiment.parametrisation == "atoms"


def _may_have_atoms(experiment: Experiment) -> bool:
    return _has_atoms(experiment) or ":" in experiment.model  # a factory may return a network that has


BESIDE = (
    *map(_of_partition, OF_PARTITION),
    Beside(("atoms", "init"), _has_atoms, "parametrisation", "parametrisation=atoms"),
    Beside(("atoms_lr", "atoms_decay"), _may_have_atoms, "parametrisation", "parametrisation=atoms"),
    Beside(("where",), lambda one: one.parametrisation != "plain", "parametrisation", "parametrisation=atoms"),
    Beside(("gamma",), lambda one: "fedpara" in one.parametrisation, "parametrisation", "parametrisation=fedpara"),
    Beside(("fast", "slow_local"), lambda one: period_of(one.beta) > 1, "beta", "for example beta=1/5"),
)


def with_strengths_that_matter(experiments: Sequence[Experiment]) -> list[Experiment]:
    """Leaves strengths out where a grid's method has none but another one of it has; what is then the same, once.

    >>> some = [Experiment(algorithm=name, strength=mu) for name in ("fedavg", "fedprox") for mu in (0.1, 0.5)]
    >>> [(one.algorithm, one.strength) for one in with_strengths_that_matter(some)]
    [('fedavg', None), ('fedprox', 0.1), ('fedprox', 0.5)]
    """
    for table in (ALGORITHMS, PERSONAL, OBJECTIVES):
        names = [getattr(one, table.field) for one in experiments]
        without = {name for name in names if name in table.methods and table.methods[name].strength is None}
        if without.issuperset(names):
            continue
        found = list[Experiment]()
        for one, name in zip(experiments, names, strict=True):
            kept = replace(one, **{table.strength: None}) if name in without else one  # type: ignore[arg-type]
            if name not in without or kept not in found:
                found.append(kept)
        experiments = found
    return list(experiments)


def idle(experiments: Sequence[Experiment], starts: Sequence[Experiment]) -> str:
    """Says which values change nothing in any of some experiments, though no starting point has them; empty if none.

    Several such values are refused: runs that differ in nothing else would be the same. A single one is no mistake
    that costs anything, and commands that were written for older runs may have it.

    >>> idle([Experiment(atoms=6)], [Experiment()])
    'atoms=6 changes nothing with parametrisation=plain. Leave it out, or use parametrisation=atoms.'
    >>> idle([Experiment(atoms=6), Experiment(atoms=6, parametrisation="atoms")], [Experiment()])
    ''
    >>> idle([Experiment(dirichlet=0.1), Experiment(dirichlet=1.0)], [Experiment()])
    Traceback (most recent call last):
    ...
    ValueError: dirichlet=0.1 changes nothing with partition=shards. Leave it out, or use partition=dirichlet.
    """
    told = []
    for each in (each for each in BESIDE if not any(map(each.matter, experiments))):
        for name in each.fields:
            if given := [one for one in experiments if _is_given(name, one, starts)]:
                told.append(_sentence(each, name, given[0]))
                if len({getattr(one, name) for one in experiments}) > 1:
                    raise ValueError(told[-1])
    return " ".join(told)


def _is_given(name: str, experiment: Experiment, starts: Sequence[Experiment]) -> bool:
    value = getattr(experiment, name)
    return not isinstance(value, Implied) and all(value != getattr(start, name) for start in starts)


def _sentence(each: Beside, name: str, experiment: Experiment) -> str:
    value = getattr(experiment, name)
    what = f"`{name}`" if isinstance(value, bool) else f"{name}={value}"
    there = f"{each.decides}={getattr(experiment, each.decides)}"
    return f"{what} changes nothing with {there}. Leave it out, or use {each.instead}."
