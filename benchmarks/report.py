"""Makes the numbers and the picture of docs/performance.md from benchmarks/results/h200.json."""

from pathlib import Path

from fedatoms.bench.plots import contest_plot
from fedatoms.bench.report import block, fill
from fedatoms.bench.results import read

ROOT = Path(__file__).parent.parent
RESULTS, PAGE, PICTURE = (
    ROOT / "benchmarks" / "results" / "h200.json",
    ROOT / "docs" / "performance.md",
    ROOT / "docs" / "performance.png",
)


def report(source: Path = RESULTS, page: Path = PAGE, picture: Path = PICTURE) -> None:
    """Fills the page's block and draws its picture."""
    results = read(source)
    page.write_text(fill(page.read_text(), block(results, picture.name)))
    title = f"{results.provenance['device']}, {results.settings['precision']}: clients x images a step"
    contest_plot(results.rows, picture, title)


if __name__ == "__main__":
    report()
