"""Mistakes in one line: tyro's, the library's and the system's, in the flags that a person typed."""

import dataclasses
import errno
import re
from collections.abc import Sequence

from fedatoms.core.lookup import one_line
from fedatoms.experiment.fields import Experiment

SAID = {  # tyro's words, and ours
    r"Unrecognized options: (-[^\s,]+).*": r"unknown option \1",
    r"Unrecognized options: ([^\s,]+).*": r"'\1' is one word too many",
    r"Missing value for argument '(\S+)'.*": r"\1 needs a value",
    r"Missing from .*?: (\S+).*": r"\1 is missing",
    r"Error parsing (\S+): (.*)": r"\1 \2",
}
CAUGHT = (ValueError, OSError, FloatingPointError, MemoryError)


def told(error: Exception, words: Sequence[str]) -> str:
    """Says in one line what went wrong, after the words that were typed."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        place = f" for {error.filename}" if error.filename else ""
        return f"no space left{place}. Free some, then use --resume: it continues from the last whole checkpoint."
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}. Choose another --out or --data-dir, or mend that path."
    return as_typed(one_line(error), words)


def as_typed(message: str, words: Sequence[str] = ()) -> str:
    """Says an error of the library in flags: those of an experiment, and those that were typed.

    An argument is known by its value (``lr=-1``), by backquotes, or by a name that is no English word; what stands
    inside a call is code, and stays.

    >>> as_typed("lr=-1 is not positive. Lower `clip`, see batch_size, or use fit(images, lr=0.1).")
    '--lr -1 is not positive. Lower `--clip`, see --batch-size, or use fit(images, lr=0.1).'
    >>> as_typed("fork=-1 is less than 0", ["--fork", "-1"]), as_typed("--lr -1 is not positive")
    ('--fork -1 is less than 0', '--lr -1 is not positive')
    """
    fields = {field.name for field in dataclasses.fields(Experiment)}
    typed = {word[2:].split("=")[0].replace("-", "_") for word in words if word.startswith("--")}
    names = "|".join(sorted(filter(str.isidentifier, fields | typed), key=len, reverse=True))
    plain = "|".join(name for name in names.split("|") if "_" in name or name == "lr")
    argument = re.compile(
        rf"(?P<call>\w\([^()]*\))|(?<![\w.'-])(?P<given>{names})=(?!lambda\b|=)(?:'(?P<text>[^'\s]+)')?"
        rf"|`(?P<quoted>{names})`|(?<![\w./'-])(?P<plain>{plain})(?![\w=(/'-]|\.\w)"
    )
    return argument.sub(_as_flag, message)


def unboxed(text: str) -> str:
    """Makes a sentence of tyro's message: its first paragraph below the title, and the flag that it suggests."""
    lines = [line.strip("│╭╮╰╯ ") for line in text.splitlines()[1:]]
    paragraphs = "\n".join("" if set(line) <= set("─-") else line for line in lines).strip()
    first = " ".join(paragraphs.split("\n\n")[0].split()).rstrip(".")
    for pattern, better in SAID.items():
        first = re.sub(pattern, better, first)
    near = re.search(r"(?:Perhaps you meant|Arguments similar to \S+):\s*(--[a-z-]+)", paragraphs)
    return f"{first}{'' if first.endswith('?') else '.'}{f' Did you mean {near[1]}?' if near else ''}"


def _as_flag(found: re.Match[str]) -> str:
    if found["call"]:
        return found[0]
    flag = "--" + (found["given"] or found["quoted"] or found["plain"]).replace("_", "-")
    if found["given"]:
        return f"{flag} {found['text'] or ''}"
    return f"`{flag}`" if found["quoted"] else flag
