"""Jobs under a time limit: their order of value, the time each should take, and the next one that fits."""

import math
import statistics
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from fedatoms.core.options import check_range
from fedatoms.core.run_files import checkpoints
from fedatoms.evidence.reproduce.plan import Job
from fedatoms.evidence.reproduce.settings import Reproduce
from fedatoms.experiment.build import device_of
from fedatoms.experiment.fields import ATOM_FIELDS, Experiment
from fedatoms.experiment.identities import identity, run_folder
from fedatoms.runs.provenance import provenance_of
from fedatoms.runs.results import Result

A_MINUTE = 60.0  # seconds: an upper bound for a measure that trains no network
LAST = 5  # newest runs in the median of an estimate, as code becomes faster


class Took(NamedTuple):
    """The seconds that a job took."""

    job: Job
    seconds: float


class Limit(NamedTuple):
    """When time is up by a clock, how long jobs took on a device, and the shares done of started jobs."""

    end: float = math.inf
    clock: Callable[[], float] = time.monotonic
    known: Sequence[Took] = ()
    device: str = ""
    begun: Mapping[str, float] = {}


NO_LIMIT = Limit()


def end_of(settings: Reproduce, began: float) -> float:
    """Returns when the time of a command is up, and refuses minutes that make no sense.

    >>> end_of(Reproduce(minutes=2), began=5.0), end_of(Reproduce(), began=5.0)
    (125.0, inf)
    """
    minutes = settings.minutes
    check_range("minutes", minutes, command="reproduce")
    if minutes and settings.on == "ray":
        raise ValueError(
            f"--minutes {minutes:g} does not go with --on ray, which starts all jobs at once. Leave one of them out."
        )
    return began + 60 * minutes if minutes else math.inf


def by_worth(
    jobs: Sequence[Job], seeds: Sequence[int], begun: Collection[str], done: Iterable[Experiment]
) -> list[Job]:
    """Sorts jobs by value: the first seed of all before the second of any.

    Within a seed, runs that were already started (``begun``, by name) come first; then those whose partner (the same
    run plain or decomposed) is done; then the others in their order, each next to its partner.

    >>> plain, atoms = (Job(kind, (Experiment(parametrisation=kind),)) for kind in ("plain", "atoms"))
    >>> other = Job("other", (Experiment(lr=0.5),))
    >>> [job.name for job in by_worth([plain, other, atoms], [0], begun=(), done=())]
    ['plain', 'atoms', 'other']
    """
    known = {(_pair(one), one.seed, one.parametrisation) for one in done}
    places: dict[Hashable, int] = {}
    for place, job in enumerate(jobs):
        places.setdefault(_pair_of(job), place)

    def worth(job: Job) -> tuple[int, bool, bool, int]:
        partner = (_pair_of(job), job.seed, _OTHER.get(job.experiments[0].parametrisation)) if job.experiments else ()
        rank = seeds.index(job.seed) if job.experiments else 0
        return rank, job.name not in begun, partner not in known, places[_pair_of(job)]

    return sorted(jobs, key=worth)


def begun(jobs: Iterable[Job]) -> dict[str, float]:
    """Returns the share of rounds done of each job that has a checkpoint."""
    runs = [(job.name, job.experiments[0]) for job in jobs if not job.measure]
    return {name: share for name, one in runs if (share := _rounds_done(one) / one.rounds)}


def took(results: Iterable[Result], device: str) -> list[Took]:
    """Returns how long runs on a device took, the oldest first.

    >>> took([], "a GPU")
    []
    """
    ours = [one for one in results if one.provenance.get("device") == device]
    ours = sorted(ours, key=lambda one: str(one.provenance.get("time")))
    known = [(one.experiment, one.own_seconds) for one in ours]
    return [Took(Job("", (experiment,)), seconds) for experiment, seconds in known if seconds is not None]


def informed(limit: Limit, settings: Reproduce, jobs: Iterable[Job], results: Iterable[Result]) -> Limit:
    """Adds the known durations of jobs, if there is a limit."""
    if limit.end == math.inf:
        return limit
    device = str(provenance_of(device_of(Experiment(device=settings.device)))["device"])
    return limit._replace(known=took(results, device), device=device, begun=begun(jobs))


def estimate(job: Job, known: Sequence[Took], begun: Mapping[str, float]) -> float:
    """Returns the seconds that a job should take; infinity if nothing is known.

    These are its local epochs times the seconds of one, in the newest runs of its kind that are nearest to it in size;
    without such runs, or for a measure, in the slowest of all. Of a run that was started only the rest counts.

    >>> one = Job("one", (Experiment(),))
    >>> estimate(one, [Took(one, 8.0)], {}), estimate(one, [Took(one, 8.0)], {"one": 0.75}), estimate(one, [], {})
    (8.0, 2.0, inf)
    """
    if job.measure and not job.experiments:
        return A_MINUTE
    alike = [each for each in known if not job.measure and _kind(each.job) == _kind(job)]
    sizes = [abs(math.log(each.job.weight / job.weight)) for each in alike]
    near = [_rate(each) for each, size in zip(alike, sizes, strict=True) if size == min(sizes)][-LAST:]
    rate = statistics.median(near) if near else max(map(_rate, known), default=math.inf)
    return rate * job.weight * (1 - begun.get(job.name, 0.0)) if rate < math.inf else math.inf


def next_of(jobs: Sequence[Job], known: Sequence[Took], left: float, begun: Mapping[str, float]) -> Job | None:
    """Returns the first job that should finish within the seconds ``left``, or None.

    While no duration is known, the first run is chosen: it can be stopped, and tells how long others take. A measure
    cannot be stopped without loss, and is chosen only if no run is left.

    >>> long, short = Job("long", (Experiment(rounds=90),)), Job("short", (Experiment(rounds=9),))
    >>> next_of([long, short], [Took(short, 5.0)], left=20.0, begun={}).name
    'short'
    """
    if left <= 0:
        return None
    guesses = [(job, estimate(job, known, begun)) for job in jobs]
    fits = [job for job, guess in guesses if guess <= left]
    unknown = sorted((job for job, guess in guesses if guess == math.inf), key=lambda job: bool(job.measure))
    return next(iter([*fits, *unknown]), None)


def left_over(jobs: Sequence[Job], limit: Limit, minutes: float) -> str:
    """Writes how to finish the jobs that are left: with the same command, or with more minutes if none of them fits.

    >>> one = Job("one", (Experiment(),))
    >>> left_over([one], Limit(known=[Took(one, 90.0)]), minutes=1)
    '1 left, for example one; the shortest should take 1.5 minutes: use --minutes 3.'
    """
    shortest = min(estimate(job, limit.known, limit.begun) for job in jobs) / 60
    left = f"{len(jobs)} left, for example {jobs[0].name}; "
    if minutes < shortest < math.inf:
        return f"{left}the shortest should take {shortest:.1f} minutes: use --minutes {math.ceil(shortest) + 1}."
    return f"{left}run the same command again to continue."


_OTHER = {"plain": "atoms", "atoms": "plain"}


def _pair_of(job: Job) -> Hashable:
    return job.typed if job.measure else _pair(job.experiments[0])


def _pair(one: Experiment) -> str:
    """Identifies a run without its seed, and without its decomposition if it may have a plain partner."""
    alone = one.personal != "none" or one.parametrisation not in _OTHER
    return identity(one, without=("seed",) if alone else ("seed", *ATOM_FIELDS))


def _rounds_done(one: Experiment) -> int:
    return max(checkpoints(run_folder(one)), default=0)


def _kind(job: Job) -> tuple[str, int, bool, bool]:
    (one,) = job.experiments
    return one.model, one.batch_size, one.parametrisation == "plain", one.personal != "none"


def _rate(each: Took) -> float:
    return each.seconds / each.job.weight
