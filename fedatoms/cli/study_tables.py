"""The table of a search: its trials from best to worst, in 80 columns."""

from dataclasses import replace

from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedatoms.core.lookup import counted
from fedatoms.core.scales import Scale
from fedatoms.experiment.fields import LENGTH_FIELDS
from fedatoms.runs.comparison import averaged
from fedatoms.tuning.space import written
from fedatoms.tuning.studies import Study, Trial

SHOWN = 40  # trials, at most


def study_table(study: Study) -> Table:
    """Makes the table of a study: rank, settings, score, rounds and state of each trial."""
    table = Table(caption=_note(study), caption_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("trial", justify="right", no_wrap=True)
    table.add_column("settings", overflow="fold")
    for head in ("score", "rounds", "state"):
        table.add_column(head, justify="left" if head == "state" else "right", no_wrap=True)
    ranked = [trial for trial in study.ranked if trial.state != "repeated"]
    for rank, trial in enumerate(ranked[:SHOWN], 1):
        table.add_row(*_row(trial, rank, study.metric))
    return table


def _note(study: Study) -> str:
    """Says of what, over which rounds and of how many seeds the scores are."""
    over = f", mean of {counted(len(study.plan.seeds), 'seed')}" if len(study.plan.seeds) > 1 else ""
    lengths = [{name: value for name, value in each.settings.items() if name in LENGTH_FIELDS} for each in study.trials]
    mean = averaged(replace(study.plan.experiment, **each) for each in lengths or [{}])  # type: ignore[arg-type]
    more = f"; {len(study.trials) - SHOWN} more in the file" if len(study.trials) > SHOWN else ""
    return f"{study.metric.axis} of `{study.model}` on held-out images, {mean}{over}{more}"


def _row(trial: Trial, rank: int, metric: Scale) -> tuple[str, ...]:
    known = trial.score is not None
    score = metric.number(trial.score) if trial.score is not None else ""
    return (
        str(rank) if known else "",
        f"{trial.number:03d}",
        written(trial.settings),
        score,
        str(trial.rounds),
        trial.state,
    )
