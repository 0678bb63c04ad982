"""Work for the processes of other devices, which must be able to import it."""

import os
import signal
import warnings

from fedatoms.runs.devices import Tell


def obey(job: str, device: str, tell: Tell) -> tuple[str, int]:
    """Does what a job's name says, and answers with its name on its device and the number of its process."""
    tell(f"{job} begins")
    if job == "fail":
        raise ValueError("no such\nthing")
    if job == "warn":
        warnings.warn("beware", stacklevel=1)
    if job == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{job} on {device}", os.getpid()
