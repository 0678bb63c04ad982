"""What to begin when minutes count: jobs in order of worth, how long one takes, and the next one that fits."""

import math
import statistics
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from fedatoms.evidence.reproduce.plan import Job, Reproduce
from fedatoms.experiment.build import device_of
from fedatoms.experiment.fields import ATOM_FIELDS, Experiment
from fedatoms.experiment.identity import identity, run_folder
from fedatoms.runs.provenance import provenance_of
from fedatoms.runs.results import Result

A_MINUTE = 60.0  # seconds: more than a measure takes that trains no network, on any machine
LAST = 5  # runs that an estimate is the median of: the newest, as code becomes faster


class Took(NamedTuple):
    """How many seconds a job took."""

    job: Job
    seconds: float


class Limit(NamedTuple):
    """When time is over by which clock, how long jobs took on which device, and shares done of those begun."""

    end: float = math.inf
    clock: Callable[[], float] = time.monotonic
    known: Sequence[Took] = ()
    device: str = ""
    begun: Mapping[str, float] = {}


NO_LIMIT = Limit()


def end_of(settings: Reproduce, began: float) -> float:
    """Returns when the time is over of a command that began then, and refuses minutes that no command can have.

    >>> end_of(Reproduce(minutes=2), began=5.0), end_of(Reproduce(), began=5.0)
    (125.0, inf)
    """
    minutes = settings.minutes
    if not 0 <= minutes < math.inf:
        raise ValueError(f"--minutes {minutes:g} is negative or not finite. Use for example 30, or 0 for no limit.")
    if minutes and settings.on == "ray":
        raise ValueError(
            f"--minutes {minutes:g} does not go with --on ray, where all is begun at once. Leave one of them out."
        )
    return began + 60 * minutes if minutes else math.inf


def by_worth(
    jobs: Sequence[Job], seeds: Sequence[int], begun: Collection[str], done: Iterable[Experiment]
) -> list[Job]:
    """Puts jobs into the order of their worth: the first seed of all before the second of any.

    Within a seed runs that were begun, by name, come first, since they are nearly paid; then those whose partner is
    done, which is the same run plain or decomposed; then the others as they come, but each right before its partner.
    """
    known = {(_pair(one), one.seed, one.parametrisation) for one in done}
    places: dict[Hashable, int] = {}
    for place, job in enumerate(jobs):
        places.setdefault(_pair_of(job), place)

    def worth(job: Job) -> tuple[int, bool, bool, int]:
        partner = (_pair_of(job), job.seed, _OTHER.get(job.experiments[0].parametrisation)) if job.experiments else ()
        rank = 0 if job.measure else seeds.index(job.seed)  # measures take the first seed
        return rank, job.name not in begun, partner not in known, places[_pair_of(job)]

    return sorted(jobs, key=worth)


def begun(jobs: Iterable[Job]) -> dict[str, float]:
    """Returns the share of its rounds that each job's last checkpoint has, of those that have one."""
    runs = [(job.name, job.experiments[0]) for job in jobs if not job.measure]
    return {name: share for name, one in runs if (share := _rounds_done(one) / one.rounds)}


def took(results: Iterable[Result], device: str) -> list[Took]:
    """Returns how long the runs took that were made on a device, the oldest first."""
    ours = [one for one in results if one.provenance.get("device") == device]
    ours = sorted(ours, key=lambda one: str(one.provenance.get("time")))
    return [Took(Job("", (one.experiment,)), one.seconds) for one in ours]


def informed(limit: Limit, settings: Reproduce, jobs: Iterable[Job], results: Iterable[Result]) -> Limit:
    """Adds what is known of how long jobs take, if there is a limit."""
    if limit.end == math.inf:
        return limit
    device = str(provenance_of(device_of(Experiment(device=settings.device)))["device"])
    return limit._replace(known=took(results, device), device=device, begun=begun(jobs))


def estimate(job: Job, known: Sequence[Took], begun: Mapping[str, float]) -> float:
    """Returns the seconds that a job should take; without anything known they are infinite.

    They are its local epochs times the seconds of one: in the last few runs of its kind, of those that come nearest to
    it in size; of another kind, or for a measure, in the slowest run of all. Of a run that was begun the rest counts.

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
    """Returns the first job that should end within the seconds that are left, or None.

    While nothing is known the first run is begun, since it can be stopped and tells how long others take; a measure
    cannot be stopped without loss, and is begun only if no run is left.
    """
    if left <= 0:
        return None
    guesses = [(job, estimate(job, known, begun)) for job in jobs]
    fits = [job for job, guess in guesses if guess <= left]
    unknown = sorted((job for job, guess in guesses if guess == math.inf), key=lambda job: bool(job.measure))
    return next(iter([*fits, *unknown]), None)


def left_over(jobs: Sequence[Job], limit: Limit, minutes: float) -> str:
    """Says how what is left comes to its end: by the same command, or with more minutes if none of it fits.

    >>> one = Job("one", (Experiment(),))
    >>> left_over([one], Limit(known=[Took(one, 90.0)]), minutes=1)
    '1 left for the next time, for example one; the shortest should take 1.5 minutes: use --minutes 3.'
    """
    shortest = min(estimate(job, limit.known, limit.begun) for job in jobs) / 60
    said = f"{len(jobs)} left for the next time, for example {jobs[0].name}; "
    if minutes < shortest < math.inf:
        return f"{said}the shortest should take {shortest:.1f} minutes: use --minutes {math.ceil(shortest) + 1}."
    return f"{said}the same command goes on."


_OTHER = {"plain": "atoms", "atoms": "plain"}


def _pair_of(job: Job) -> Hashable:
    return job.typed if job.measure else _pair(job.experiments[0])


def _pair(one: Experiment) -> str:
    """Names a run without its seed, and without its decomposition if it may have a partner that differs in it alone."""
    alone = one.personal != "none" or one.parametrisation not in _OTHER
    return identity(one, without=("seed",) if alone else ("seed", *ATOM_FIELDS))


def _rounds_done(one: Experiment) -> int:
    manifests = (run_folder(one) / "checkpoint").glob("*.json")
    return max((int(path.stem) for path in manifests if path.stem.isdecimal()), default=0)


def _kind(job: Job) -> tuple[str, int, bool, bool]:
    (one,) = job.experiments
    return one.model, one.batch_size, one.parametrisation == "plain", one.personal != "none"


def _rate(each: Took) -> float:
    return each.seconds / each.job.weight
