"""fedatoms tune: a search over any flags, scored on held-out images."""

import shlex
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import UseAppendAction, arg

from fedatoms.cli.args import GROUPS, before_flags, flags, typed, updated
from fedatoms.cli.console import line, repeatable, say, show_table, suggest, terminal, watching_many
from fedatoms.cli.parsing import Job, Options, as_typed
from fedatoms.cli.run import START, starting_point
from fedatoms.core.lookup import as_word
from fedatoms.experiment.fields import Experiment, Implied
from fedatoms.experiment.relevance import idle
from fedatoms.experiment.weights import changed
from fedatoms.tuning.settings import Tune

if TYPE_CHECKING:
    from fedatoms.tuning.studies import Plan, Study

HOLDOUT = 0.1
OVER = arg(
    metavar="FLAG=VALUES",
    help="What to search, once for each flag: values as in lr=0.05,0.1, or a range as in lr=0.01..1 or lr=0.01..1:log.",
    help_behavior_hint="",
)


def options(words: Sequence[str]) -> Options:
    """Returns the options: a starting point, what to search, how, and the flags of an experiment."""
    first = "".join(before_flags(words)[:1])
    start = starting_point(first)
    default = replace(start, holdout=start.holdout or HOLDOUT)

    def tune(
        begin: Annotated[str, START] = "",
        /,
        *,
        over: Annotated[UseAppendAction[tuple[str, ...]], OVER] = (),
        asked: Annotated[object, flags(Tune())],
        given: Annotated[object, flags(default, GROUPS)],
    ) -> Job:
        """Tries settings on held-out images, and prints them by rank and the command of the best.

        Lists are a grid that is tried whole; a range is searched by Optuna. Each trial
        is a run in --out; typed again, a search goes on where it was stopped. For
        example:
          fedatoms tune fedavg-atoms --over lr=0.01..1:log --over epochs=1,5
        """
        experiment = updated(default, given)
        if not typed("--init", words):
            experiment = changed(default, {name: value for name, value in vars(experiment).items() if name != "init"})

        def job() -> int:
            if begin != first:
                raise ValueError(
                    f"'{begin}' comes after flags. Name a preset or file first: fedatoms tune {as_word(begin)} ..."
                )
            if typed("--seed", words) and typed("--seeds", words):
                raise ValueError("--seeds names all seeds. Leave --seed out.")
            plan = _plan(over, experiment, updated(Tune(), asked))
            if notice := idle([experiment, *_alone(plan)], [default]):
                say(as_typed(notice))
            return _tune(first, start, plan, words)

        return job

    return tune


def command_of(first: str, start: Experiment, experiment: Experiment) -> str:
    """Writes an experiment as the command that runs it: a starting point, and what differs from it.

    >>> command_of("feddc", starting_point("feddc"), replace(starting_point("feddc"), lr=0.3, fixed="head"))
    'fedatoms run feddc --fixed head --lr 0.3'
    """
    words = ["fedatoms", "run", *([first] if first else [])]
    for name in (field.name for field in fields(Experiment) if field.name not in ("name", "out")):
        value = getattr(experiment, name)
        if value != getattr(start, name) and not isinstance(value, Implied):
            words += _flag(name.replace("_", "-"), value)
    return shlex.join(words)


def _flag(name: str, value: object) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    text = str(value)
    return [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]


def _plan(over: Sequence[str], experiment: Experiment, asked: Tune) -> "Plan":
    from fedatoms.experiment.checks import check
    from fedatoms.tuning.space import axes_of
    from fedatoms.tuning.studies import Plan

    check(experiment)
    return Plan(experiment, axes_of(over, experiment), asked)


def _alone(plan: "Plan") -> list[Experiment]:
    """Returns the experiments that differ from that of a plan in one of the values to search."""
    found = ({axis.field: value} for axis in plan.axes for value in axis.ends)
    return [replace(plan.experiment, **each) for each in found]  # type: ignore[arg-type] # as axes were checked


def _tune(first: str, start: Experiment, plan: "Plan", words: Sequence[str]) -> int:
    from fedatoms.tuning.loop import check_plan, search
    from fedatoms.tuning.studies import folder_of

    console = terminal()
    check_plan(plan)
    folder = Path(plan.experiment.out) if typed("--out", words) else folder_of(plan)
    with repeatable(), watching_many(console) as shown:
        study = search(plan, folder, shown, lambda experiment: command_of(first, start, experiment))
    return _show(study, first, start)


def _show(study: "Study", first: str, start: Experiment) -> int:
    from fedatoms.cli.study_tables import study_table
    from fedatoms.core.run_files import STUDY
    from fedatoms.tuning.loop import best_of

    console = terminal()
    show_table(console, study_table(study))
    line(console, f"file: {study.folder / STUDY}")
    if study.best is None:
        line(console, "no trial finished: nothing is best. Search other values.")
        return 1
    others = ", ".join(map(str, study.plan.seeds[1:]))
    what = f"the best on the test images{f'; also with --seed {others}' if others else ''}"
    suggest(console, (command_of(first, start, best_of(study)), what))
    return 0
