"""The page's own figures as plain data: curves of scores, bytes by group, classes of each client."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from typing import cast

from fedatoms.core.ledger import total
from fedatoms.core.lookup import one_line
from fedatoms.core.options import GROUPS
from fedatoms.core.scales import Scale
from fedatoms.data.datasets import Images, load
from fedatoms.data.federations import hold_out
from fedatoms.evidence.page.packing import parts_of, steps
from fedatoms.evidence.page.plotly import Json, Plot
from fedatoms.evidence.page.still import CELLS, bars, picture
from fedatoms.evidence.page.styles import TEXTURES, line_styles
from fedatoms.evidence.paper.tables import cells_of
from fedatoms.evidence.results.finding import Run
from fedatoms.evidence.results.groups import Group, by_setting, stand_in_mark
from fedatoms.evidence.results.names import distinct_names, setting
from fedatoms.evidence.results.standings import leader
from fedatoms.experiment.build import split_of
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.relevance import OF_PARTITION
from fedatoms.runs.results import score_curves

DIGITS = 5  # of a score; bytes and seconds, along the other axis, have one less
Band = dict[str, Sequence[float]]
SHOWN = 200  # clients in a picture of a partition: more rows are thinner than a pixel


def curves(groups: Sequence[Group]) -> list[Json]:
    """Returns the lines of each setting, in the order of ``values``: names, looks, and whether they are shown at first.

    >>> curves([])
    []
    """
    return [{"setting": name, **_words(some[0].metric), "lines": _lines(some)} for name, some in _drawn(groups).items()]


def values(groups: Sequence[Group]) -> list[list[Json]]:
    """Returns the numbers of each line: scores of each model, and bytes and seconds until its rounds.

    >>> values([])
    []
    """
    return [[_values(group) for _, _, group in _ordered(some)] for some in _drawn(groups).values()]


def stills(groups: Sequence[Group]) -> str:
    """Returns the curves of each setting as pictures that need no script, of the model that counts."""
    return "".join(_still(name, some) for name, some in _drawn(groups).items())


def sent_stills(groups: Sequence[Group]) -> str:
    """Returns the bytes of each setting as such pictures: up, by group of parameters."""
    found = sent(groups)
    return "".join(_sent_still(str(each["setting"]), cast(list[Json], each["runs"])) for each in found)


def sent(groups: Sequence[Group]) -> list[Json]:
    """Returns the bytes of each run in each setting, by group of parameters.

    >>> sent([])
    []
    """
    return [{"setting": name, "runs": _bars(some)} for name, some in by_setting(groups).items()]


def senders(groups: Sequence[Group]) -> list[Json]:
    """Returns the settings of ``sent``, in its order, and how many bars each has.

    >>> senders([])
    []
    """
    return [{"setting": name, "runs": len(some)} for name, some in by_setting(groups).items()]


def splits(runs: Sequence[Run], data_dir: Path | None) -> tuple[list[Json], list[str]]:
    """Returns the images of each class on each client for each partition, and the reasons for those left out.

    >>> splits([], None)
    ([], [])
    """
    read, pictures, left_out = _reader(data_dir), list[Json](), dict[str, None]()
    for experiment, mark in _marks([run.result.experiment for run in runs]).items():
        if experiment.dataset != "digits" and data_dir is None:
            left_out[f"{experiment.dataset}: its labels are not available; give its folder with --data-dir."] = None
            continue
        try:
            pictures.append(_picture(experiment, read(experiment.dataset), mark))
        except (ValueError, OSError) as error:
            left_out[f"{setting(experiment)}: {one_line(error)}"] = None
    return sorted(pictures, key=lambda picture: str(picture["name"])), list(left_out)


def split_stills(pictures: Sequence[Json]) -> str:
    """Returns all partitions as pictures that need no script.

    >>> split_stills([])
    ''
    """
    return "".join(map(_split_still, pictures))


def _split_still(each: Json) -> str:
    counts = cast(list[list[int]], each["counts"])
    names = [[str(n) for n in range(size)] for size in (len(counts[0]), len(counts))]
    cells: Json = {"type": "heatmap", "x": names[0], "y": names[1], "zmin": 0}
    cells["z"] = [[n or None for n in row] for row in counts]
    plane: Json = {
        "xaxis": {"title": {"text": "class"}},
        "yaxis": {"title": {"text": "client"}, "autorange": "reversed"},
    }
    step = math.ceil(len(counts) / CELLS)
    few = f"; each row stands for {step} clients, and shows the first" if step > 1 else ""
    most = max(max(row) for row in counts)
    return picture(
        Plot(f"{each['name']}; the stronger the shade, the more images, {most} at most{few}", [cells], plane)
    )


def _drawn(groups: Sequence[Group]) -> dict[str, list[Group]]:
    return by_setting([group for group in groups if any(run.rows for run in group.runs)])


def _ordered(groups: Sequence[Group]) -> list[tuple[str, bool, Group]]:
    """Returns names and groups; at first the reader's, those of the paper's tables and the best are shown.

    If there is none of the reader's and of the tables, all are.
    """
    wanted, best = [not group.published or bool(cells_of(group.experiment)) for group in groups], leader(groups)
    shown = [on or group is best or not any(wanted) for on, group in zip(wanted, groups, strict=True)]
    lines = zip(_names(groups), shown, groups, strict=True)
    return sorted(lines, key=lambda line: (line[2].published, not line[1], line[0]))


def _lines(groups: Sequence[Group]) -> list[Json]:
    lines = _ordered(groups)
    looks = line_styles([group.experiment for _, _, group in lines])
    return [
        {"label": name, "shown": on, "seeds": len(group.seeds), "models": group.models, **look}
        for (name, on, group), look in zip(lines, looks, strict=True)
    ]


def _words(metric: Scale) -> dict[str, str]:
    """Returns what stands at the axis of a metric, and how Plotly writes a score."""
    digits = ".2f" if metric.unit == "%" else ".4g"
    unit = f" ({metric.unit})" if metric.unit else ""
    return {"axis": f"{metric.name}{unit}", "form": digits, "unit": metric.unit}


def _names(groups: Sequence[Group]) -> list[str]:
    return distinct_names([group.experiment for group in groups])[1]


def _values(group: Group) -> Json:
    """Returns a line's scores by model, and the bytes and seconds until each round, means over seeds."""
    runs = [run for run in group.runs if run.rows]
    models = _models(group, runs)
    rounds = [row["round"] + 1 for row in runs[0].rows if row["scores"]]
    seconds = _until(runs, attrgetter("seconds")) if all(run.seconds for run in runs) else []  # withheld
    spent = {"bytes": _until(runs, _sent), "seconds": seconds}
    return {"models": models, "rounds": rounds, **{name: _packed(each, DIGITS - 1) for name, each in spent.items()}}


def _models(group: Group, runs: Sequence[Run]) -> dict[str, Json]:
    return {name: _stepped(band, group.metric) for name, band in _bands(runs).items()}


def _stepped(band: Band, metric: Scale) -> Json:
    """Packs a band: scores in % to two decimals, others to so many digits."""
    per = 100.0 if metric.unit == "%" else parts_of(band["y"], DIGITS)
    return {"x": band["x"], **{name: steps(line, per) for name, line in band.items() if name != "x"}}


def _packed(values: Sequence[float], digits: int) -> Json:
    return steps(values, parts_of(values, digits))


def _bands(runs: Sequence[Run]) -> dict[str, Band]:
    """Returns the scores of each model: rounds, means over seeds and, with several, the lowest and the highest."""
    each = [score_curves(run.rows) for run in runs]
    return {name: _band([some[name] for some in each if name in some]) for name in each[0]}


def _until(runs: Sequence[Run], spent: Callable[[Run], list[float]]) -> list[float]:
    """Returns what is spent until the end of each round that is scored, as a mean over seeds."""
    each = [list(accumulate(spent(run))) for run in runs]
    scored = [row["round"] for row in runs[0].rows if row["scores"]]
    return [statistics.fmean(line[t] for line in each if t < len(line)) for t in scored]


def _sent(run: Run) -> list[float]:
    return [total(row["up"]) + total(row["down"]) for row in run.rows]


def _band(seeds: Sequence[list[tuple[int, float]]]) -> Band:
    found: dict[int, list[float]] = {}
    for curve in seeds:
        for t, score in curve:
            found.setdefault(t + 1, []).append(score)
    band: Band = {"x": list(found), "y": [statistics.fmean(some) for some in found.values()]}
    if len(seeds) > 1:
        band |= {"low": [min(some) for some in found.values()], "high": [max(some) for some in found.values()]}
    return band


def _still(setting: str, groups: Sequence[Group]) -> str:
    lines = zip(_lines(groups), _ordered(groups), strict=True)
    traces: list[Json] = []
    for look, (name, shown, group) in lines:
        if shown:
            model, band = list(_bands([run for run in group.runs if run.rows]).items())[-1]
            style: Json = {"line": {"color": look["colour"], "dash": look["dash"]}, "marker": {"symbol": look["mark"]}}
            traces.append({"type": "scatter", "name": name, "mode": "lines", **band, **style})
    words = _words(groups[0].metric)
    plane: Json = {"xaxis": {"title": {"text": "round"}}, "yaxis": {"title": {"text": words["axis"]}}}
    return picture(Plot(f"{setting}; model: {model}", traces, plane))


def _sent_still(setting: str, runs: Sequence[Json]) -> str:
    ups = [cast(dict[str, int], run["up"]) for run in runs]
    unit, size = ("GB", 1e9) if max((total(up) for up in ups), default=0) > 1e9 else ("MB", 1e6)
    parts = [(name, _fill(*look, name), [up.get(name, 0) / size for up in ups]) for name, look in TEXTURES.items()]
    used = [part for part in parts if any(part[2])]
    return bars(f"Sent up, all clients and rounds; {setting}", [str(run["label"]) for run in runs], used, unit)


def _fill(grey: str, texture: str, name: str) -> str:
    """Returns how SVG fills a group's bars; page.html has the textures."""
    return f"url(#texture-{name})" if texture else grey or "currentColor"


def _bars(groups: Sequence[Group]) -> list[Json]:
    """Returns a bar for each experiment, the best one first: seeds differ in the clients they draw, hardly in bytes."""
    best = leader(groups)
    ordered = sorted(zip(_names(groups), groups, strict=True), key=lambda both: (both[1] is not best, both[0]))
    return [
        {"label": name, "up": _mean(group, "bytes_up"), "down": _mean(group, "bytes_down")} for name, group in ordered
    ]


def _mean(group: Group, way: str) -> dict[str, float]:
    sizes: list[dict[str, int]] = [getattr(run.result, way) for run in group.runs]
    names = [name for name in GROUPS if any(name in size for size in sizes)]
    return {name: statistics.mean(size.get(name, 0) for size in sizes) for name in names}


def _split_key(experiment: Experiment) -> Experiment:
    """Keeps the fields that the partition depends on."""
    kept = ("dataset", "partition", "clients", "seed", "holdout")
    names = (*kept, *OF_PARTITION[experiment.partition])
    return replace(Experiment(), **{name: getattr(experiment, name) for name in names})


def _marks(experiments: Sequence[Experiment]) -> dict[Experiment, str]:
    """Returns the partitions, marked if only quick stand-ins have them."""
    marks = dict[Experiment, str]()
    for one in experiments:
        key = _split_key(one)
        marks[key] = marks.get(key, stand_in_mark(one)) and stand_in_mark(one)
    return marks


def _reader(data_dir: Path | None) -> Callable[[str], Images]:
    known: dict[str, Images] = {}

    def read(dataset: str) -> Images:
        if dataset not in known:
            known[dataset] = load(dataset, data_dir or "data")
        return known[dataset]

    return read


def _picture(experiment: Experiment, images: Images, mark: str) -> Json:
    images = hold_out(images, experiment.holdout, experiment.seed)
    parts = split_of(experiment, images).train
    counts = [images.y[part].bincount(minlength=images.classes).tolist() for part in parts[:SHOWN]]
    more = f"; the first {SHOWN} of {len(parts)} clients" if len(parts) > SHOWN else ""
    return {"name": f"{setting(experiment)}, seed {experiment.seed}{mark}{more}", "counts": counts}
