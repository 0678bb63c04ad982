"""Makes the tables of docs/paper.md from fedatoms/paper."""

from pathlib import Path

from fedatoms.bench.report import fill, table
from fedatoms.evidence.paper.readings import READINGS, Reading
from fedatoms.evidence.paper.tables import COLUMNS, COMPARED, cells

PAGE, MAKER = Path(__file__).parent.parent / "docs" / "paper.md", "paper-results/readings.py"


def numbers() -> str:
    """Writes how many cells each table has, and what of a run is compared with them."""
    heads = ("table", "cells", "with an experiment", "compared with", "why the others have none")
    return table(heads, [_numbers(each) for each in COLUMNS], align="---")


def readings() -> str:
    """Writes what the paper leaves open, a line for each."""
    heads = ("name", "about", "the paper", "we take", "or", "because")
    return table(heads, [_reading(each) for each in READINGS.values()], align="---")


BLOCKS = {"numbers": numbers, "readings": readings}


def report(page: Path = PAGE) -> None:
    """Fills the page's blocks."""
    for name, block in BLOCKS.items():
        page.write_text(fill(page.read_text(), block(), name, MAKER))


def _numbers(number: int) -> list[str]:
    found, compared = cells(number), COMPARED[number]
    ready = sum(cell.experiment is not None for cell in found)
    missing = sorted({cell.missing for cell in found if cell.missing})
    return [str(number), str(len(found)), str(ready), f"`{compared.model}`, {compared.number}", "; ".join(missing)]


def _reading(each: Reading) -> list[str]:
    texts = (each.paper, each.taken, "; ".join(each.options[1:]), each.why)
    return [f"`{each.name}`", each.about, *(text.replace("|", "\\|") for text in texts)]


if __name__ == "__main__":
    report()
