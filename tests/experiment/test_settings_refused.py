"""Settings of attacks and privacy that mean nothing cost one line, which names the flag and what to type."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fedatoms.cli.compare import _check
from fedatoms.cli.parsing import as_typed
from fedatoms.core import extras
from fedatoms.experiment.build import simulation
from fedatoms.experiment.checks import check
from fedatoms.experiment.fields import Experiment
from fedatoms.runs.execute import run

ATTACKS = {
    "inf:0.2:3": "--attack inf:0.2:3: inf has no strength. Use inf:0.2.",
    "label-flip:0.2:1": "--attack label-flip:0.2:1: label-flip has no strength. Use label-flip:0.2.",
    "noise:0.2:-1": "--attack noise:0.2:-1: a strength of -1 is not a positive number. Use for example noise:0.2:9.",
    "little-is-enough:0.2:0": (
        "--attack little-is-enough:0.2:0: a strength of 0 is not a positive number. Use for example "
        "little-is-enough:0.2:1.5."
    ),
    "noise:0.2:nan": "--attack noise:0.2:nan: a strength of nan is not a positive number. Use for example noise:0.2:9.",
    "noise:2": "--attack noise:2: a share of 2 is not in (0, 1). Use for example noise:0.2.",
    "noise:0.2:9:1": "--attack noise:0.2:9:1 is no name, share and strength. Use for example noise:0.2.",
    "nois:0.2": "unknown attack 'nois'. Did you mean 'noise'?",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_that_means_nothing_is_refused_by_its_own_flag(attack: str) -> None:
    with pytest.raises(ValueError) as refused:
        check(Experiment(attack=attack))
    assert as_typed(str(refused.value)).startswith(ATTACKS[attack])


WRONG: dict[str, tuple[Callable[[Experiment], object], dict[str, object], str]] = {
    "privacy": (simulation, {"dp_epsilon": 8.0}, "sampling=fixed: epsilon is accounted for clients that are sampled"),
    "a plot": (lambda one: _check([one], Path("plot.png")), {"clients": 5000}, "clients=5000"),
    "a watcher": (run, {"watch": "mlflow", "clients": 5000}, "clients=5000"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_told_before_what_is_not_installed(
    what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make, fields, message = WRONG[what]
    monkeypatch.setattr(extras, "_missing", list)
    with pytest.raises(ValueError, match=message):
        make(Experiment(out=str(tmp_path), **fields))  # type: ignore[arg-type]
    right = {"sampling": "poisson"} if "dp_epsilon" in fields else {"clients": 20}
    with pytest.raises(ValueError, match="Type: pip install"):
        make(Experiment(out=str(tmp_path), **{**fields, **right}))  # type: ignore[arg-type]
