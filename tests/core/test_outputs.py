"""A file that a user names makes folders below the working folder only: elsewhere a missing one is a mistaken path."""

from pathlib import Path

import pytest

from fedatoms.core import files
from fedatoms.core.files import check_folder
from fedatoms.core.outputs import check_output


def test_a_missing_folder_is_taken_below_the_working_folder_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    for good in (Path("a/b/report.html"), here / "c" / "report.html", tmp_path / "report.html", Path("report.html")):
        check_output(good)
    for bad in (tmp_path / "new" / "report.html", Path("../new/report.html"), Path("a/../../new/report.html")):
        with pytest.raises(ValueError, match=r"there is no folder .*new\. Make it first, or choose another file"):
            check_output(bad)
    assert list(tmp_path.iterdir()) == [here] and not any(here.iterdir())


def test_a_folder_is_tried_and_nothing_is_left(tmp_path: Path) -> None:
    check_folder(tmp_path / "new" / "runs")
    assert not list(tmp_path.iterdir())
    with pytest.MonkeyPatch.context() as patch, pytest.raises(PermissionError) as refused:
        patch.setattr(files, "TemporaryDirectory", _refuse)  # root may write everywhere
        check_folder(tmp_path / "new")
    assert refused.value.filename == str(tmp_path / "new") and not list(tmp_path.iterdir())


def _refuse(dir: Path) -> None:
    raise PermissionError(13, "Permission denied", str(dir / "tmpxyz"))
