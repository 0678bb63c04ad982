"""fedatoms report: a page of results."""

from pathlib import Path

from fedatoms.cli.args import take
from fedatoms.cli.console import say, terminal


def command(words: list[str]) -> int:
    """Writes the page, and names what was left out of it."""
    if not words or "-h" in words or "--help" in words:
        print("fedatoms report FOLDER ... [-o report.html] [--data-dir FOLDER]")
        print(
            "Makes one page, which opens offline, of all runs and measures below the folders, and a CSV file beside it."
        )
        print("--data-dir adds pictures of how data sets other than digits are spread over clients.")
        return 0
    words, page = take(words, "-o")
    words, data_dir = take(words, "--data-dir")
    strange = [word for word in words if word.startswith("-")]
    if strange or not words:
        said = f"{strange[0]} is no option of it" if strange else "it needs a folder that holds runs"
        raise ValueError(f"fedatoms report: {said}. Use for example `fedatoms report runs -o report.html`.")
    from fedatoms.evidence.page.assemble import report

    done = report([Path(word) for word in words], Path(page or "report.html"), Path(data_dir) if data_dir else None)
    for note in (*done.found.left_out, *done.found.notes):
        say(f"{note.path}: {note.reason}")
    counts = {"run": len(done.found.runs), "measure": len(done.found.measures)}
    said = ", ".join(f"{number} {what}{'' if number == 1 else 's'}" for what, number in counts.items() if number)
    lines = (f"page: {done.page}, {said}, {done.page.stat().st_size / 1e6:.1f} MB", f"data: {done.csv}")
    for line in lines:
        terminal().print(line, highlight=False, soft_wrap=True, markup=False)
    return 0
