"""What is left of memory is the least that machine, container and process allow; what cannot fit costs one line."""

import resource
from pathlib import Path

import pytest

from fedatoms.core.memory import available, check_fits

GB = 10**9


def system(root: Path, files: dict[str, str]) -> Path:
    """Writes the files in which Linux tells how much memory is left."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MACHINE = {"proc/meminfo": "MemTotal: 9000000 kB\nMemAvailable: 4000000 kB\nSwapFree: 1000000 kB\n"}
NEW = {
    "proc/self/cgroup": "0::/job/step\n",
    "sys/fs/cgroup/job/memory.max": "3000000000\n",
    "sys/fs/cgroup/job/memory.current": "2500000000\n",
    "sys/fs/cgroup/job/memory.stat": "anon 1\nfile 500000000\n",
    "sys/fs/cgroup/job/step/memory.max": "max\n",
}
OLD = {
    "proc/self/cgroup": "4:memory:/docker/abc\n0::/\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "2000000000\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "1500000000\n",
    "sys/fs/cgroup/memory/memory.stat": "cache 1\ntotal_cache 100000000\n",
}


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({}, None),  # not Linux
        (MACHINE, 1024 * 5_000_000),
        (MACHINE | NEW, GB + 1024 * 1_000_000),  # files in memory make room, swap counts
        (MACHINE | OLD, 600_000_000 + 1024 * 1_000_000),  # the path of the host is not seen within a container
        (MACHINE | {"sys/fs/cgroup/memory.max": "x", "sys/fs/cgroup/memory.current": "1"}, 1024 * 5_000_000),
    ],
    ids=["silent", "machine", "new groups", "old groups", "strange"],
)
def test_what_is_left_is_what_the_narrowest_limit_leaves(tmp_path: Path, files: dict[str, str], left: int) -> None:
    assert available(system(tmp_path, files)) == left


def test_a_limit_of_the_process_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (2 * GB, 2 * GB))
    assert (
        available(system(tmp_path, MACHINE | {"proc/self/status": "VmSize:\t 1000000 kB\n"})) == 2 * GB - 1024 * 10**6
    )


def test_this_machine_says_what_is_left() -> None:
    left = available()
    assert left is None or left > 0


def test_what_fits_passes_and_what_does_not_names_its_largest_part() -> None:
    check_fits({"batches": GB}, GB, "Lower it.")
    with pytest.raises(
        ValueError, match=r"at least 2\.0 GB of memory, most of it for batches, but 1\.0 GB are left\. "
    ):
        check_fits({"the model": GB // 2, "batches": 3 * GB // 2}, GB, "Lower it.")
