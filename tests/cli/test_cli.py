"""The command line: what a user types and sees, and what a mistake costs: one line, exit status 2, nothing written."""

import importlib.util
import io
import json
import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table

from fedatoms.algorithms import ALGORITHMS
from fedatoms.cli import COMMANDS, FLOWER, Command, console, main
from fedatoms.cli.args import GROUPS, WHOLE, axes, docs_of, grid
from fedatoms.cli.parsing import as_typed, message_of, parse
from fedatoms.cli.result_tables import tables
from fedatoms.core.options import CHOICES, MODELS_SCORED
from fedatoms.data.datasets import DATASETS, Images
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import identity
from fedatoms.experiment.presets import PRESETS
from fedatoms.experiment.relevance import with_strengths_that_matter
from fedatoms.nn.models import MODELS
from fedatoms.personal import METHODS
from fedatoms.runs.comparison import compare, run_missing
from fedatoms.runs.results import read_result

QUICK = [
    "--clients",
    "10",
    "--rounds",
    "2",
    "--epochs",
    "1",
    "--batch-size",
    "32",
    "--fraction",
    "0.3",
    "--threads",
    "1",
]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def mistake(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Runs a command that must fail; returns its one line."""
    before = sorted(Path.cwd().rglob("*"))
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and said.err.startswith("fedatoms: "), said.err
    assert "Traceback" not in said.err
    assert sorted(Path.cwd().rglob("*")) == before, "something was written"
    return said.err


def cifar_folder(images: int = 12) -> Path:
    folder = Path("data") / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    draws = np.random.default_rng(0)
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        pixels = draws.integers(0, 256, (images, 3072), dtype=np.uint8)
        labels = [int(label) for label in np.arange(images) % 10]
        (folder / name).write_bytes(pickle.dumps({"data": pixels, "labels": labels}, protocol=2))
    return folder


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch stolen",)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--atoms", "0", "--parametrisation", "atoms"], ["--atoms 0", "less than 1"]),
        (["--atoms", "nine"], ["--atoms", "'nine'"]),
        (["--clients", "13"], ["13", "multiple"]),
        (["--classes-per-client", "11"], ["11", "10"]),
        (["--fraction", "0"], ["--fraction 0", "(0, 1]"]),
        (["--fraction", "1.5"], ["--fraction 1.5", "(0, 1]"]),
        (["--fraction", "nan"], ["--fraction nan"]),
        (["--rounds", "0"], ["--rounds 0"]),
        (["--lr", "-1"], ["--lr -1"]),
        (["--lr", "inf"], ["--lr inf"]),
        (["--beta", "0.3"], ["--beta 0.3", "whole"]),
        (["--beta", "0"], ["--beta 0"]),
        (["--beta", "often"], ["--beta often"]),
        (["--failures", "1"], ["--failures 1"]),
        (["--momentum", "1"], ["--momentum 1"]),
        (["--atoms-lr", "0"], ["--atoms-lr 0", "positive"]),
        (["--atoms-decay", "-1"], ["--atoms-decay -1", "negative"]),
        (["--gamma", "1.5"], ["--gamma 1.5", "[0, 1]", "0.4"]),
        (["--gamma", "nan"], ["--gamma nan"]),
        (["--holdout", "1"], ["--holdout 1", "[0, 1)", "0.1"]),
        (["--holdout", "-0.1"], ["--holdout -0.1", "[0, 1)"]),
        (["--holdout", "nan"], ["--holdout nan"]),
        (["--algorithm", "fedprx"], ["'fedprx'", "'fedprox'"]),
        (["--strength", "0.1"], ["strength", "fedavg"]),
        (["--algorithm", "feddyn", "--strength", "0"], ["--strength 0.0 is not a positive number"]),
        (["--dataset", "cifar"], ["'cifar'", "'cifar10'"]),
        (["--model", "lennet"], ["'lennet'", "'lenet'"]),
        (["--model", "lenet"], ["(1, 8, 8)"]),
        (["--model", "nowhere:net"], ["nowhere"]),
        (["--personal", "fedprox"], ["--personal fedprox is an algorithm. Use --algorithm fedprox."]),
        (["--algorithm", "ditto"], ["--algorithm ditto is a personalised method. Use --personal ditto."]),
        (["--parametrization", "atoms"], ["--parametrization", "Did you mean --parametrisation?"]),
        (["--partition", "shard"], ["'shard'", "'shards'"]),
        (["--parametrisation", "atom"], ["'atom'", "'atoms'"]),
        (["--init", "orthogonal", "--parametrisation", "atoms"], ["'orthogonal'", "'orthonormal'"]),
        (["--slow-local", "drop"], ["'drop'"]),
        (["--score", "everything"], ["'everything'"]),
        (["--fast", "atom", "--beta", "1/2"], ["'atom'", "'atoms'"]),
        (["--fixed", "atom"], ["'atom'", "'atoms'", "--fixed"]),
        (["--fixed", "statistics"], ["'statistics'", "Valid: atoms, coefficients, head, rest"]),
        (["--fixed", "atoms"], ["--fixed atoms", "no atoms", "head, rest, or --parametrisation atoms"]),
        (["--fixed", "head,rest"], ["--fixed head,rest", "nothing to train", "Leave out one of head, rest"]),
        (["--fixed", "head", "--personal", "fedper"], ["--fixed head", "--personal", "Leave one"]),
        (["--fixed", "head", "--personal", "finetune-head"], ["--fixed head", "--personal", "Leave one"]),
        (["fedavg-atoms", "--fixed", "atoms", "--personal", "local-atoms"], ["--fixed atoms", "--personal"]),
        (["--head", "fc9"], ["'fc9'"]),
        (["--where", "(", "--parametrisation", "atoms"], ["--where ("]),
        (["--where", "nothing", "--parametrisation", "atoms"], ["no convolution", "--where conv1"]),
        (["--where", "nothing", "--parametrisation", "fedpara"], ["no layer to factorise"]),
        (["--device", "gpu"], ["--device gpu", "...). Use --device cpu"]),
        (["--name", "a/b"], ["--name a/b", "--out"]),
        (["--name", " "], ["--name"]),
        (["--out", ""], ["--out"]),
        (["--threads", "9999"], ["--threads 9999", "cores"]),
        (["--beta", "1/2", "--slow-local", "freeze", "--fast", "atoms"], ["nothing to train"]),
        (["--atms", "3"], ["--atms", "--atoms"]),
        (["--atoms"], ["--atoms needs a value", "fedatoms run --help"]),
        (["fedavgg"], ["preset 'fedavgg'. Did you mean fedavg, ", "`fedatoms presets` lists all"]),
        (["--rounds", "3", "fedavg"], ["'fedavg' comes after flags", "fedatoms run fedavg ..."]),
        (["fedavg", "feddc"], ["'feddc' is one word too many"]),
        (["missing.json"], ["missing.json"]),
        (["--resume", "nowhere"], ["nowhere", "experiment.json"]),
        (["--dataset", "cifar10", "--model", "lenet"], ["data_batch_1", "cifar-10-batches-py", "kriz/cifar.html"]),
        (["--dataset", "cifar10", "--data-dir", "/no/such"], ["/no/such"]),
    ],
)
def test_bad_input_gets_one_line(words: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    line = mistake(["run", *words], capsys)
    assert all(part in line for part in expected), line


def test_a_model_without_convolutions_cannot_be_decomposed(capsys: pytest.CaptureFixture[str]) -> None:
    Path("two_networks.py").write_text(
        "from torch import nn\ndef mlp(classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    words = ["run", "--model", "two_networks:mlp", *QUICK]
    sys.dont_write_bytecode, old = True, sys.dont_write_bytecode
    try:
        said = mistake([*words, "--parametrisation", "atoms"], capsys)
        assert "no convolution" in said and "Use --where . for 1x1 convolutions too" in said
        assert "no layer to factorise" in mistake([*words, "--parametrisation", "fedpara"], capsys)
        assert main(words) == 0
    finally:
        sys.dont_write_bytecode = old


@pytest.mark.parametrize("harm", ["truncated", "malicious", "not a pickle", "missing"])
def test_broken_data_files_are_named_and_run_nothing(harm: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = cifar_folder() / "data_batch_3"
    if harm == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    if harm == "malicious":
        path.write_bytes(pickle.dumps(Evil()))
    if harm == "not a pickle":
        path.write_bytes(b"<html>404</html>")
    if harm == "missing":
        path.unlink()
    line = mistake(["run", "--dataset", "cifar10", "--model", "lenet"], capsys)
    assert "data_batch_3" in line and not Path("stolen").exists()


@pytest.mark.parametrize("name", ["fedavg-atoms-cifar10-2", "local-atoms-and-head-personal-cifar10-2"])
def test_cifar_runs_from_its_official_files(name: str) -> None:
    cifar_folder()
    words = ["run", name, "--clients", "5", "--rounds", "1", "--epochs", "1", "--fraction", "1", "--last-epochs", "1"]
    assert main([*words, "--name", "x", "--threads", "1"]) == 0
    assert Path("runs/x/result.json").exists()


def test_a_holdout_is_scored_instead_of_the_test_set(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import fedatoms.experiment.images

    real = fedatoms.experiment.images.load

    def without_a_test_set(*where: str) -> Images:
        images = real(*where)
        return images._replace(test_x=images.test_x[:0], test_y=images.test_y[:0])

    assert main(["run", *QUICK, "--holdout", "0.1", "--name", "x"]) == 0
    assert "held-out accuracy: mean" in capsys.readouterr().out
    monkeypatch.setattr(fedatoms.experiment.images, "load", without_a_test_set)
    assert main(["run", *QUICK, "--holdout", "0.1", "--name", "y"]) == 0
    seen, unseen = (read_result(Path("runs") / name) for name in ("x", "y"))
    assert seen.experiment.holdout == 0.1 and seen.accuracy == unseen.accuracy
    assert identity(seen.experiment) != identity(replace(seen.experiment, holdout=0.0))


def test_nan_in_the_loss_names_client_round_and_step_and_keeps_the_checkpoint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["run", *QUICK, "--lr", "0.1", "--lr-decay", "1e6", "--clip", "0", "--name", "x", "--rounds", "30"]
    assert main([*words, "--checkpoint-every", "1"]) == 2  # the rate explodes after the first round
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and all(word in line for word in ("client", "round", "step", "--lr"))
    done = max(int(path.stem) for path in Path("runs/x/checkpoint").glob("*.json"))
    assert f"round {done + 1}, " in line and done >= 1
    assert main(["run", "--resume", "runs/x"]) == 2  # the checkpoint is whole: the same round fails again
    assert f"round {done + 1}, " in capsys.readouterr().err


@pytest.mark.parametrize("way", [[], ["--map", "vectorised"]])
def test_a_run_that_diverges_is_named_and_the_table_is_that_of_the_others(
    way: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *QUICK, *way, "--lr", "1e5,0.1,0.2", "--clip", "0"]) == 1
    said = capsys.readouterr()
    failed = re.fullmatch(r"fedatoms: (fedavg-digits-s0-\S+) failed: client \d+, round 1, .*--lr.*\n", said.err)
    assert failed and f"1 of 3 runs failed, not in the table: lr=100000.0 ({failed[1]})\n" in said.out
    assert "lr=0.1 " in said.out and "lr=0.2 " in said.out


def test_where_all_runs_diverge_there_is_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *QUICK, "--lr", "1e5", "--clip", "0", "--seeds", "0,1"]) == 1
    said = capsys.readouterr().out
    assert "comparison" not in said and "2 of 2 runs failed" in said


def test_no_space_left_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import fedatoms.runs.checkpoints

    def full(path: Path, data: bytes, *, sync: bool = True) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(fedatoms.runs.checkpoints, "replace_file", full)
    assert main(["run", *QUICK, "--name", "x"]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "no space left" in line and "--resume" in line


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        ("run", "then use --resume: it continues from the last whole checkpoint."),
        ("compare", "then type the same again: finished runs and checkpoints are kept."),
        ("personalize", "then type the same again."),
        ("report", "then type the same again."),
        ("explain", "then type the same again."),
    ],
)
def test_a_full_disk_is_advised_on_by_command(command: str, advice: str) -> None:
    said = message_of(OSError(28, "No space left on device", "file"), [command, "x"])
    assert said == f"no space left for file. Free some, {advice}"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "out of memory. Lower --batch-size, "),
        (MemoryError("no 5 GiB"), "out of memory (no 5 GiB). Lower --batch-size, "),
        (
            RuntimeError(
                "[enforce fail at a.cpp:1] e == 0. DefaultCPUAllocator: can't allocate memory: 8 bytes.\nmore"
            ),
            "8",
        ),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "out of memory (CUDA out of memory. Tried"),
    ],
)
def test_memory_that_runs_out_costs_one_line_that_says_what_to_lower(
    error: Exception, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*words: object, **more: object) -> None:
        raise error

    importlib.import_module("fedatoms.runs.comparison")  # first: it would keep what is patched for ever
    monkeypatch.setattr("fedatoms.runs.execute.run", fail)
    line = mistake(["run"], capsys)
    assert said in line and "block, clients or atoms, or close other programs." in line


@pytest.mark.parametrize("typed", ["-o", "--out"])
def test_a_path_that_cannot_be_written_is_advised_on_by_the_flag_that_was_typed(typed: str) -> None:
    said = message_of(OSError(2, "No such file or directory", "/proc/x.csv"), ["report", "runs", typed, "/proc/x.html"])
    assert said.startswith(f"/proc/x.csv: No such file or directory. Choose another {typed} or --data-dir")


def test_another_runtime_error_is_no_mistake_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*words: object, **more: object) -> None:
        raise RuntimeError("a bug")

    importlib.import_module("fedatoms.runs.comparison")  # first: it would keep what is patched for ever
    monkeypatch.setattr("fedatoms.runs.execute.run", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["run"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "--lr", "1e308"], "--lr 1e+308 is more than 1e6. Use for example 0.1."),
        (["run", "--weight-decay", "1e308"], "--weight-decay 1e+308 is more than 1e6."),
        (["run", "--atoms-lr", "1e308"], "--atoms-lr 1e+308 is more than 1e6."),
        (["run", "--batch-size", "1000000000000"], "--batch-size 1000000000000 is more than 1e9."),
        (["flower", "demo", "--rounds", ""], "--rounds '' is not a whole number."),
        (["flower", "demo", "--rounds", "x"], "--rounds 'x' is not a whole number."),
        (["run", "--personal", "dito", "--dataset", "cifar10"], "Did you mean 'ditto'?"),
        (["run", "--batch-size", "100000000"], "--batch-size 100000000 is more than the 1,437 training images."),
        (["run", "--atoms", "1000000", "--parametrisation", "atoms"], "--atoms 1000000 is more than 1000."),
        (["run", "--device", "meta"], "--device meta cannot be used here"),
        (["run", "--device", "cpu:7"], "--device cpu:7 cannot be used here (there is one CPU device"),
        (["run", "--where", "("], "--where ( is not a regular expression"),
        (["run", "--failures", "0.999999999"], "no client reports in 40 rounds, so nothing would be learnt."),
        (["run", "--epochs", "999999999"], "most of it for batches, but "),
        (["run", "--strength", "1e308", "--algorithm", "fedprox"], "--strength 1e+308 is more than 1e6."),
        (["compare", "--seeds", "0-2"], "'0-2' is not a whole number. Put commas between values: 0,1,2."),
        (["compare", "--seeds", "0..99"], "'0..99' is not a whole number. Put commas between values: 0,1,...,99."),
        (["compare", "--plot", "/no/such/folder/x.png"], "there is no folder /no/such/folder."),
        (["compare", "--seeds", "0,99999999999999999999"], "seed 99999999999999999999 is more than 9.22337e18"),
        (["report", ".", "-o", "/no/such/folder/x.html"], "there is no folder /no/such/folder."),
        (["bench", "--out", "/no/such/folder/x.json"], "there is no folder /no/such/folder."),
        (["bench", "--backend", "nosuch"], "unknown backend 'nosuch'. Did you mean '"),
        (["bench", "--repeats", "-1"], "--repeats -1 is less than 1. Use --repeats 7."),
        (["bench", "--threads", "9999"], "--threads 9999 is more than this machine's "),
        (["reproduce", "iid", "--minutes", "-1"], "--minutes -1.0 is negative or not finite. Use for example 30"),
        (["reproduce", "iid", "--only", "a{99999999999999999999}"], "is not a regular expression"),
        (["explain", "--bounds", "--smoothness", "1e300"], "--smoothness 1e+300 is more than 1e12."),
    ],
    ids=str,
)
def test_a_number_or_a_place_that_cannot_be_meant_costs_one_line(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in mistake(words, capsys)


def test_a_command_may_be_spelt_as_the_english_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["personalise", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: fedatoms personalize")


def test_the_help_says_how_to_get_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "`fedatoms --version`" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["bogus"], ["rum"]])
def test_an_unknown_command_gets_the_nearest(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown command" in mistake(command, capsys)


def test_a_mistyped_preset_gets_its_five_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["run", "fedprox-cifar10"], ["compare", "fedavg", "fedprox-cifar10"]):
        line = mistake(words, capsys)
        named = re.split(", | or ", re.findall(r"Did you mean (.*)\?", line)[0])
        assert len(named) == 5 and named[0].startswith("fedprox-cifar10") and set(named) < set(PRESETS)


def test_a_mistake_in_a_terminal_is_a_plain_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert mistake(["run", "--atms", "3"], capsys).startswith("fedatoms: unknown option --atms. Did you mean --atoms?")
    assert main(["--help"]) == 0 and "\x1b[" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("lr=-1 is not positive. Use for example lr=0.1.", "--lr -1 is not positive. Use for example --lr 0.1."),
        ("--lr -1 is not a positive number.", "--lr -1 is not a positive number."),
        ("loss is nan. Lower lr, or set clip=10.", "loss is nan. Lower --lr, or set --clip 10."),
        ("client_state='disk' needs a folder", "--client-state disk needs a folder"),
        ("batch_size must be 1 or more", "--batch-size must be 1 or more"),
        ("`clip` and `where` do not go together", "`--clip` and `--where` do not go together"),
        ("decompose(net, atoms=9), or where=lambda name: True", "decompose(net, atoms=9), or where=lambda name: True"),
        ("the atoms of the head, in model 'lr' of runs/lr", "the atoms of the head, in model 'lr' of runs/lr"),
        ("fork=-1 is less than 0, as others=3 are", "--fork -1 is less than 0, as others=3 are"),
        ("Use objective=fedatoms.objectives.multi_label().", "Use --objective multi-label."),
        ("Use schedule=fedatoms.optimisers.cosine(rounds=9).", "Use schedule=fedatoms.optimisers.cosine(rounds=9)."),
        ("unknown field 'x'. Valid: dataset, data_dir, lr.", "unknown field 'x'. Valid: dataset, data_dir, lr."),
        ("it lacks the fields lr, batch_size and 3 more.", "it lacks the fields lr, batch_size and 3 more."),
    ],
)
def test_an_error_of_the_library_is_said_in_flags(said: str, shown: str) -> None:
    assert as_typed(said, ["--fork", "-1"]) == shown == as_typed(shown, ["--fork", "-1"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--algorithm fedavgm --strength 5", "--strength 5.0 is not in (0, 1). Use None"),
        ("--algorithm fedprox --strength 2e6", "--strength 2000000.0 is more than 1e6. Use None"),
        ("--objective-strength 1e5", "--objective-strength 100000.0 is not in [0, 1). Use for example 0.1"),
        ("--personal ditto --personal-strength -1", "--personal-strength -1.0 is negative or not finite. Use None"),
        ("--objective multi-label", "needs y of shape (n, labels), of 0 and 1. Use --objective classification."),
    ],
)
def test_a_strength_that_no_method_has_is_named_by_its_flag(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in mistake(["run", *words.split()], capsys)


def test_run_resume_and_saved_experiments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *QUICK, "--parametrisation", "atoms", "--beta", "1/2", "--name", "first"]) == 0
    said = capsys.readouterr().out
    assert "round 2/2" in said and "clients/s" in said and "s left" in said and "runs/first" in said
    assert main(["run", "--resume", "runs/first", "--rounds", "3"]) == 0
    assert len(Path("runs/first/rounds.jsonl").read_text().splitlines()) == 3
    assert main(["run", "runs/first/experiment.json", "--name", "second", "--rounds=1"]) == 0
    capsys.readouterr()
    assert main(["run", "--resume", "runs/first", "--name", "other"]) == 0  # a run keeps its folder
    assert "runs/first is complete after 3 rounds. Ask for more with --rounds N.\n" in capsys.readouterr().err
    assert "first holds no run: experiment.json is missing. Did you mean runs/first?" in mistake(
        ["run", "--resume", "first"], capsys
    )
    assert "--resume runs/first" in mistake(["run", "runs/first"], capsys)
    assert "`--epochs` cannot change" in mistake(["run", "--resume", "runs/first", "--epochs", "2"], capsys)
    assert "already holds a run" in mistake(["run", *QUICK, "--name", "first"], capsys)


def helps(commands: Mapping[str, Command], *path: str) -> Iterator[list[str]]:
    """Lists every command whose help there is."""
    yield [*path]
    for name, command in commands.items():
        yield from helps(command.commands, *path, name)


@pytest.mark.parametrize("path", [*helps(COMMANDS), ["explain", "--bounds"]], ids=" ".join)
def test_every_command_has_a_help_of_80_columns(
    path: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # a wide terminal makes it no wider
    assert main([*path, "--help"]) == 0
    said = capsys.readouterr()
    usage = " ".join(["usage: fedatoms", *(word for word in path if word != "--bounds"), "[-h]"])
    assert said.out.startswith(usage) and said.err == "" and os.environ["COLUMNS"] == "200"
    assert max(map(len, said.out.splitlines())) <= 80 and "(default: ''" not in said.out
    assert all(name in said.out for name in (COMMANDS if not path else ()))


@pytest.mark.parametrize("path", [[], ["compare"], ["reproduce"], ["report"], ["explain"], ["flower"]], ids=" ".join)
def test_without_words_a_command_that_needs_some_prints_its_help(
    path: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(path) == 0
    alone = capsys.readouterr().out
    assert main([*path, "-h"]) == 0
    assert capsys.readouterr().out == alone != ""


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("new", "DIR"),
        ("keys", "--host"),
        ("roster", "--samples"),
        ("supernode", "flower-supernode --help"),
        ("demo", "--tls"),
    ],
)
def test_the_commands_of_flower_have_helps_of_their_own(
    name: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["flower", name, "--help"]) == 0
    said = capsys.readouterr().out
    assert word in said and "subcommands" not in said


def test_every_field_is_a_flag_with_help_in_one_group(capsys: pytest.CaptureFixture[str]) -> None:
    names = [field.name for field in fields(Experiment)]
    assert sorted(name for group in GROUPS.values() for name in group) == sorted(names)
    assert all(docs_of(Experiment)[name] for name in names)
    assert main(["run", "--help"]) == 0
    text = capsys.readouterr().out
    for title, group in GROUPS.items():
        box = text.split(f"─ {title} options ─")[1].split("╰")[0]
        assert all(f"--{name.replace('_', '-')}" in box for name in group)
    assert all(name in text or "-head" in name for name in METHODS)  # there as local-atoms[-and-head]
    for table in (ALGORITHMS, DATASETS):
        assert all(name in text for name in table)
    assert all(name in text or name.startswith("resnet18") for name in MODELS)


def test_the_help_of_a_run_shows_every_closed_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    text = capsys.readouterr().out
    for name, words in {**CHOICES, "dataset": tuple(DATASETS)}.items():
        assert f"--{name.replace('_', '-')} {{{','.join(words)}}}" in text
    assert f"of {','.join(MODELS_SCORED)};" in " ".join(text.replace("│", "").split()).replace(", ", ",")


def test_the_help_of_a_preset_has_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "feddc-atoms25-cifar10-5", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "(default: feddc)" in said and "(parametrisation atoms). (default: 25)" in said


def test_no_help_needs_torch() -> None:
    """Nor does the list of presets."""
    flower = [f"flower {name}" for name in FLOWER]
    asked = [*(f"{name} --help" for name in ("", *COMMANDS, *flower, "explain --bounds")), "compare", "presets"]
    code = (
        "import sys; from fedatoms.cli import main\n"
        "for words in sys.argv[1:]: assert main(words.split()) == 0 and 'torch' not in sys.modules, words"
    )
    done = subprocess.run([sys.executable, "-c", code, *asked], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    assert "demo" in done.stdout and all(name in done.stdout for name in PRESETS)


def a_pipe() -> Console:
    return Console(file=io.StringIO(), width=80)


def lines_of(pipe: Console) -> list[str]:
    assert isinstance(pipe.file, io.StringIO)
    return pipe.file.getvalue().splitlines()


def test_a_pipe_hears_of_a_first_round_before_it_is_over_and_is_not_flooded(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = a_pipe()
    with console.overall(pipe, {"one": 1.0, "two": 3.0}) as tell:
        tell("one", 0.0)
        assert lines_of(pipe) == ["[0/2] one: 0% done, 0 s so far"]
        for share in range(1, 101):
            tell("one", share / 100)
        tell("two", 0.0)
        tell("two", 1.0)
    _, one, two = lines_of(pipe)
    assert one.startswith("[1/2] one: done, 0 s so far, about 0 s left") and two.startswith("[2/2] two: done")


def test_a_pipe_hears_that_a_job_failed_and_never_that_it_is_done() -> None:
    pipe = a_pipe()
    with console.overall(pipe, {"one": 1.0, "two": 3.0}) as tell:
        tell("one", 0.0)
        tell("one", 1.0, failed=True)
        tell("two", 1.0)
    assert [said.partition(",")[0] for said in lines_of(pipe)] == [
        "[0/2] one: 0% done",
        "[1/2] one: failed",
        "[2/2] two: done",
    ]


def test_a_pipe_hears_that_a_long_round_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "PAUSE", 0.02)
    pipe = a_pipe()
    with console.overall(pipe, {"one": 1.0}) as tell:
        tell("one", 0.0)
        while len(lines_of(pipe)) < 3:
            time.sleep(0.01)
    assert set(lines_of(pipe)) == {"[0/1] one: 0% done, 0 s so far"}
    with console.watching(pipe, "mine", 7):
        while "mine" not in lines_of(pipe)[-1]:
            time.sleep(0.01)
    assert lines_of(pipe)[-1] == "mine  in its first round"


def test_a_comparison_may_keep_clients_on_disk(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--algorithm", "feddc", "--client-state", "disk", *QUICK]) == 0
    (folder,) = Path("runs").iterdir()
    assert json.loads((folder / "experiment.json").read_text())["client_state"] == "disk"


def test_a_command_ends_with_the_next_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *QUICK, "--parametrisation", "atoms", "--name", "x"]) == 0
    *_, report, resume = capsys.readouterr().out.splitlines()
    assert report.startswith("next:  fedatoms report runs ") and "fedatoms run --resume runs/x --rounds 4" in resume
    for words in ([*resume.split("#")[0].split()[1:]], ["compare", *QUICK, "--out", "runs"], ["explain", "runs/x"]):
        assert main(words) == 0
        assert "next:  fedatoms report runs " in capsys.readouterr().out
    assert main(["report", "runs"]) == 0
    opened = f"open: {Path('report.html').resolve().as_uri()}"
    *_, before, after = capsys.readouterr().out.splitlines()
    assert before == opened and main(after.split("#")[0].split()[2:]) == 0
    assert main(["report", "runs/x"]) == 0
    *_, before, after = capsys.readouterr().out.splitlines()
    assert before == f"{opened} (replaces an older page)" and main(after.split("#")[0].split()[2:]) == 0
    assert main(["export", "runs/x", "--to", "safetensors"]) == 0
    assert "next:  fedatoms personalize runs/x --images FILE --out FILE" in capsys.readouterr().out
    assert main(["explain", "--bounds"]) == 0 and "next:  fedatoms explain RUN" in capsys.readouterr().out


def test_compare_prints_one_table_and_runs_nothing_twice(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "--parametrisation", "plain,atoms", "--seeds", "0,1", *QUICK, "--plot", "plot.png"]
    assert main(words) == 0
    first = capsys.readouterr().out
    assert "[4/4]" in first and "plain" in first and "atoms" in first and "±" in first
    assert Path("plot.png").read_bytes().startswith(b"\x89PNG")
    assert main(words) == 0
    second = capsys.readouterr().out
    assert "[1/4]" not in second and "Measured" not in second
    assert len(list(Path("runs").iterdir())) == 4


@pytest.mark.parametrize(
    ("words", "caption"),
    [
        (["--rounds", "1"], "test accuracy: after 1 round, in %; 1 seed"),
        (
            ["--rounds", "2", "--seeds", "0,1"],
            "test accuracy: mean over all 2 rounds, in %; ± standard deviation; 2 seeds",
        ),
        (["--rounds", "1,2"], "mean over each run's last 100 rounds, or all if fewer, in %; 1 seed"),
    ],
    ids=str,
)
def test_the_caption_of_a_table_says_what_its_numbers_are(
    words: list[str], caption: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *QUICK, *words]) == 0
    assert caption in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("columns", [60, 40])
def test_a_narrow_terminal_cuts_no_number(columns: int) -> None:
    grid = [Experiment(clients=10, rounds=2, epochs=1, seed=seed, lr=lr) for lr in (0.1, 0.2) for seed in (0, 1)]
    lines = compare(run_missing(grid, lambda label, rounds: nullcontext(lambda progress: None)))
    for each in zip(tables(lines, "comparison"), tables(lines, "comparison"), strict=True):
        wide, narrow = (shown(table, width) for table, width in zip(each, (200, columns), strict=True))
        numbers = [set(re.findall(r"\d+\.\d+", text)) for text in (narrow, wide)]
        assert numbers[0] and numbers[0] <= numbers[1] and "…" not in narrow
        assert all(len(line) <= columns for line in narrow.splitlines())
        assert "lr=0.1" in narrow and "lr=0.2" in narrow and (columns == 60 or "too narrow" in " ".join(narrow.split()))


def shown(table: Table, width: int) -> str:
    pipe = Console(file=io.StringIO(), width=width)
    console.show_table(pipe, table)
    return "\n".join(lines_of(pipe))


def test_the_table_of_a_run_says_what_is_special_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--optimiser", "adamw", "--lr", "0.01", "--schedule", "cosine", "--warmup", "1", "--beta", "1/2"]
    assert main(["run", *QUICK, *words, "--name", "x"]) == 0
    assert "fedavg plain beta=1/2 adamw cosine warmup=1" in capsys.readouterr().out


def test_one_is_singular(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *QUICK, "--rounds", "1", "--personal", "fedper", "--last-epochs", "1", "--name", "x"]) == 0
    assert main(["run", "--resume", "runs/x"]) == 0
    assert main(["demo", *QUICK, "--rounds", "1", "--seeds", "0"]) == 0
    said = capsys.readouterr()
    assert "x: 1 round" in said.out and "last pass: 1 epoch" in said.out and "complete after 1 round." in said.err
    assert not re.search(r"\b1 (rounds|epochs|seeds)", said.out + said.err)


def test_clients_own_models_have_a_table_next_to_the_servers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    quick = [*QUICK, "--last-epochs", "1"]
    assert main(["run", *quick, "--personal", "fedper", "--name", "x"]) == 0
    said, found = capsys.readouterr().out, read_result("runs/x")
    assert found.personal is not None and "clients' own models" in said and "fedavg plain fedper" in said
    for name in ("mean of the last ten", "after the last pass", "worst tenth", "spread"):
        assert f"{found.personal[name]:.2f}" in said
    assert main(["compare", *quick, "--personal", "none,ditto,local-atoms-and-head,local", "--seeds", "0,1"]) == 2
    assert "--parametrisation atoms" in capsys.readouterr().err
    atoms = ["--parametrisation", "atoms", "--seeds", "0,1"]
    assert main(["compare", *quick, *atoms, "--personal", "none,local-atoms-and-head,local"]) == 0
    before, _, own = capsys.readouterr().out.partition("clients' own models")
    assert "none" in before and "none" not in own and own.count("±") == 4
    assert "…" not in before + own, "a column does not fit"


def test_the_demo_of_local_training_sends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--rounds", "1", "--seeds", "0", "--epochs", "1", "--last-epochs", "1"]
    assert main(["demo", *words, "--personal", "local"]) == 0
    assert "bytes" not in capsys.readouterr().out.split("Measured")[1]


def test_presets_are_listed_in_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets"]) == 0
    heads, *said, after = capsys.readouterr().out.splitlines()
    assert heads.split() == ["preset", "method", "network", "paper"] and after.startswith("next:  fedatoms run ")
    assert len(said) == len(PRESETS) and max(map(len, said)) <= 80
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in said}
    assert rows["fedavg"] == "fedavg plain -" and rows["fedprox-atoms-cifar10-2"] == "fedprox 9 atoms Table 1"
    assert rows["fedprox-finetune-personal-cifar10-5"] == "finetune, fedprox plain Table 2"
    assert rows["feddc-atoms25-cifar100-20"] == "feddc 25 atoms -"  # the paper has 9


def test_a_mistake_in_the_last_experiment_costs_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'fedavgx'" in mistake(["compare", "--algorithm", "fedavg,fedavgx", *QUICK], capsys)
    assert "--plot" in mistake(["compare", "--algorithm", "fedavg,feddc", "--plot", "x.xyz"], capsys)
    assert "--name" in mistake(["compare", "--algorithm", "fedavg,feddc", "--name", "x"], capsys)


def points(*words: str, starts: Sequence[Experiment] = (Experiment(),)) -> list[Experiment]:
    """Returns the experiments of a grid."""

    def compare(*, given: Annotated[object, axes(starts[0])]) -> object:
        return given

    return grid(starts, parse("compare", compare, words), words)


def test_the_grid_is_the_product_of_its_axes() -> None:
    found = points("--atoms", "3,9", "--distinct", "--fast", "atoms,head", "--seeds=0,1", "--strength", "None,0.5")
    assert [(one.atoms, one.seed, one.strength) for one in found][:3] == [(3, 0, None), (3, 0, 0.5), (3, 1, None)]
    assert len(found) == 8 and all(one.distinct and one.fast == Experiment().fast for one in found)


def test_what_is_typed_first_varies_slowest() -> None:
    words = [["--algorithm", "fedavg,feddc"], ["--parametrisation", "plain,atoms"]]
    assert [one.algorithm for one in points(*words[0], *words[1])] == ["fedavg", "fedavg", "feddc", "feddc"]
    assert [one.algorithm for one in points(*words[1], *words[0])] == ["fedavg", "feddc", "fedavg", "feddc"]


def test_a_strength_goes_to_the_methods_of_a_grid_that_have_one(capsys: pytest.CaptureFixture[str]) -> None:
    found = with_strengths_that_matter(
        points("--algorithm", "fedavg,fedprox", "--strength", "0.1,0.5", "--seeds", "0,1")
    )
    tried = [(one.algorithm, one.strength) for one in found if one.seed == 1]
    assert tried == [("fedavg", None), ("fedprox", 0.1), ("fedprox", 0.5)] and len(found) == 6
    other = with_strengths_that_matter(points("--algorithm", "fedavg,fedprox", "--strength", "0.1,None"))
    assert [(one.algorithm, one.strength) for one in other] == [("fedavg", None), ("fedprox", 0.1), ("fedprox", None)]
    own = points("--personal", "none,ditto", "--personal-strength", "0.5")
    assert [one.personal_strength for one in with_strengths_that_matter(own)] == [None, 0.5]
    assert main(["compare", "--algorithm", "fedavg,fedprox", "--strength", "0.1", *QUICK]) == 0
    assert len([*Path("runs").iterdir()]) == 2
    assert "fedavg has none" in mistake(["compare", "--algorithm", "fedavg", "--strength", "0.1,0.5", *QUICK], capsys)


def test_what_is_not_typed_is_as_in_each_preset() -> None:
    starts = [PRESETS["fedavg-cifar10-5"], PRESETS["feddc"]]
    assert points(starts=starts) == starts
    assert points("--clients", "20", starts=starts) == [replace(one, clients=20) for one in starts]


def test_no_preset_sets_a_flag_that_has_no_value() -> None:  # a grid takes False for "not typed"
    switches = [field.name for field in fields(Experiment) if field.default is False]
    assert switches and not any(getattr(one, name) for one in PRESETS.values() for name in switches)


def test_a_field_whose_value_may_have_a_comma_is_one_value_of_the_grid() -> None:
    for name in WHOLE:
        for words in ([f"--{name.replace('_', '-')}", "a{1,2}"], [f"--{name.replace('_', '-')}=a{{1,2}}"]):
            assert len(points(*words, "--seeds", "0,1")) == 2
    lists = {name for name, doc in docs_of(Experiment).items() if re.search(r"[a-z],[a-z]", doc)}
    assert lists <= WHOLE and "fast" in WHOLE  # as their help shows them
    assert points("--where", "a{1,2}")[0].where == "a{1,2}"


def test_a_comparison_holds_two_groups_fixed_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "--parametrisation", "atoms", "--fixed", "atoms,coefficients", *QUICK]
    assert main(words) == 0
    (folder,) = Path("runs").iterdir()
    assert json.loads((folder / "experiment.json").read_text())["fixed"] == "atoms,coefficients"


def test_the_demo_measures_and_says_so_plainly(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--rounds", "2", "--seeds", "0", "--epochs", "1"]) == 0
    said = capsys.readouterr().out
    assert "Measured, atoms against plain" in said and "bytes" in said
    assert "more because 9 atoms are no fewer than the weights of a small filter" in " ".join(said.split())
    assert Path("runs/demo/demo.png").read_bytes().startswith(b"\x89PNG")
    assert main(["demo", "--rounds", "2", "--seeds", "0", "--epochs", "1", "--atoms", "6"]) == 0
    assert "more because" not in capsys.readouterr().out


def test_without_matplotlib_the_demo_has_its_table_and_says_how_to_get_the_plot(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "matplotlib" else find(name))
    assert main(["demo", "--rounds", "1", "--seeds", "0", "--epochs", "1"]) == 0
    said = capsys.readouterr().out
    assert "Measured, atoms against plain" in said and 'pip install "fedatoms[plot]"' in said
    assert not Path("runs/demo/demo.png").exists()
    said = mistake(["compare", *QUICK, "--rounds", "1", "--plot", "plot.png", "--out", "other"], capsys)
    assert said.startswith('fedatoms: --plot plot.png needs matplotlib. Type: pip install "fedatoms[plot]"')
    assert not Path("other").exists()


def test_a_signal_that_is_ignored_stays_so() -> None:
    code = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); from fedatoms.cli import main;"
    code += "main(['flower', '--help']); assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)  # as nohup does


STOPPED_AT = """
import runpy, signal, sys
module = sys.argv.pop(1)
class Finder:
    def find_spec(self, name, path, target=None):
        if name == module:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
runpy.run_module("fedatoms", run_name="__main__")
"""


@pytest.mark.parametrize("module", ["tyro", "numpy", "numpy._core.multiarray", "torch._C", "torch.nn"])
def test_ctrl_c_is_heard_while_modules_are_imported(module: str) -> None:
    command = [sys.executable, "-c", STOPPED_AT, module, "run", *QUICK]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "fedatoms: stopped.\n") and not Path("runs").exists()


@pytest.mark.parametrize("number", ["SIGINT", pytest.param("SIGTERM", marks=pytest.mark.slow)])
def test_an_interrupt_saves_a_checkpoint_and_says_how_to_go_on(number: str) -> None:
    import signal

    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"  # a shell's & takes it away
    code += "import sys; from fedatoms.cli import main; sys.exit(main(sys.argv[1:]))"
    words = [*QUICK, "--rounds", "100000", "--name", "x", "--eval-every", "1000"]
    process = subprocess.Popen([sys.executable, "-c", code, "run", *words], stderr=subprocess.PIPE, text=True)
    lines = Path("runs/x/rounds.jsonl")
    while not (lines.exists() and lines.read_text().count("\n") >= 3):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(getattr(signal, number))
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "fedatoms run --resume runs/x" in said and "Traceback" not in said
    rounds = lines.read_text().count("\n")
    (manifest,) = Path("runs/x/checkpoint").glob("*.json")
    assert int(manifest.stem) in (rounds, rounds - 1)


def test_a_new_flower_app_is_written_once(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("flwr")
    assert main(["flower", "new", "app"]) == 0
    assert "app/federation/task.py" in capsys.readouterr().out.replace("\n", "")
    assert "app is not empty. Use a new folder." in mistake(["flower", "new", "app"], capsys)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--address", "300.1.1.1"], "--address 300.1.1.1 is no IPv4 or IPv6 address. Use for example 192.0.2.7."),
        (["--host", "kl\u00ednik"], "is no name of a machine"),
        (["--host", "two words"], "is no name of a machine"),
        (["--host", ""], "is no name of a machine"),
    ],
)
def test_a_server_that_no_certificate_can_name_is_refused_before_anything_is_made(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("flwr")
    assert main(["flower", "keys", "keys", *flags]) == 2
    assert said in capsys.readouterr().err and not Path("keys").exists()


def test_a_long_name_of_a_server_gets_its_certificate() -> None:
    pytest.importorskip("flwr")
    assert main(["flower", "keys", "keys", "--host", ".".join(["link" * 10] * 3)]) == 0


def test_keys_are_secret_and_never_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("flwr")
    assert main(["flower", "keys", "keys", "--nodes", "2", "--host", "link.example.org"]) == 0
    capsys.readouterr()
    secret = {path.name for path in Path("keys").iterdir() if path.stat().st_mode & 0o077 == 0}
    assert secret == {"server.key", "node-0", "node-1"}
    assert "keys are never overwritten" in mistake(["flower", "keys", "keys"], capsys)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["demmo"], "Did you mean 'demo'"),
        (["new"], "DIR is missing: A new folder for the app. See `fedatoms flower new --help`"),
        (["new", "one", "two"], "'two' is one word too many"),
        (["keys"], "DIR is missing"),
        (["demo", "--nodes", "0"], "--nodes 0 is less than 1. Use --nodes 3"),
        (["demo", "--rounds", "0"], "--rounds 0 is less than 1"),
        (["keys", "here", "--nodes", "-1"], "--nodes -1 is less than 1. Use --nodes 3"),
        (["keys", "here", "--nodes", "99999999999999999999"], "--nodes 99999999999999999999 is more than 10000"),
        (["demo", "--tsl"], "Did you mean --tls"),
    ],
    ids=str,
)
def test_a_mistake_with_flower_costs_one_line(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("flwr")
    assert reason in mistake(["flower", *words], capsys)


def test_flower_says_how_to_install_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert 'pip install "fedatoms[flower]"' in mistake(["flower", "demo"], capsys)
    assert main(["flower"]) == 0 and "docs/federation.md" in capsys.readouterr().out


def unread(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Types a command whose output nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "fedatoms", *words]
        about = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        return subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=100, env=about)
    finally:
        os.close(writer)


@pytest.mark.parametrize("words", [["presets"], ["presets", "--help"], ["--version"]])
def test_a_reader_that_leaves_early_is_no_mistake(words: list[str]) -> None:
    ran = unread(words)
    assert ran.returncode == 141 and ran.stderr == ""


def test_a_run_that_nobody_reads_any_more_stops_with_a_checkpoint() -> None:
    ran = unread(["run", *QUICK, "--rounds", "100", "--name", "x"])
    said = "fedatoms: stopped. Checkpoint saved. Continue with: fedatoms run --resume runs/x\n"
    assert ran.returncode == 141 and ran.stderr == said
    assert main(["run", "--resume", "runs/x", "--rounds", "12"]) == 0


def test_the_words_of_a_supernode_are_flowers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    heard: list[list[str]] = []

    def supernode(words: list[str]) -> int:
        heard.append(words)
        return 3

    monkeypatch.setattr("fedatoms.flower.warm.supernode", supernode)
    words = ["--superlink", "there:8000", "--node-config", "partition-id=0 num-partitions=3", "--rounds", "--help"]
    assert main(["flower", "supernode", *words]) == 3
    assert heard == [words]
