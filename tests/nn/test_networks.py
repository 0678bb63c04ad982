"""The networks of others keep every law, or say why not; the table of docs/networks.md is what is found."""

import pytest
from zoo import installed
from zoo.trials import MAKER, PAGE, TRIALS, table, tried

from fedatoms.bench.report import content


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # no batching rule: client after client inside
def test_the_table_of_networks_is_what_is_found() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("onnxruntime")
    rows = {name: tried(trial) for name, trial in TRIALS.items()}
    assert content(PAGE.read_text(), "networks", MAKER).strip() == table(rows)
    assert len(rows) >= 30
    assert not [name for name, row in rows.items() if any("apart" in each for each in row)]


def test_the_table_of_published_networks_has_a_row_for_each() -> None:
    """They are tried by hand: torchvision brings another torch."""
    lines = content(PAGE.read_text(), "installed", installed.MAKER).splitlines()
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines if ": " in line] == [*installed.trials()]
