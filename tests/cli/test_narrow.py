"""On a narrow terminal a table has fewer columns: no number is cut or folded, and no short name."""

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.table import Table
from support import ROOT
from support.results import kept

from fedatoms.bench.results import Ratio, read
from fedatoms.cli import main
from fedatoms.cli.console import show_table
from fedatoms.cli.result_tables import benchmarks, contest, joining, result_table
from fedatoms.core.scales import ACCURACY
from fedatoms.evidence.reproduce.plan import chosen, jobs
from fedatoms.evidence.reproduce.settings import Reproduce
from fedatoms.evidence.reproduce.tables import terminal_tables

SHORT = 8  # letters of a word that is never folded


def measured(name: str) -> list[Ratio]:
    return read(ROOT / "benchmarks" / "results" / f"{name}.json").results


def a_client_that_joined() -> SimpleNamespace:
    data = SimpleNamespace(y=range(2000), test_y=range(1000))
    sim = SimpleNamespace(data=data, objective=SimpleNamespace(scale=ACCURACY))
    ready = SimpleNamespace(numbers=12345, sim=sim, labels_from="", out="ann.safetensors", run="runs/mine")
    scores = {name: SimpleNamespace(value=value, loss=0.345) for name, value in (("global", 91.2), ("personal", 98.2))}
    return SimpleNamespace(seconds=1.2, ready=ready, scores=scores, size=1000)


def of_a_benchmark(columns: int) -> Iterator[Table]:
    yield contest(read(ROOT / "benchmarks" / "results" / "h200.json").rows)
    yield from (benchmarks(measured(name)) for name in ("cpu", "h200"))


def of_a_client_that_joins(columns: int) -> Iterator[Table]:
    yield joining(a_client_that_joined())  # type: ignore[arg-type]


def of_the_paper(columns: int) -> Iterator[Table]:
    wanted = chosen(["all"])
    for made in terminal_tables(wanted, jobs(wanted, Reproduce()), kept(), quick=False):
        table = result_table(made, columns)
        if isinstance(table, Table):
            yield table


@pytest.mark.parametrize("columns", [40, 48, 56, 64, 72, 79, 80])
@pytest.mark.parametrize("make", [of_a_benchmark, of_a_client_that_joins, of_the_paper], ids=lambda make: make.__name__)
def test_what_a_narrow_terminal_shows_of_a_table_is_whole(make: Callable[[int], Iterator[Table]], columns: int) -> None:
    for table in make(columns):
        before, pipe = len(table.columns), Console(file=io.StringIO(), width=columns)
        show_table(pipe, table)
        said, (names, *others) = text_of(pipe), table.columns
        parts = [
            part for one in others if one.header != "detail" for cell in one.cells for part in str(cell).split("\n")
        ]
        assert "…" not in said and max(map(len, said.splitlines())) <= columns
        assert all(part in said for part in parts)
        assert all(word in said for cell in names.cells for word in str(cell).split() if len(word) <= SHORT)
        assert len(others) >= 2 and ("too narrow here" in " ".join(said.split())) == (len(table.columns) < before)


def test_a_narrow_terminal_shows_our_numbers_beside_the_papers() -> None:
    first, *_ = of_the_paper(40)
    show_table(Console(file=io.StringIO(), width=40), first)
    assert [column.header for column in first.columns] == ["row", "data", "paper", "ours"]


COMMANDS = {
    "bench": (["--device", "cpu"], [f"{measured('cpu')[0].value:.3f}", "1.03", "met"]),
    "personalize": (["runs/mine", "--images", "ann.npz"], ["91.20 %", "98.20 %", "12,345"]),
    "reproduce": (["table1", "--only", "^fedavg-(atoms-)?cifar10-5"], ["79.44", "81.05"]),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_fits_its_tables_to_the_terminal(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, (words, numbers) = Console(file=io.StringIO(), width=40), COMMANDS[command]
    monkeypatch.setattr(f"fedatoms.cli.{command}.terminal", lambda: pipe)
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    monkeypatch.setattr("fedatoms.bench.cpu.measure", lambda settings: measured("cpu"))
    monkeypatch.setattr("fedatoms.adapt.joining.prepare", lambda run, newcomer: a_client_that_joined().ready)
    monkeypatch.setattr("fedatoms.adapt.joining.join", lambda ready: a_client_that_joined())
    monkeypatch.setattr("fedatoms.cli.reproduce._find", lambda out: kept())
    monkeypatch.setattr("fedatoms.evidence.page.assemble.report", a_page)
    assert main([command, *words]) == 0
    rows = [line for line in text_of(pipe).splitlines() if len(line) <= 40]
    assert all(any(number in row for row in rows) for number in numbers) and "…" not in text_of(pipe)


def a_page(folders: Sequence[Path], page: Path, data: Path | None) -> SimpleNamespace:
    return SimpleNamespace(page=page)


def text_of(pipe: Console) -> str:
    assert isinstance(pipe.file, io.StringIO)
    return pipe.file.getvalue()
