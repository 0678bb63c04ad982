"""Settings that mean nothing cost one line, which names the flag and what to type."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedatoms.cli import main
from fedatoms.cli.compare import _check
from fedatoms.cli.parsing import as_typed
from fedatoms.core import extras
from fedatoms.core.options import CHOICES
from fedatoms.data.datasets import load
from fedatoms.evidence.page.figures import _split_key
from fedatoms.experiment.build import simulation, split_of
from fedatoms.experiment.checks import check
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.presets import PRESETS
from fedatoms.experiment.relevance import BESIDE, OF_PARTITION, idle
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


SMALL = "--clients 5 --batch-size 50 --fraction 0.4 --epochs 1 --device cpu --rounds 1".split()
TWICE = {
    "compare --dirichlet 0.1,1.0": "--dirichlet 0.1 changes nothing with --partition shards. Leave it out, or use "
    "--partition dirichlet.",
    "compare fedavg --atoms 6,9": "--atoms 6 changes nothing with --parametrisation plain. Leave it out, or use",
    "compare --fast head --slow-local discard,freeze": "--slow-local freeze changes nothing with --beta 1.",
    "tune fedavg --over dirichlet=0.1,1.0": "--dirichlet 0.1 changes nothing with --partition shards. Leave it out",
    "tune fedavg-atoms --over gamma=0.1..0.5": "--gamma 0.1 changes nothing with --parametrisation atoms. Leave it out",
}


@pytest.mark.parametrize("words", TWICE)
def test_values_that_would_make_the_same_run_twice_are_refused(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*words.split(), *SMALL]) == 2
    assert capsys.readouterr().err.startswith(f"fedatoms: {TWICE[words]}") and not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", ["run --atoms 5", "compare --atoms 5 --seeds 0", "tune --atoms 5 --over lr=0.1"])
def test_a_value_that_changes_nothing_is_told_and_the_run_goes_on(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*words.split(), *SMALL]) == 0
    assert "fedatoms: --atoms 5 changes nothing with --parametrisation plain. " in capsys.readouterr().err


def test_a_value_that_matters_in_one_of_the_runs_is_no_mistake() -> None:
    both = [Experiment(atoms=n, parametrisation=kind) for n in (4, 6) for kind in ("plain", "atoms")]
    assert not idle(both, [Experiment()])
    assert not idle([Experiment(parametrisation="atoms", atoms=6)], [Experiment()])
    assert not idle([Experiment(beta="1/5", fast="head", slow_local="freeze")], [Experiment()])
    assert not idle([Experiment(weights="net.pth")], [Experiment()])  # its start is implied, not given


@pytest.mark.parametrize("name", PRESETS)
def test_what_a_starting_point_has_is_never_told(name: str) -> None:
    assert not idle([PRESETS[name]], [PRESETS[name]]) and not idle([PRESETS[name]], [Experiment()])


def test_every_field_that_may_change_nothing_is_a_field() -> None:
    assert all(hasattr(Experiment(), name) for each in BESIDE for name in (*each.fields, each.decides))


VALUES = {"dirichlet": 5.0, "unbalanced": 0.9, "classes_per_client": 5, "distinct": True}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("partition", CHOICES["partition"])
def test_a_field_of_partitions_moves_images_and_has_a_picture_of_its_own_where_it_matters(
    partition: str, name: str
) -> None:
    one = Experiment(partition=partition)
    other = replace(one, **{name: VALUES[name]})
    parts = [split_of(each, load("digits")).train for each in (one, other)]
    differs = any(not torch.equal(*both) for both in zip(*parts, strict=True))
    assert differs == (name in OF_PARTITION[partition]) == (not idle([other], [one]))
    assert differs == (_split_key(one) != _split_key(other))
