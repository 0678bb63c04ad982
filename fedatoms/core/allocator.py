"""The C library's memory: freed tensors are kept for the next ones, instead of given back to the system. No torch."""

import ctypes
import os

_TRIM, _MMAP = -1, -3  # of glibc's malloc.h: what is kept at the end of the heap, and from which size memory is mapped
KEPT, LARGE = 2**30, 2**25  # bytes; LARGE is the most that glibc itself would choose
THEIRS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Lets glibc keep freed memory for this process; returns whether it does.

    A step allocates what the one before it has freed. Given back in between, each page of it is asked for and cleared
    again: a fifth of a step's time on a CPU. Who has set one of the variables ``THEIRS`` has decided otherwise.
    """
    if any(name in os.environ for name in THEIRS):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
    return bool(mallopt(_MMAP, LARGE) and mallopt(_TRIM, KEPT))
