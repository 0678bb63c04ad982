"""How a case runs commands and Python: in a forked child that has imported everything, or as a user does."""

import hashlib
import os
import re
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hostile import sandbox
from hostile.sandbox import Child, Ran

SECONDS = 60.0  # that honest commands of the campaign never take
REFUSALS = (ValueError, TypeError, OSError, FloatingPointError)
PACKAGE = f"{os.sep}fedatoms{os.sep}"


@dataclass
class Shell:
    """Runs commands; ``fresh`` ones start a new interpreter, as a user does. ``log`` keeps what was run."""

    fresh: bool
    log: list[str] = field(default_factory=list)

    def run(
        self, words: Sequence[str], folder: Path, seconds: float = SECONDS, stop: signal.Signals = signal.SIGKILL
    ) -> Ran:
        """Runs a command of fedatoms in a folder."""
        return self._logged(f"fedatoms {' '.join(words)}", sandbox.finish(self.start(words, folder), seconds, stop))

    def start(self, words: Sequence[str], folder: Path) -> Child:
        """Starts a command of fedatoms."""
        fresh = [sys.executable, "-m", "fedatoms", *words]
        return sandbox.start(
            (lambda: os.execv(sys.executable, fresh)) if self.fresh else lambda: command(words), folder
        )

    def python(self, code: str, folder: Path, seconds: float = SECONDS) -> Ran:
        """Evaluates Python in a folder, with the names of ``hostile.names``; its value is printed as a digest."""
        fresh = [sys.executable, "-m", "hostile.shell", code]
        act = (lambda: os.execv(sys.executable, fresh)) if self.fresh else lambda: evaluate(code)
        return self._logged(code, sandbox.run(act, folder, seconds))

    def _logged(self, what: str, ran: Ran) -> Ran:
        how = f"{ran.seconds:.1f} s, {ran.memory:.0f} MB, status {ran.status}{', stopped' if ran.late else ''}"
        self.log.append(f"$ {what[:500]}\n{ran.err[-3000:]}[{how}]")
        return ran


def command(words: Sequence[str]) -> int:
    """Acts as a command of fedatoms."""
    from fedatoms.cli import main

    return main(list(words))


def evaluate(code: str) -> int:
    """Evaluates code and prints a digest of its value; an error costs one line and status 2, as on the command line.

    One that is no refusal of ours is printed with its traceback: of another type, of several lines, or raised in the
    depths of another library.
    """
    from hostile import names

    try:
        print(digest(eval(code, dict(vars(names)))))
    except REFUSALS as error:
        message = str(error)
        if "\n" in message.strip() or not message or not _is_ours(error):
            traceback.print_exc()
            return 1
        print(
            f"fedatoms: ({message})" if isinstance(error, TypeError | OSError) else f"fedatoms: {message}",
            file=sys.stderr,
        )
        return 2
    return 0


def digest(value: object) -> str:
    """Describes a value so that equal ones, and no others, have the same text.

    >>> digest({"a": [1.0, None]})
    "{'a': [1.0, None]}"
    """
    import torch
    from torch.nn.parameter import is_lazy

    if isinstance(value, torch.nn.Module):
        return digest(value.state_dict())
    if isinstance(value, torch.Tensor):
        if is_lazy(value) or value.is_meta:  # no values to compare
            return f"{value.dtype} on {value.device}"
        data = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(data).hexdigest()}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {digest(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(digest, value))}]"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _is_ours(error: BaseException) -> bool:
    """Returns whether an error was raised in fedatoms or by the call, or is Python's own about a type or a file."""
    (*_, last) = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    file = last.f_code.co_filename
    if isinstance(error, TypeError | OSError):
        return "site-packages" not in file
    return PACKAGE in file or file == "<string>"


if __name__ == "__main__":
    raise SystemExit(evaluate(sys.argv[1]))
