"""fedatoms reproduce: the paper's tables and figures."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from fedatoms.cli.args import flags, updated
from fedatoms.cli.console import line, overall, repeatable, say, show_table, suggest, terminal
from fedatoms.cli.parsing import Job, Options, as_typed
from fedatoms.core.lookup import as_word
from fedatoms.evidence.paper.study_list import Study, studies

if TYPE_CHECKING:
    from rich.console import Console

    from fedatoms.evidence.reproduce import plan
    from fedatoms.evidence.reproduce.budget import Limit
    from fedatoms.evidence.reproduce.settings import Reproduce
    from fedatoms.evidence.results.finding import Found
    from fedatoms.runs.results import Result

STUDIES = arg(metavar="STUDY ...", help="Tables and figures, by the names above.", help_behavior_hint="")
ABOUT = """Runs what is missing of a study, then shows the paper's numbers beside ours. Studies:

{studies}
  all                   all of them

For example:
  fedatoms reproduce iid --quick
  fedatoms reproduce table1 --data-dir data --seeds 0,1,2"""


def options(words: Sequence[str], clock: Callable[[], float] = time.monotonic) -> Options:
    """Returns the options: studies, and how to run them; a clock for what is limited in time."""
    began = clock()
    from fedatoms.evidence.reproduce.settings import Reproduce

    def reproduce(
        names: Annotated[tuple[str, ...], STUDIES] = (), /, *, given: Annotated[object, flags(Reproduce())]
    ) -> Job:
        return lambda: _reproduce(names, updated(Reproduce(), given), began, clock)

    listed = (f"  {study.name:21} {study.title}" for study in studies().values())
    reproduce.__doc__ = ABOUT.format(studies="\n".join(listed))
    return reproduce


def _reproduce(names: Sequence[str], settings: "Reproduce", began: float, clock: Callable[[], float]) -> int:
    """Runs what is missing of some studies, then shows the paper's numbers beside ours."""
    from fedatoms.core.files import check_folder
    from fedatoms.evidence.reproduce.budget import Limit, end_of
    from fedatoms.evidence.reproduce.plan import check_jobs, chosen, jobs, lacking, missing, out_of, placed

    if not names:
        raise ValueError(f"a study is missing. Name {', '.join(studies())} or all.")
    limit, wanted = Limit(end_of(settings, began), clock), chosen(names)
    settings, devices = placed(settings)
    asked, out = jobs(wanted, settings), Path(out_of(settings))
    found, console = _find(out), terminal()
    for note in found.left_out:
        if not note.reason.startswith(("stopped", "running")):  # such a run continues if it is asked for
            say(f"{note.path}: {note.reason}")
    left = missing(asked, found)
    check_jobs(left, settings)
    lacks = lacking(left, settings)
    for why in lacks.values():
        say(why)
    ready = [job for job in left if lacks.keys().isdisjoint(job.datasets)]
    if lacks and not (ready or found.runs or found.measures):
        return 2
    how = " (quick: digits stand in, a few rounds)" if settings.quick else ""
    if ready:
        check_folder(out)
    line(console, f"{len(left)} of {len(asked)} to do{how}, results in {out}")
    later, failed = _do(ready, [run.result for run in found.runs], settings, limit, console, devices)
    _show(wanted, asked, settings, console)
    if later:
        say(later)
    if lacks:
        say(f"{len(left) - len(ready)} of {len(left)} skipped: no {' and no '.join(lacks)} in {settings.data_dir}.")
    return 1 if failed or lacks else 0


def _find(out: Path) -> "Found":
    from fedatoms.evidence.results.finding import find

    return find([out] if out.exists() else [])


def _do(
    jobs: Sequence["plan.Job"],
    results: Sequence["Result"],
    settings: "Reproduce",
    limit: "Limit",
    console: "Console",
    devices: Sequence[str],
) -> tuple[str, bool]:
    """Does jobs, the most valuable first, and says which failed; returns what to say of those left, and if any did."""
    from fedatoms.evidence.reproduce.budget import begun, by_worth, informed, left_over
    from fedatoms.evidence.reproduce.plan import seeds_of
    from fedatoms.evidence.reproduce.work import here, is_done, on_devices, on_ray

    if not jobs:
        return "", False
    jobs = by_worth(jobs, seeds_of(settings), begun(jobs), [result.experiment for result in results])
    limit = informed(limit, settings, jobs, results)
    one = partial(here, limit=limit, together=settings.together)
    alone = one if len(devices) < 2 else partial(on_devices, limit=limit, devices=devices)
    work = on_ray if settings.on == "ray" else alone
    with overall(console, {job.name: job.weight for job in jobs}) as update, repeatable():
        over, failed = [], []
        for done in work(jobs, lambda job, share: update(job.name, share)):
            over.append(done)
            failed += [done] if done.failure and not is_done(done.job) else []  # by another process, meanwhile
            update(done.job.name, 1.0, failed=done in failed)  # also if it was already done
    for each in failed:
        say(f"{each.job.name} failed: {as_typed(each.failure)}")
    left = [job for job in jobs if job.name not in {done.job.name for done in over}]
    unfinished = f"{len(over) - len(failed)} done, {left_over(left, limit, settings.minutes)}" if left else ""
    return unfinished, bool(failed)


def _show(wanted: Sequence[Study], asked: Sequence["plan.Job"], settings: "Reproduce", console: "Console") -> None:
    """Prints what there is now of the studies, and writes the page of all results."""
    from fedatoms.cli.result_tables import result_table
    from fedatoms.evidence.page.assemble import report
    from fedatoms.evidence.reproduce.plan import out_of
    from fedatoms.evidence.reproduce.tables import terminal_tables

    out, data_dir = Path(out_of(settings)), Path(settings.data_dir)
    found = _find(out)
    for made in terminal_tables(wanted, asked, found, quick=settings.quick):
        shown = result_table(made, console.width)
        if isinstance(shown, str):
            console.print(shown)
        else:
            show_table(console, shown)
        console.print()
    if found.runs or found.measures:
        page = report([out], out / "report.html", data_dir if data_dir.is_dir() else None).page
        line(console, f"page: {page}")
        line(console, f"open: {page.resolve().as_uri()}")
        suggest(console, (f"fedatoms runs {as_word(out)}", "its runs as a table"))
