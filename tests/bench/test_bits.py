"""Accuracy against bytes: what benchmarks/bits.py writes, and that the page is its files."""

import runpy

import pytest
from support import ROOT

BITS = runpy.run_path(str(ROOT / "benchmarks" / "bits.py"))
PAGE = ROOT / "docs" / "messages.md"


def test_the_page_of_messages_has_the_tables_of_all_files() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert len(list(BITS["RESULTS"].glob("bits-*.json"))) >= 1
    assert BITS["with_tables"](page) == page, "write it with: python benchmarks/bits.py --page"


def test_8_bits_send_a_quarter_of_the_bytes_in_every_file() -> None:
    for found in map(BITS["read"], sorted(BITS["RESULTS"].glob("bits-*.json"))):
        for network in found["presets"]:
            sizes = {run["uploads"]: run["bytes"] for run in found["runs"] if run["network"] == network}
            assert sizes["8-bit"] <= 0.26 * sizes["exact"] and sizes["4-bit"] <= 0.135 * sizes["exact"]


def test_differences_are_paired_by_seed() -> None:
    runs = [
        {
            "network": "plain",
            "uploads": uploads,
            "seed": seed,
            "accuracy": 50.0 + 10 * seed + less * (1 + 0.2 * seed),
            "bytes": size,
            "ms": 3,
        }
        for uploads, less, size in (("exact", 0.0, 4000), ("8-bit", -0.5, 1000), ("4-bit", -1.0, 500))
        for seed in (0, 1)
    ]
    made = {"device": "a CPU", "torch": "2", "fedatoms": "0", "commit": "0"}
    text = BITS["table"](
        {"dataset": "digits", "rounds": 2, "epochs": 0, "presets": {"plain": ""}, "runs": runs, "provenance": made}
    )
    assert "| plain | 8-bit | 54.45 | -0.55 ± 0.64 | 0.00 | 0.250 |" in text


def test_files_of_several_processes_become_one() -> None:
    first = BITS["read"](BITS["RESULTS"] / "bits-digits.json")
    parts = [
        {**first, "runs": [run for run in first["runs"] if run["network"] in kinds]}
        for kinds in (("plain",), ("atoms", "plain"))
    ]
    runs = BITS["joined"](parts)["runs"]
    assert sorted(map(str, runs)) == sorted(map(str, first["runs"]))
    with pytest.raises(SystemExit, match="different settings"):
        BITS["joined"]([first, {**first, "rounds": 7}])


@pytest.mark.slow
def test_a_run_measures_accuracy_bytes_and_time() -> None:
    runs = list(
        BITS["_runs"](
            BITS["asked"](["--rounds", "2", "--epochs", "1", "--seeds", "0"]),
            {("plain", "exact", 0), ("plain", "4-bit", 0)},
        )
    )
    assert [(run["network"], run["uploads"]) for run in runs] == [
        ("plain", "8-bit"), ("atoms", "exact"), ("atoms", "8-bit"), ("atoms", "4-bit"),
    ]  # fmt: skip
    assert all(0 <= run["accuracy"] <= 100 and run["ms"] > 0 for run in runs)
    assert runs[2]["bytes"] < 0.26 * runs[1]["bytes"]
