"""Arrays that are read step by step: memory grows with what a file holds, never with what its header promises."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

STEP = 2**20  # bytes

Read = Callable[[int], bytes]


def read_array(read: Read, dtype: "np.dtype[np.generic]", shape: tuple[int, ...]) -> npt.NDArray[np.generic]:
    """Reads exactly as many bytes as an array takes; a stream that ends before or goes on after it is an error.

    >>> import io
    >>> read_array(io.BytesIO(b"abcdef").read, np.dtype(np.uint8), (2, 3))
    array([[ 97,  98,  99],
           [100, 101, 102]], dtype=uint8)
    >>> read_array(io.BytesIO(b"abcdef").read, np.dtype(np.uint8), (2, 2))
    Traceback (most recent call last):
    ...
    ValueError: it has more than the 4 bytes of data that its header promises
    """
    size = math.prod(shape) * dtype.itemsize
    data = np.empty(size, np.uint8)  # the system gives memory to what is written, not to what is asked for
    at = 0
    while at < size:
        part = read(min(STEP, size - at))
        if not part:
            raise ValueError(f"it has {at:,} bytes of data, but its header promises {size:,}")
        data[at : at + len(part)] = np.frombuffer(part, np.uint8)
        at += len(part)
    if read(1):
        raise ValueError(f"it has more than the {size:,} bytes of data that its header promises")
    return data.view(dtype).reshape(shape)
