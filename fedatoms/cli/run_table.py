"""The table of runs: state, how far they are, what they gave and cost, and what is not as usual."""

import math
from collections.abc import Sequence
from dataclasses import replace

from rich.table import Table

from fedatoms.cli.result_tables import in_seconds, titled
from fedatoms.core.ledger import total
from fedatoms.experiment.identities import run_name
from fedatoms.experiment.unusual import circumstances
from fedatoms.runs.results import WINDOW, Result
from fedatoms.runs.states import RunState


def states_table(states: Sequence[RunState]) -> Table:
    """Makes the table of runs: their state, how far they are, and what they gave and cost if they are finished."""
    table = titled("", _caption(states))
    table.add_column("state", no_wrap=True)
    table.add_column("rounds", justify="right", no_wrap=True)
    for head in ("headline", "MB", "seconds"):
        table.add_column(head, justify="right", no_wrap=True)
    words = [_unsaid(state) for state in states]
    for head in ("with", "folder") if any(words) else ("folder",):
        table.add_column(head, overflow="fold")
    for state, found in zip(states, words, strict=True):
        rounds = f"{state.done} of {'?' if state.rounds is None else state.rounds}"
        unusual = [found] if any(words) else []
        table.add_row(state.state, rounds, *_outcome(state.result), *unusual, str(state.folder))
    return table


def _caption(states: Sequence[RunState]) -> str:
    what = f"headline: {_scored_by(states)}, mean over the last {WINDOW} rounds or all"
    return f"{what}, of model `all`, or of the last one that is scored; MB: sent up and down"


def _unsaid(state: RunState) -> str:
    """Names what is not as usual in a run, unless the name of its folder does."""
    words = circumstances(state.experiment) if state.experiment else []
    if not state.experiment or not words or state.folder.name == run_name(replace(state.experiment, name="")):
        return ""
    return ", ".join(words)


def _outcome(result: Result | None) -> tuple[str, str, str]:
    if result is None:
        return "", "", ""
    headline = list(result.scores.values())[-1].headline if result.scores else math.nan
    written = result.metric.number(headline)
    if not result.metric.is_accuracy:
        written = f"{result.metric.name} {result.metric.write(headline)}"
    size = (total(result.bytes_up) + total(result.bytes_down)) / 1e6
    return written, f"{size:.1f}", in_seconds(result.own_seconds)


def _scored_by(states: Sequence[RunState]) -> str:
    others = any(state.result and not state.result.metric.is_accuracy for state in states)
    return "accuracy in %, or the metric that is named" if others else "accuracy"
