"""Private rounds that a run has spent: counted on disk before each of them begins, so that no kill makes one free."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, TypedDict, cast

from msgspec import Meta

from fedatoms.core.files import sync_folder
from fedatoms.core.lookup import counted
from fedatoms.core.records import FORMAT, fit, read_record, sealed
from fedatoms.core.run_files import SPENT
from fedatoms.engine.loop import Progress
from fedatoms.engine.private_round import CLIP, PRIVACY, cost_of, told
from fedatoms.engine.spec import Simulation
from fedatoms.runs.results import Result, write_json
from fedatoms.runs.rounds import read_lines


class _Spent(TypedDict):
    rounds: Annotated[int, Meta(ge=0)]


def spent_rounds(folder: Path, done: int) -> int:
    """Returns how many private rounds a run has begun; it has a model of ``done`` of them."""
    path = folder / SPENT
    if not path.exists() and not done:
        return 0
    way_out = "Its privacy is unknown: restore that file, or start a new run."
    try:
        rounds = fit(read_record(path, must_be_sealed=True), _Spent, str(path))["rounds"]
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}). {way_out}") from None
    if rounds < done:
        raise ValueError(f"{path} says {rounds} rounds, but {done} are done. {way_out}")
    return rounds


def spending(
    folder: Path,
    sim: Simulation,
    rounds: Iterator[Progress],
    done: int,
    until: int,
    ready: Callable[[], None] = lambda: None,
) -> Iterator[Progress]:
    """Counts each private round before it begins, and tells what all that ever began have cost.

    A round that a kill lost may have been seen; it was drawn by itself, so it counts like any other. One for which
    ``ready`` raises has not begun, and costs nothing.
    """
    if sim.privacy is None:
        yield from rounds
        return
    spent = spent_rounds(folder, done)
    for _ in range(done, until):
        ready()
        spent += 1
        write_json(folder / SPENT, sealed({FORMAT: 2, "rounds": spent}))
        sync_folder(folder)
        progress = next(rounds)
        yield progress._replace(record=told(sim, progress.record, spent, progress.record.extra[PRIVACY][CLIP]))


def privacy_of_run(folder: Path, sim: Simulation, done: int) -> dict[str, object]:
    """Returns what a result says of a run's privacy; nothing if it has none."""
    if sim.privacy is None:
        return {}
    cost = {**cost_of(sim, spent_rounds(folder, done)), "sampling probability": sim.fraction}
    return {PRIVACY: {**cost, "neighbours": "one client added or removed"}}


def lost(folder: Path, sim: Simulation, done: int) -> str:
    """Says that private rounds began and were lost, if so: they have cost what others cost."""
    shown = max(done, len(read_lines(folder).rows))  # lines after the last checkpoint were seen, too
    more = 0 if sim.privacy is None else spent_rounds(folder, shown) - done
    return f"epsilon also counts {counted(more, 'private round')} lost by a stop" if more else ""


def epsilon_in(values: object) -> float | None:
    """Returns epsilon of what a result says of privacy, if it says something.

    >>> epsilon_in({"epsilon": 8.0}), epsilon_in(None)
    (8.0, None)
    """
    return cast(float, values["epsilon"]) if isinstance(values, dict) else None


def privacy_line(result: Result) -> str:
    """Says in a line what privacy a run has cost; nothing if it has none."""
    if (epsilon := epsilon_in(result.extra.get(PRIVACY))) is None:
        return ""
    told = cast(dict[str, object], result.extra[PRIVACY])
    cost = f"epsilon {epsilon:.4g} at delta {told['delta']}, {counted(cast(int, told['rounds']), 'round')} spent"
    return f"privacy: {cost}, noise {told['noise']:.4g}; neighbours: {told['neighbours']}"
