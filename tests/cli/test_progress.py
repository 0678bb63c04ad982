"""Progress of a run: all of it fits a terminal of 80 columns, and no score is shown as of a later round than it is."""

import io
from types import SimpleNamespace

from rich.console import Console

from fedatoms.cli.console import watching

LABEL = "fedavg-atoms9-digits-s0-5d2682"


def a_round(number: int, *, scored: bool) -> SimpleNamespace:
    scale = SimpleNamespace(is_accuracy=True, write=lambda value: f"{value:.2f} %")
    scores = {"all": SimpleNamespace(scale=scale, value=50.0 + number)} if scored else {}
    record = SimpleNamespace(clients=10, seconds=1.0, loss=0.87, extra={})
    return SimpleNamespace(state=SimpleNamespace(round=number), record=record, scores=scores)


def shown(console: Console, rounds: int = 12) -> str:
    with watching(console, LABEL, rounds) as watch:
        for number in range(1, rounds + 1):
            watch(a_round(number, scored=number % 6 == 0))  # type: ignore[arg-type]
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_of_80_columns_has_all_of_it_in_one_line() -> None:
    said = shown(Console(file=io.StringIO(), width=80, force_terminal=True, no_color=True, legacy_windows=False))
    last = [line for line in said.splitlines() if LABEL in line][-1]
    assert "12/12" in last and "loss 0.870" in last and "all 62.00 %" in last and "\u2026" not in last


def test_a_wide_one_has_more() -> None:
    said = shown(Console(file=io.StringIO(), width=140, force_terminal=True, no_color=True, legacy_windows=False))
    assert "clients/s" in [line for line in said.splitlines() if LABEL in line][-1]


def test_a_score_of_an_earlier_round_says_which() -> None:
    lines = shown(Console(file=io.StringIO(), width=200)).splitlines()
    found = {number: next(line for line in lines if f"round {number}/12" in line) for number in (5, 6, 7, 12)}
    assert "score -" in found[5] and "all 56.00 %  " in found[6] and "all 62.00 %  " in found[12]
    assert "all 56.00 % (round 6)" in found[7]
