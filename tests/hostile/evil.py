"""A value that runs code when it is unpickled."""

import os

PWNED = "pwned"  # a folder that an evil file makes if its code runs


class Evil:
    """Makes a folder when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.mkdir, (PWNED,)
