"""Which settings a trial has, and whether it is behind: Optuna's answers, as functions of the trials before it.

Every answer comes from a new study in memory that is told all earlier trials, with a sampler whose seed is the address
of the trial. So nothing but the study's own file is needed to go on, and what a killed search proposes next is what it
would have proposed.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from fedatoms.core.extras import need
from fedatoms.core.randomness import address
from fedatoms.tuning.space import Axis, Between, Settings, points
from fedatoms.tuning.studies import Plan, Study, Trial

if TYPE_CHECKING:
    import optuna

STARTUP = 5  # trials that finish before one is stopped early
WARMUP = 10  # no trial is stopped in the first tenth of its rounds
BITS = 32  # of a seed of NumPy's, which Optuna draws with


class Proposal(NamedTuple):
    """The settings of the next trial, and whether it is behind once it has a score."""

    number: int
    settings: Settings
    is_behind: Callable[[int, float], bool]  # step, score; steps rise


def check_optuna(plan: Plan) -> None:
    """Refuses a search that needs Optuna where it is not installed; a grid without pruning needs none."""
    if _needs_optuna(plan):
        others = ", or use --prune none: a grid of lists can do without" if plan.is_grid else ""
        need("this search", "tune", "optuna", otherwise=others)


def propose(study: Study) -> Proposal:
    """Returns the next trial of a study."""
    plan, number = study.plan, len(study.trials)
    fixed = next(islice(points(plan.axes), number, None)) if plan.is_grid else None
    if fixed is not None and not _needs_optuna(plan):
        return Proposal(number, fixed, lambda step, score: False)
    trial = _ask(study, number, fixed)
    settings = {axis.field: trial.params[axis.field] for axis in plan.axes}
    return Proposal(number, settings, _judge(trial) if plan.tune.prune == "median" else lambda step, score: False)


def is_pruned(plan: Plan) -> bool:
    """Says whether a trial of a plan may be stopped early: none is, before enough others have finished."""
    return plan.tune.prune == "median" and plan.trials > STARTUP


def step_of(plan: Plan, run: int, rounds: int) -> int:
    """Returns when in a trial a score is known: after some rounds of a run, whose seed is that of other trials' too."""
    return run * longest(plan) + rounds


def longest(plan: Plan) -> int:
    """Returns the most rounds that a run of a study may have."""
    searched = [end for axis in plan.axes if axis.field == "rounds" for end in axis.ends]
    return max(each for each in (*searched, plan.experiment.rounds) if isinstance(each, int))


def _needs_optuna(plan: Plan) -> bool:
    return not plan.is_grid or is_pruned(plan)


def _judge(trial: "optuna.trial.Trial") -> Callable[[int, float], bool]:
    def is_behind(step: int, score: float) -> bool:
        trial.report(score, step)
        return bool(trial.should_prune())

    return is_behind


def _ask(study: Study, number: int, fixed: Settings | None) -> "optuna.trial.Trial":
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    plan = study.plan
    told = optuna.create_study(
        direction="maximize" if study.metric.higher else "minimize",
        sampler=optuna.samplers.TPESampler(seed=address(plan.tune.search_seed, "tune", number) % 2**BITS),
        pruner=optuna.pruners.MedianPruner(STARTUP, n_warmup_steps=longest(plan) // WARMUP),
    )
    ways = {axis.field: _distribution(axis) for axis in plan.axes}
    told.add_trials([_told(study, trial, ways) for trial in study.trials])
    if fixed is not None:
        told.enqueue_trial(dict(fixed))
    return told.ask(ways)


def _distribution(axis: Axis) -> "optuna.distributions.BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not isinstance(axis, Between):
        return CategoricalDistribution(axis.values)
    if isinstance(axis.low, int) and isinstance(axis.high, int):
        return IntDistribution(axis.low, axis.high, log=axis.log)
    return FloatDistribution(axis.low, axis.high, log=axis.log)


def _told(
    study: Study, trial: Trial, ways: "dict[str, optuna.distributions.BaseDistribution]"
) -> "optuna.trial.FrozenTrial":
    """Returns a trial as Optuna knows it; one that failed is the worst of all, so that others keep away from it."""
    from optuna.trial import TrialState, create_trial

    known = trial.curve if trial.state != "failed" else []
    return create_trial(
        state=TrialState.PRUNED if trial.score is None else TrialState.COMPLETE,
        value=trial.score,
        params=dict(trial.settings),
        distributions=ways,
        intermediate_values={step_of(study.plan, point.run, point.rounds): point.score for point in known},
    )


def repeated(trials: Sequence[Trial], settings: Settings) -> Trial | None:
    """Returns an earlier trial of the same settings, which would give the same again."""
    return next((trial for trial in trials if trial.settings == settings and trial.state != "repeated"), None)
