"""fedatoms run: one experiment, or the rest of one."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from fedatoms.cli.args import GROUPS, before_flags, flags, typed, updated, value_of
from fedatoms.cli.console import line, resumable, say, show_table, suggest, terminal, watching
from fedatoms.cli.parsing import Job, Options, as_typed
from fedatoms.cli.processes import joined
from fedatoms.core.lookup import as_word, counted
from fedatoms.experiment.checks import check
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import load, load_run
from fedatoms.experiment.identities import run_name
from fedatoms.experiment.presets import preset
from fedatoms.experiment.relevance import idle
from fedatoms.experiment.weights import changed

if TYPE_CHECKING:
    from fedatoms.runs.results import Result

START = arg(metavar="[PRESET|FILE]", help="A preset, or a saved experiment.json.", help_behavior_hint="")
RESUME = arg(metavar="FOLDER", help="Continue the run in this folder from its last checkpoint.", help_behavior_hint="")


def options(words: Sequence[str]) -> Options:
    """Returns the options; their defaults are those of the preset, file or run that the words begin with."""
    first, folder = "".join(before_flags(words)[:1]), value_of("--resume", words)
    default = starting_point(first) if folder is None else load_run(Path(folder))

    def run(
        start: Annotated[str, START] = "",
        /,
        *,
        resume: Annotated[str, RESUME] = "",
        given: Annotated[object, flags(default, GROUPS)],
    ) -> Job:
        """Trains one experiment: a preset (`fedatoms presets`) or a file, changed by flags.

        With --resume, a run continues where it stopped, bit for bit; --rounds asks for more.
        """
        experiment = updated(default, given)
        if not typed("--init", words):
            experiment = changed(default, {name: value for name, value in vars(experiment).items() if name != "init"})

        def job() -> int:
            if start != first:
                raise ValueError(
                    f"'{start}' comes after flags. Name a preset or file first: fedatoms run {as_word(start)} ..."
                )
            if start and resume:
                raise ValueError(f"--resume continues a run as it is. Leave '{start}' out.")
            if resume:
                return _resume(Path(resume), default, experiment)
            check(experiment)
            return _run(experiment, idle([experiment], [default]))

        return job

    return run


def starting_point(name: str) -> Experiment:
    """Returns the experiment that a word names: a preset or a file; the defaults without a word.

    >>> starting_point("feddc").algorithm
    'feddc'
    """
    if Path(name).is_dir() and name:
        raise ValueError(f"{name} is a folder. Continue its run with `fedatoms run --resume {as_word(name)}`.")
    if name.endswith(".json"):
        return load(Path(name))
    return preset(name) if name else Experiment()


def _run(experiment: Experiment, notice: str) -> int:
    from fedatoms.runs.comparison import existing
    from fedatoms.runs.execute import Engine, run
    from fedatoms.runs.together import assist, check_alike, dismiss, here

    home = Path(experiment.out) / run_name(experiment)
    with joined() as peers, resumable(home):
        check_alike(peers, experiment)
        if peers.rank:
            assist(peers, experiment, home)
            return 0
        if notice:
            say(as_typed(notice))
        if (result := existing(experiment)) is not None:
            dismiss(peers)
            say(f"{home} holds this run already: nothing is run again.")
            return _show(result, home)
        with watching(terminal(), home.name, experiment.rounds) as watch:
            result = run(experiment, watch=watch, say=say, engine=Engine(here(peers), peers=peers))
    return _show(result, home)


def _resume(home: Path, before: Experiment, after: Experiment) -> int:
    from fedatoms.runs.execute import Engine, resume
    from fedatoms.runs.together import assist, check_alike, here

    changes = {name: value for name, value in dataclasses.asdict(after).items() if value != getattr(before, name)}
    with joined() as peers, resumable(home):
        check_alike(peers, after, folder=str(home))
        if peers.rank:
            assist(peers, after, home)
            return 0
        engine = Engine(here(peers), peers=peers) if peers.size > 1 else None
        with watching(terminal(), home.name, after.rounds) as watch:
            result = resume(home, changes, watch=watch, say=lambda text: say(as_typed(text)), engine=engine)
    return _show(result, home)


def _show(result: "Result", home: Path) -> int:
    from fedatoms.cli.result_tables import tables
    from fedatoms.experiment.identities import resumable as may_change
    from fedatoms.runs.comparison import compare
    from fedatoms.runs.spent import privacy_line

    console, rounds = terminal(), result.experiment.rounds
    for table in tables(compare([result]), f"{home.name}: {counted(rounds, 'round')}"):
        show_table(console, table)
    if private := privacy_line(result):
        line(console, private)
    line(console, f"files: {home}")
    more = [(f"fedatoms run --resume {as_word(home)} --rounds {2 * rounds}", "more rounds")]
    grows = "rounds" in may_change(result.experiment)
    suggest(console, (f"fedatoms report {as_word(home.parent)}", "all its runs on one page"), *(more if grows else []))
    return 0
