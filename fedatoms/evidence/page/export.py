"""All results as one CSV file: a line for each run, a column for each field of any run."""

import csv
import io
from collections.abc import Mapping, Sequence

from fedatoms.evidence.paper.tables import cells_of
from fedatoms.evidence.results.cells import column_name, row_name
from fedatoms.evidence.results.finding import Run
from fedatoms.evidence.results.groups import is_stand_in
from fedatoms.experiment.files import without_paths
from fedatoms.runs.spent import epsilon_in


def to_csv(runs: Sequence[Run]) -> str:
    """Returns runs as CSV, with all digits.

    >>> to_csv([])
    'folder\\n'
    """
    lines = [_line(run) for run in runs]
    heads = list(dict.fromkeys(["folder", *(head for line in lines for head in line)]))
    file = io.StringIO()
    writer = csv.DictWriter(file, heads, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


def _line(run: Run) -> dict[str, object]:
    result, spent = run.result, epsilon_in(run.result.extra.get("privacy"))
    scores = {model: summary._asdict() for model, summary in result.scores.items()}
    paper = [
        f"Table {cell.table}, {row_name(cell)}, {column_name(cell)}: {cell.printed}"
        for cell in cells_of(result.experiment)
    ]
    return {
        "folder": run.name,
        "quick": "yes" if is_stand_in(result.experiment) else "",
        **without_paths(result.experiment),
        "metric": result.metric.axis,
        **{f"{model} {name}": value for model, summary in scores.items() for name, value in summary.items()},
        **_prefixed("personal", result.personal or {}),
        **_prefixed("bytes up", result.bytes_up),
        **_prefixed("bytes down", result.bytes_down),
        **{"seconds": result.seconds, "seconds per round": result.seconds_per_round, "parameters": result.parameters},
        **({} if spent is None else {"epsilon spent": spent}),
        **_prefixed("provenance", result.provenance),
        "paper": "; ".join(paper),
    }


def _prefixed(what: str, values: Mapping[str, object]) -> dict[str, object]:
    return {f"{what}: {name}": value for name, value in values.items()}
