"""A run that is stopped says how to go on, wherever it is."""

from pathlib import Path

import pytest

from fedatoms.cli import main
from fedatoms.engine.state import State

QUICK = "--clients 5 --rounds 2 --epochs 1 --last-epochs 1 --batch-size 64 --fraction 0.5 --threads 1 --personal fedper"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("fedatoms.runs.personal_models.last_pass", "Checkpoint saved. Continue with"),
        ("fedatoms.runs.personal_models.personal_score", "Checkpoint saved. Continue with"),
        (
            "fedatoms.runs.checkpoints._save",
            "No checkpoint is saved yet. Begin again with",
        ),  # that after the last round
    ],
)
def test_a_run_that_is_stopped_after_its_last_round_says_how_to_go_on(
    place: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> State:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(place, stop)
        assert main(["run", *QUICK.split(), "--name", "x"]) == 130
    assert capsys.readouterr().err.endswith(f"stopped. {said}: fedatoms run --resume runs/x\n")
    assert main(["run", "--resume", "runs/x"]) == 0
    assert Path("runs/x/result.json").exists()
