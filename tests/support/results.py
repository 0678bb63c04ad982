"""Results, measures and explanations as commands leave them, without the work, and the page of them."""

import base64
import gc
import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from fedatoms.evidence.claims import Claim, claims
from fedatoms.evidence.explain import files as explanations
from fedatoms.evidence.explain.aggregates import Aggregates, Apart
from fedatoms.evidence.explain.forks import Forked
from fedatoms.evidence.explain.latent import Product
from fedatoms.evidence.explain.latent import summary as summed
from fedatoms.evidence.explain.scores import Scores
from fedatoms.evidence.explain.values import Explain, Explanation, Round
from fedatoms.evidence.explain.variance import Variance
from fedatoms.evidence.explain.words import findings
from fedatoms.evidence.measures import MEASURES
from fedatoms.evidence.measures.base import as_json
from fedatoms.evidence.measures.files import FILE, Measure, write_measure
from fedatoms.evidence.page.assemble import report
from fedatoms.evidence.page.packing import as_script
from fedatoms.evidence.paper.study_list import quick
from fedatoms.evidence.results.finding import Found, find
from fedatoms.evidence.results.groups import _stand_ins
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import to_json
from fedatoms.experiment.presets import PRESETS
from fedatoms.runs.results import summarise
from support import ROOT
from support.sealed import unseal


def a_run(
    folder: Path,
    accuracy: float = 50.0,
    preset: str = "fedavg",
    seed: int = 0,
    rounds: int = 3,
    curves: Mapping[str, Sequence[float]] | None = None,
    **more: object,
) -> Path:
    """Writes a result as a run leaves it, without the run; ``curves`` are accuracies by model and round."""
    experiment = to_json(PRESETS[preset]) | {"seed": seed, "rounds": rounds or PRESETS[preset].rounds} | more
    described = {name: value for name, value in experiment.items() if name not in ("data_dir", "out")}
    steps = range(int(str(experiment["rounds"])))
    lines = curves or dict.fromkeys(("server", "all"), [accuracy] * len(steps))
    sent = {"head": 3_000_000} | ({} if "beta" in more else {"rest": 10_000_000})
    row = {"loss": 1.0, "clients": 5, "failed": 0, "up": sent, "down": {}, "seconds": 0.5}
    rows = [{"round": t, **row, "scores": {name: {"accuracy": line[t]} for name, line in lines.items()}} for t in steps]
    result = {
        "experiment": described,
        "accuracy": {name: summary._asdict() for name, summary in summarise(rows).items()},
        "bytes_up": {name: size * len(steps) for name, size in sent.items()},
        "bytes_down": {"head": 10_000_000, "rest": 50_000_000},
        "seconds": 1.5,
        "seconds_per_round": 0.5,
        "parameters": 123,
        "provenance": {"commit": "abc123", "time": "2026-01-02T03:04:05+00:00", "device": "a machine", "torch": "2.6"},
        "personal": None,
    }
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def near(score: float, seed: int) -> float:
    """Returns a score that seeds 0 and 1 have on average, and neither of them quite: equal ones have no spread."""
    return score * (1 + {0: 2**-20, 1: -(2**-20)}.get(seed, 0.0))


def a_private_run(folder: Path, epsilon: float = 8.0, **more: object) -> Path:
    """Writes the result of a private run, without the run."""
    a_run(folder, dp_epsilon=epsilon, sampling="poisson", **more)  # type: ignore[arg-type]
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    lines = [json.dumps(row | {"seconds": None, "loss": None, "privacy": {"epsilon": 7.5}}) for row in rows]
    (folder / "rounds.jsonl").write_text("\n".join(lines) + "\n")
    return changed(folder, seconds=None, seconds_per_round=None, privacy={"epsilon": 7.5, "delta": 1e-5})


@contextmanager
def stand_ins(monkeypatch: pytest.MonkeyPatch, least: Callable[[Experiment], Experiment]) -> Iterator[None]:
    """Makes ``least`` of an experiment what stands in for it quickly."""
    monkeypatch.setattr("fedatoms.evidence.reproduce.plan.quick", least)
    monkeypatch.setattr("fedatoms.evidence.results.groups.quick", least)
    _stand_ins.cache_clear()
    yield
    _stand_ins.cache_clear()


def a_stand_in(folder: Path, preset: str) -> Path:
    """Writes the result of what stands in for a preset quickly."""
    fields = {key: value for key, value in to_json(quick(PRESETS[preset])).items() if key not in ("seed", "rounds")}
    return a_run(folder, rounds=10, **fields)  # type: ignore[arg-type]


def page_of(*folders: Path) -> str:
    """Makes the page and returns what a person reads: without the drawing library, and with its numbers unpacked."""
    done = report(folders, folders[0].parent / "report.html")
    page = re.sub(r'(?s)<script type="text/plain" id="plotly">.*?</script>', "", done.page.read_text())
    return re.sub(PACKED, lambda found: as_script(json.loads(_unpacked(found[1]))), page)


def _unpacked(letters: str) -> bytes:
    return gzip.decompress(base64.b64decode(letters))


PACKED = r'(?s)(?<=<script type="text/plain" id="numbers">)(.*?)(?=</script>)'
SOURCE: dict[str, object] = {"time": "2026-01-02T03:04:05+00:00", "device": "a machine", "commit": "abc123"}
PAIR = (Experiment(), Experiment(parametrisation="atoms"))
GRID = {"x": [0.0, 1.0], "y": [0.0, 1.0, 2.0], "loss": [[2.5, 2.0], [2.25, None], [1.5, 1.25]]}
VALUES: dict[str, dict[str, object]] = {
    "variance": {
        "rounds": [0, 5],
        "lines": [
            {name: [0.5, 0.25] for name in ("raw", "by_norm", "by_move")},
            {name: [0.5, 0.125] for name in ("raw", "by_norm", "by_move")}
            | {"factors": {name: [0.5, 0.75] for name in ("raw", "by_norm", "by_move")}},
        ],
    },
    "synthetic": {
        "optimum": [0.2, 0.2],
        "landscape": GRID,
        "lines": [
            {"name": "5 models", "variance": [0.0, 0.4, 0.75], "paths": [[[0, 0], [0.1, 0.2], [0.2, 0.1]]]},
            {"name": "latent", "variance": [0.0, 0.4, 0.5], "products": [0.0, 0.4, 0.625], "paths": []},
        ],
    },
    "training_loss": {"lines": [[2.0, 1.5], [2.0, 1.25]], "lower_from": 1},
    "landscape": GRID
    | {
        "images": 1234,
        "shares": [0.625, 0.25],
        "paths": [{"x": [0.0, end], "y": [0.0, 1.0], "loss": [2.5, 2.5 - end]} for end in (0.5, 1.0)],
    },
}


def a_measure(folder: Path, name: str = "variance", **settings: object) -> Path:
    """Writes a measure as its command leaves it, without measuring."""
    experiments = PAIR if MEASURES[name].experiments else ()
    write_measure(folder, Measure(name, experiments, {"repeats": 7, **settings}, VALUES[name], SOURCE))
    unseal(folder / FILE)
    return folder


def a_full_measure(folder: Path, name: str, values: dict[str, object], seed: int = 0) -> Path:
    """Writes a measure with the paper's experiments and settings."""
    kind = MEASURES[name]
    experiments = tuple(replace(one, seed=seed) for one in kind.experiments)
    write_measure(folder, Measure(name, experiments, as_json(kind.settings), values, SOURCE))
    unseal(folder / FILE)
    return folder


def an_explanation(
    folder: Path,
    crossed: int = 3,
    fork: int = 2,
    name: str = "mine",
    with_latent: float = 60.25,
    start: int = 17,
    seed: int = 0,
) -> Path:
    """Writes an explanation as its command leaves it, without replaying a round."""
    products = [
        Product(10 * i, 10 * j, Scores(50.0, 1.5 + i + j / 8, 1.25)) for i in range(crossed) for j in range(crossed)
    ]
    apart, on, off = Apart(difference=1.0, move=8.0), Scores(with_latent, 1.5, 1.25), Scores(58.75, 1.625, 1.375)
    rounds = [
        Round(
            round=t,
            clients=[0, 10, 20, 30],
            aggregates=Aggregates(apart, {"conv1": apart}, on, off),
            latent=summed(products, [on], of=12) if crossed else None,
            variance=Variance(4.0, 0.5, 0.0625, 0.015625, 0.5625, 0.53125) if crossed else None,
        )
        for t in (start, start + 1)
    ]
    forked = Forked(start, [61.0, 62.0], [60.0, 64.0], [1.0, 0.875], [1.125, 0.75], lost=0.0) if fork else None
    asked = Explain(rounds=2, crossed=crossed, fork=fork)
    done = Explanation(
        name, replace(PAIR[1], seed=seed), asked, start, 400, rounds, [55.5, 56.5] if fork else None, forked, SOURCE
    )
    folder.mkdir(parents=True)
    explanations.write(done, folder / explanations.FILE, findings(done))
    unseal(folder / explanations.FILE)
    return folder / explanations.FILE


@cache
def kept() -> Found:
    """Reads paper-results, 160,000 rounds, once for all tests of a process."""
    with chdir(ROOT):
        found = find([Path("paper-results")])
    gc.freeze()  # it stays: the collector need not pass over it each time
    return found


def the_claim(folder: Path, words: str) -> Claim:
    """Judges what lies in a folder, and returns the claim that has some words in it."""
    (claim,) = [claim for claim in claims(find([folder])) if words in claim.text]
    return claim


def changed(folder: Path, file: str = "result.json", **fields: object) -> Path:
    """Puts other values into a file."""
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return folder
