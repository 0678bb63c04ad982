"""Makes the lead, the numbers and the picture of docs/performance.md from the files of the contest."""

from collections.abc import Sequence
from pathlib import Path

from fedatoms.bench.plots import contest_plot
from fedatoms.bench.report import block, fill
from fedatoms.bench.results import Results, joined, read
from fedatoms.bench.standings import lead

ROOT = Path(__file__).parent.parent
FILES = tuple(f"h200{part}.json" for part in ("", "-cold", "-seeds", "-parts", "-pfl", "-accuracy"))  # the first counts
RESULTS = [ROOT / "benchmarks" / "results" / name for name in FILES]
PAGE, PICTURE = ROOT / "docs" / "performance.md", ROOT / "docs" / "performance.png"


def kept(sources: Sequence[Path] = RESULTS) -> Results:
    """Reads the files that are there, as one."""
    return joined([read(source) for source in sources if source.exists()])


def report(sources: Sequence[Path] = RESULTS, page: Path = PAGE, picture: Path = PICTURE) -> None:
    """Fills the page's two blocks and draws its picture."""
    results = kept(sources)
    text = fill(page.read_text(), lead(results), "lead")
    page.write_text(fill(text, block(results, picture.name)))
    title = f"{results.provenance['device']}, {results.settings['precision']}: clients x images a step"
    contest_plot(results.rows, picture, title)


if __name__ == "__main__":
    report()
