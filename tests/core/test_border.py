"""What lies beyond the border is refused at once: nothing waits for a pipe, and nothing reads a file without an end."""

import os
import socket
from pathlib import Path

import pytest

from fedatoms.core.border import MAX_GB, limit, read_bytes


def test_a_pipe_a_device_a_folder_and_a_socket_are_refused_by_name(tmp_path: Path) -> None:
    pipe, link, folder, door = (tmp_path / name for name in ("pipe", "link", "folder", "socket"))
    os.mkfifo(pipe)
    link.symlink_to("/dev/zero")
    folder.mkdir()
    with pytest.raises(ValueError, match="pipe is a pipe, not a regular file"):
        read_bytes(pipe)
    with pytest.raises(ValueError, match="link is a device, not a regular file"):
        read_bytes(link)
    with pytest.raises(ValueError, match="folder is a folder"):
        read_bytes(folder)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(door))
        with pytest.raises(OSError, match="socket"):
            read_bytes(door)


def test_a_file_without_content_is_not_read_when_it_claims_a_terabyte(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(ValueError, match=r"1,000,000,000,000 bytes, more than .* FEDATOMS_MAX_GB=1001"):
        read_bytes(path)
    with pytest.raises(ValueError, match=r"such a file has at most 100. Restore the file"):
        read_bytes(path, most=100)


@pytest.mark.parametrize("given", ["many", "-1", "0", "nan", "inf"])
def test_the_limit_can_be_raised_by_a_number_of_gigabytes(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv(MAX_GB, "16")
    assert limit() == 16 * 10**9
    monkeypatch.setenv(MAX_GB, given)
    with pytest.raises(ValueError, match=f"FEDATOMS_MAX_GB={given} is not a number of gigabytes"):
        limit()
