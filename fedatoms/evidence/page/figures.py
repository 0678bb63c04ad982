"""The page's own figures as plain data: curves of scores, bytes by group, classes of each client."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fedatoms.core.lookup import one_line
from fedatoms.core.scales import Scale
from fedatoms.data.datasets import Images, load
from fedatoms.data.federations import hold_out
from fedatoms.evidence.page.plotly import Json
from fedatoms.evidence.paper.tables import cells_of
from fedatoms.evidence.results.finding import Run
from fedatoms.evidence.results.groups import Group, by_setting, stand_in_mark
from fedatoms.evidence.results.names import distinct_names, setting
from fedatoms.experiment.build import split_of
from fedatoms.experiment.fields import Experiment
from fedatoms.runs.plots import COLOURS, GREYS
from fedatoms.runs.results import score_curves

PLAIN_DASHES: tuple[str, ...] = ("dash", "dot")
OTHER_DASHES: tuple[str, ...] = ("solid", "dashdot", "longdash")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
STYLES = [(colour, dash) for colours in (COLOURS, GREYS) for dash in DASHES for colour in colours]  # greys last
SHOWN = 200  # clients in a picture of a partition: more rows are thinner than a pixel


def curves(groups: Sequence[Group]) -> list[Json]:
    """Returns the scores over rounds in each setting: the mean over seeds and their range.

    >>> curves([])
    []
    """
    whole = [group for group in groups if any(run.rows for run in group.runs)]
    settings = by_setting(whole).items()
    return [{"setting": name, **_words(some[0].metric), "lines": _lines(some)} for name, some in settings]


def sent(groups: Sequence[Group]) -> list[Json]:
    """Returns the bytes of each run in each setting, by group of parameters.

    >>> sent([])
    []
    """
    return [{"setting": name, "runs": _bars(some)} for name, some in by_setting(groups).items()]


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


def _lines(groups: Sequence[Group]) -> list[Json]:
    """Returns the lines of a setting; those of the paper's tables come first, and are the only ones shown at first."""
    groups = sorted(groups, key=lambda group: not cells_of(group.experiment))
    printed = [bool(cells_of(group.experiment)) for group in groups]
    shown = printed if any(printed) else [True] * len(groups)
    styles = _styles([group.experiment for group in groups])
    lines: list[Json] = [
        {"label": name, "shown": on, "seeds": len(group.seeds), **style, "models": _models(group)}
        for name, on, group, style in zip(_names(groups), shown, groups, styles, strict=True)
    ]
    return sorted(lines, key=lambda line: (not line["shown"], str(line["label"])))


def _words(metric: Scale) -> dict[str, str]:
    """Returns what stands at the axis of a metric, and how Plotly writes a score."""
    digits = ".2f" if metric.unit == "%" else ".4g"
    unit = f" ({metric.unit})" if metric.unit else ""
    return {"axis": f"{metric.name}{unit}", "score": f"%{{y:{digits}}} {metric.unit}".rstrip()}


def _names(groups: Sequence[Group]) -> list[str]:
    return distinct_names([group.experiment for group in groups])[1]


def _styles(experiments: Sequence[Experiment]) -> list[dict[str, str]]:
    """Gives each algorithm a colour and plain networks a dashed line; with one algorithm, each experiment a colour.

    No two experiments share a style while there are enough.
    """
    algorithms = sorted({one.algorithm for one in experiments})
    by_algorithm = len(algorithms) > 1 and all(one.personal == "none" for one in experiments)
    styles = list[tuple[str, str]]()
    for one in experiments:
        colour = COLOURS[algorithms.index(one.algorithm) % len(COLOURS)]
        dashes = PLAIN_DASHES if one.parametrisation == "plain" else OTHER_DASHES
        wanted = [(colour, dash) for dash in dashes] if by_algorithm else []
        styles.append(next((style for style in (*wanted, *STYLES) if style not in styles), STYLES[0]))
    return [{"colour": colour, "dash": dash} for colour, dash in styles]


def _models(group: Group) -> Json:
    each = [score_curves(run.rows) for run in group.runs if run.rows]
    percent = group.metric.unit == "%"
    return {name: _band([curves[name] for curves in each if name in curves], percent=percent) for name in each[0]}


def _band(seeds: Sequence[list[tuple[int, float]]], *, percent: bool) -> Json:
    values: dict[int, list[float]] = {}
    for curve in seeds:
        for t, score in curve:
            values.setdefault(t + 1, []).append(score)
    means = [statistics.mean(some) for some in values.values()]
    band: Json = {"x": list(values), "y": [round(mean, 3) if percent else float(f"{mean:.5g}") for mean in means]}
    if len(seeds) > 1:
        band |= {"low": [min(some) for some in values.values()], "high": [max(some) for some in values.values()]}
    return band


def _bars(groups: Sequence[Group]) -> list[Json]:
    bars: list[Json] = []
    for name, group in sorted(zip(_names(groups), groups, strict=True), key=lambda both: both[0]):
        for run in group.runs:
            seed = f", seed {run.result.experiment.seed}" if len(group.runs) > 1 else ""
            bars.append({"label": name + seed, "up": run.result.bytes_up, "down": run.result.bytes_down})
    return bars


def _split_key(experiment: Experiment) -> Experiment:
    """Keeps the fields that the partition depends on."""
    kept = ("dataset", "partition", "clients", "seed", "holdout")
    more = {"shards": ("classes_per_client", "distinct"), "dirichlet": ("dirichlet", "unbalanced"), "iid": ()}
    names = (*kept, *more[experiment.partition])
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
