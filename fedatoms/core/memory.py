"""How much memory there is, and the one line for what cannot fit into it: said before it is asked for. No torch."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedatoms.core.border import open_regular

FULL = re.compile("can't allocate memory|out of memory|not enough memory|Invalid buffer size")
SYSTEM = Path("/")  # where the files lie in which Linux tells how much is left


def available(root: Path = SYSTEM) -> int | None:
    """Returns the bytes that this process can still get, swap included; None where the system does not say."""
    return min(_limits(root), default=None)


def check_fits(needs: Mapping[str, int], free: int | None, remedy: str) -> None:
    """Refuses what needs more bytes than are free; ``needs`` is a lower bound for each part.

    >>> check_fits({"batches": 3 * 10**12, "the model": 10**6}, 8 * 10**9, "Lower batch_size.")
    Traceback (most recent call last):
    ...
    ValueError: this needs at least 3,000.0 GB of memory, most of it for batches, but 8.0 GB are left. Lower batch_size.
    >>> check_fits({"batches": 3 * 10**12}, None, "Lower batch_size.")
    """
    total = sum(needs.values())
    if free is not None and total > free:
        most = max(needs, key=lambda part: needs[part])
        raise ValueError(
            f"this needs at least {_size(total)} of memory, most of it for {most}, but {_size(free)} are left. {remedy}"
        )


def is_out_of_memory(error: Exception) -> bool:
    """Says whether an error, of whatever type, is that memory ran out: torch has one of its own for each device.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."))
    True
    """
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and bool(FULL.search(str(error))))


def _limits(root: Path) -> Iterator[int]:
    """Yields what the machine has left, what a container may still take, and what a limit of the process allows."""
    machine = _numbers(root / "proc/meminfo")
    if "MemAvailable" not in machine:
        return
    swap = 1024 * machine.get("SwapFree", 0)
    yield 1024 * machine["MemAvailable"] + swap
    for group in _groups(root):
        most, now = (_number(group / one) or _number(group / other) for one, other in _FILES)
        if most is not None and now is not None:
            cached = _numbers(group / "memory.stat")  # files, which make room when it is needed
            yield max(most - now, 0) + cached.get("file", cached.get("total_cache", 0)) + swap
    yield from _of_process(root)


_FILES = ("memory.max", "memory.limit_in_bytes"), ("memory.current", "memory.usage_in_bytes")  # new and old systems


def _groups(root: Path) -> Iterator[Path]:
    """Yields the folders of the control groups that hold this process, from its own outwards."""
    mount = root / "sys/fs/cgroup"
    found = re.findall(r"(?m)^(?:\d+:memory|0:):/?(.*)$", _text(root / "proc/self/cgroup"))
    for top in (mount, mount / "memory"):
        for path in dict.fromkeys((*found, "")):  # within a container the path may be that of the host
            yield from (top / path, *(top / path).parents[: path.count("/") + 1 if path else 0])


def _of_process(root: Path) -> Iterator[int]:
    status = _numbers(root / "proc/self/status")
    try:
        import resource
    except ImportError:  # Windows
        return
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most != resource.RLIM_INFINITY and "VmSize" in status:
        yield max(most - 1024 * status["VmSize"], 0)


def _numbers(path: Path) -> dict[str, int]:
    return {name: int(number) for name, number in re.findall(r"(?m)^(\w+):?\s+(\d+)", _text(path))}


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        with open_regular(path) as file:
            return file.read().decode()
    except (OSError, ValueError):
        return ""


def _size(number: int) -> str:
    return f"{number / 1e9:,.1f} GB"
