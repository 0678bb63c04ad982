"""fedatoms reproduce: the paper's tables and figures."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedatoms.cli.args import before_flags, parse
from fedatoms.cli.console import say, terminal, told_to_repeat
from fedatoms.evidence.paper.studies import Study, studies

if TYPE_CHECKING:
    from rich.console import Console

    from fedatoms.evidence.reproduce.budget import Limit
    from fedatoms.evidence.reproduce.plan import Job, Reproduce
    from fedatoms.evidence.results.find import Found
    from fedatoms.runs.results import Result


def command(words: list[str], clock: Callable[[], float] = time.monotonic) -> int:
    """Runs what is missing of some studies, then shows the paper's numbers beside ours."""
    began = clock()
    from fedatoms.evidence.reproduce.budget import Limit, end_of
    from fedatoms.evidence.reproduce.plan import Reproduce, check_jobs, chosen, jobs, lacking, missing, out_of

    if not words or "-h" in words or "--help" in words:
        _help()
        parse("reproduce", ["--help"], Reproduce())
    names, flags = before_flags(words)
    if not names:
        raise ValueError(f"name a study first: {', '.join(studies())} or all.")
    settings = parse("reproduce", flags, Reproduce())
    limit, wanted = Limit(end_of(settings, began), clock), chosen(names)
    asked, out = jobs(wanted, settings), Path(out_of(settings))
    found, console = _find(out), terminal()
    for note in found.left_out:
        if note.path.name != "experiment.json":  # of a run that is not finished: it goes on if it is asked for
            say(f"{note.path}: {note.reason}")
    left = missing(asked, found)
    check_jobs(left, settings)
    lacks = lacking(left, settings)
    for line in lacks.values():
        say(line)
    ready = [job for job in left if lacks.keys().isdisjoint(job.datasets)]
    if lacks and not (ready or found.runs or found.measures):
        return 2
    how = " (quick: digits stand in, a few rounds)" if settings.quick else ""
    console.print(f"{len(left)} of {len(asked)} to do{how}, results in {out}", highlight=False)
    later, failed = _do(ready, [run.result for run in found.runs], settings, limit, console)
    _show(wanted, asked, settings, console)
    if later:
        say(later)
    if lacks:
        say(f"{len(left) - len(ready)} of {len(left)} skipped: no {' and no '.join(lacks)} in {settings.data_dir}.")
    return 1 if failed or lacks else 0


def _help() -> None:
    print("fedatoms reproduce STUDY ... [--data-dir FOLDER] [--seeds 0,1,2] [--only PATTERN] [--minutes N] [--quick]\n")
    for study in studies().values():
        print(f"  {study.name:21} {study.title}")
    print("  all                   all of them\n")


def _find(out: Path) -> "Found":
    from fedatoms.evidence.results.find import find

    return find([out] if out.exists() else [])


def _do(
    jobs: Sequence["Job"], results: Sequence["Result"], settings: "Reproduce", limit: "Limit", console: "Console"
) -> tuple[str, bool]:
    """Does jobs, the most valuable first, and says which failed; returns what to say of those left, and if any did."""
    from fedatoms.cli.tables import overall
    from fedatoms.evidence.reproduce.budget import begun, by_worth, informed, left_over
    from fedatoms.evidence.reproduce.plan import seeds_of
    from fedatoms.evidence.reproduce.work import here, is_done, on_ray

    if not jobs:
        return "", False
    jobs = by_worth(jobs, seeds_of(settings), begun(jobs), [result.experiment for result in results])
    limit = informed(limit, settings, jobs, results)
    work = on_ray if settings.on == "ray" else partial(here, limit=limit)
    with overall(console, {job.name: job.weight for job in jobs}) as tell, told_to_repeat():
        over = list(work(jobs, lambda job, share: tell(job.name, share)))
    failed = [done for done in over if done.failure and not is_done(done.job)]  # by another process, meanwhile
    for each in failed:
        say(f"{each.job.name} failed: {each.failure}")
    left = [job for job in jobs if job.name not in {done.job.name for done in over}]
    said = f"{len(over) - len(failed)} done, {left_over(left, limit, settings.minutes)}" if left else ""
    return said, bool(failed)


def _show(wanted: Sequence[Study], asked: Sequence["Job"], settings: "Reproduce", console: "Console") -> None:
    """Prints what there is now of the studies, and writes the page of all results."""
    from fedatoms.cli.tables import sheet
    from fedatoms.evidence.page.assemble import report
    from fedatoms.evidence.reproduce.plan import out_of
    from fedatoms.evidence.reproduce.terminal_tables import terminal_tables

    out, data_dir = Path(out_of(settings)), Path(settings.data_dir)
    found = _find(out)
    for made in terminal_tables(wanted, asked, found, quick=settings.quick):
        console.print(sheet(made))
        console.print()
    if found.runs or found.measures:
        page = report([out], out / "report.html", data_dir if data_dir.is_dir() else None).page
        console.print(f"page: {page}", highlight=False, soft_wrap=True)
