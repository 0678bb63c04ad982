"""Stands in for Flower's ``flwr-clientapp``: hands its words to a process that forks one, or starts Flower's own.

Run by its path as ``python -IS stand_in.py SOCKET PROGRAM WORDS``, once for each message: so it imports nothing but
what Python itself has.
"""

import json
import os
import socket
import sys

OTHER_PACKAGES = "--allow-runtime-dependency-installation"  # of the app: what is imported already may be too old


def main(place: str, program: str, *words: str) -> None:
    """Lets the process that listens at ``place`` do the work, writing where this one writes; else does it here."""
    if OTHER_PACKAGES not in words and _handed_on(place, words):
        return
    os.execv(program, [program, *words])


def _handed_on(place: str, words: tuple[str, ...]) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as to:
            to.connect(place)
            socket.send_fds(to, [json.dumps(words).encode()], [1, 2])
            return to.recv(1) != b""
    except OSError:  # it is gone
        return False


if __name__ == "__main__":
    main(*sys.argv[1:])
