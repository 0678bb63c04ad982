"""Words in, by tyro: a command's options, a help of 80 columns, or a mistake in one line."""

import codecs
import contextlib
import dataclasses
import errno
import io
import itertools
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import tyro

from fedatoms.core.lookup import one_line
from fedatoms.core.memory import is_out_of_memory

T = TypeVar("T")
Job = Callable[[], int]  # what a command does once its words are understood; returns the exit status
Options = Callable[..., Job]  # its parameters are the options of a command, which tyro fills in

WIDTH = 80  # columns of a help, at most
NO_WRAP = 10_000  # columns of a mistake, which is one line
COLOUR = "\x1b\\[[0-9;]*m"
CAUGHT = (ValueError, OSError, FloatingPointError, MemoryError)  # errors that cost one line
AFTER_FULL = {  # what to do once a full disk has room again; other commands leave nothing to go on with
    "run": "use --resume: it continues from the last whole checkpoint",
    **dict.fromkeys(
        ("compare", "demo", "reproduce", "tune"), "type the same again: finished runs and checkpoints are kept"
    ),
}
LOWER = {  # what takes memory in commands that train nothing
    "inspect": "Use fewer `classes`, a smaller `image` or a smaller network",
    **dict.fromkeys(("export", "report", "runs", "presets", "flower"), "Use a smaller run"),
}
OWN = {"export": {"to"}}  # what the library names of a command, besides fields of an experiment and what is typed
PATTERNS = {r"True": ".", r"name == '([^']+)'": r"\1"}  # what a function of layers returns, and --where for the same
REWORDED = {  # tyro's messages, and ours
    r"Unrecognized options: (-[^\s,]+).*": r"unknown option \1",
    r"Unrecognized options: ([^\s,]+).*": r"'\1' is one word too many",
    r"Missing value for argument '(\S+)'.*": r"\1 needs a value",
    r"Missing from .*?: (\S+) (.*?)\.? \(required\).*": r"\1 is missing: \2",
    r"Error parsing (\S+): (.*)": r"\1 \2",
    r"invalid literal for int\(\) with base 10: (.*)": r"\1 is not a whole number",
    r"could not convert string to float: (.*)": r"\1 is not a number",
}


class Terminal(io.BytesIO):
    """Keeps what is meant for a terminal, colours too."""

    def isatty(self) -> bool:
        return True


def parse(
    prog: str, options: Callable[..., T], words: Sequence[str], *, command: str = "", about: str | None = None
) -> T:
    """Calls ``options`` with what was typed; a mistake is a ValueError of one line that names the command's help.

    >>> def greet(*, times: int = 1) -> int:
    ...     return times
    >>> parse("greet", greet, ["--times", "3"])
    3
    >>> parse("greet", greet, ["--tims", "3"])
    Traceback (most recent call last):
    ...
    ValueError: unknown option --tims. Did you mean --times? See `greet --help`.
    """
    wants_help = bool({"-h", "--help"} & set(words))
    page, box = _page(coloured=wants_help and sys.stdout.isatty()), io.StringIO()
    columns = min(shutil.get_terminal_size().columns, WIDTH) if wants_help else NO_WRAP
    try:
        with _columns(columns), contextlib.redirect_stdout(page), contextlib.redirect_stderr(box):
            return tyro.cli(options, prog=prog, description=about, args=words)
    except SystemExit as end:
        if end.code not in (0, None):
            raise ValueError(f"{unboxed(box.getvalue())} See `{command or prog} --help`.") from None
        page.seek(0)
        print(tidied(page.read()), end="")
        raise


def filled(text: str) -> str:
    """Wraps a description to the width of a help, but for indented lines; tyro keeps lines that begin with a space."""
    lines: list[str] = []
    for kept, part in itertools.groupby(text.splitlines(), key=lambda one: one[:1] in ("", " ")):
        together = list(part)
        lines += together if kept else textwrap.wrap(" ".join(together), WIDTH - 2)
    return "\n".join(f"  {one}".rstrip() for one in lines)


def message_of(error: Exception, words: Sequence[str]) -> str:
    """Returns the one line for an error of the command that was typed."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        place = f" for {error.filename}" if error.filename else ""
        return f"no space left{place}. Free some, then {AFTER_FULL.get(''.join(words[:1]), 'type the same again')}."
    if is_out_of_memory(error) and not str(error).startswith("out of memory"):  # else the engine says what to do
        said = "" if type(error) is MemoryError and not error.args else f" ({first_line(error)})"
        lower = LOWER.get("".join(words[:1]), "Lower batch_size, block, clients or atoms")
        return as_typed(f"out of memory{said}. {lower}, or close other programs.", words)
    if isinstance(error, OSError) and error.filename and error.strerror:
        out = "-o" if "-o" in words else "--out"
        return f"{error.filename}: {error.strerror}. Choose another {out} or --data-dir, or repair that path."
    return as_typed(one_line(error), words)


def first_line(error: Exception) -> str:
    """Returns the first line of an error, without the places in code that torch puts before it.

    >>> first_line(RuntimeError("[enforce fail at alloc_cpu.cpp:1] err == 0. DefaultCPUAllocator: no memory"))
    'DefaultCPUAllocator: no memory'
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return re.sub(r"^\[enforce fail.*?\. (?=Default)", "", lines[0]).rstrip(".")


def as_typed(message: str, words: Sequence[str] = ()) -> str:
    """Says an error of the library in flags: those of an experiment, and those that were typed.

    An argument is known by its value (``lr=-1``), by backquotes, or by a name that is no English word; a method is
    typed by its name. What stands inside another call is code, and stays, as do lists of valid words and of fields; a
    function of layers is said as the pattern that chooses the same.

    >>> as_typed("lr=-1 is not positive. Lower `clip`, see batch_size, or use fit(images, lr=0.1).")
    '--lr -1 is not positive. Lower `--clip`, see --batch-size, or use fit(images, lr=0.1).'
    >>> as_typed("fork=-1 is less than 0", ["--fork", "-1"]), as_typed("--lr -1 is not positive")
    ('--fork -1 is less than 0', '--lr -1 is not positive')
    >>> as_typed("Use where=lambda name, module: True for all, or where=lambda name, module: name == 'conv1'.")
    'Use --where . for all, or --where conv1.'
    """
    from fedatoms.experiment.fields import Experiment  # not at the top: a help has nothing to say it of

    fields = {field.name for field in dataclasses.fields(Experiment)}
    typed = {word[2:].split("=")[0].replace("-", "_") for word in words if word.startswith("--")}
    typed |= OWN.get("".join(words[:1]), set())
    names = "|".join(sorted(filter(str.isidentifier, fields | typed), key=len, reverse=True))
    plain = "|".join(name for name in names.split("|") if "_" in name or name == "lr")
    argument = re.compile(
        rf"(?P<code>\w\([^()]*\)|Valid: [\w, -]+|lacks the fields? [\w, ]+)"
        rf"|(?<![\w.'-])(?P<given>{names})=(?!lambda\b|=|[\w.]+\([^)])"
        rf"(?:'(?P<text>[^'\s]+)'|fedatoms\.\w+\.(?P<made>\w+)\(\))?"
        rf"|`(?P<quoted>{names})`|(?<![\w./'-])(?P<plain>{plain})(?![\w=(/'-]|\.\w)"
    )
    for function, pattern in PATTERNS.items():
        message = re.sub(rf"where=lambda name, module: {function}", rf"--where {pattern}", message)
    return argument.sub(_as_flag, message)


def tidied(text: str) -> str:
    """Shortens the usage of tyro's help, which names all commands, and leaves out rows that say nothing.

    >>> print(tidied("usage: fedatoms [-h] {run,demo}\\n\\n\\n│ one │\\n│     │"))
    usage: fedatoms [-h] COMMAND ...
    <BLANKLINE>
    │ one │
    """
    text = re.sub(r"(usage:.*?)\{[a-z,]+\}", r"\1COMMAND ...", text, count=1)
    text = re.sub(r"\[[A-Z]+ OPTIONS\]", "[OPTIONS]", text, count=1)
    text = re.sub(r"(?m)^(usage:(?=.{75}).*?\[-h\][^\[]*)\[-.*$", r"\1[OPTIONS]", text, count=1)  # of 80 columns
    text = re.sub(r"\n{3,}", "\n\n", text)
    bare = {row: re.sub(COLOUR, "", row).strip("│ ") for row in text.split("\n")}
    return "\n".join(row for row in text.split("\n") if "│" not in row or bare[row] not in ("", "(required)"))


def unboxed(text: str) -> str:
    """Makes a sentence of tyro's message: its first paragraph below the title, and the flag that it suggests."""
    lines = [line.strip("│╭╮╰╯ ") for line in text.splitlines()[1:]]
    paragraphs = "\n".join("" if set(line) <= set("─-") else line for line in lines).strip()
    first = " ".join(paragraphs.split("\n\n")[0].split()).rstrip(".")
    for pattern, better in REWORDED.items():
        first = re.sub(pattern, better, first)
    near = re.search(r"(?:Perhaps you meant|Arguments similar to \S+):\s*(--[a-z-]+)", paragraphs)
    return f"{first}{'' if first.endswith('?') else '.'}{f' Did you mean {near[1]}?' if near else ''}"


def _as_flag(found: re.Match[str]) -> str:
    if found["code"]:
        return found[0]
    flag = "--" + (found["given"] or found["quoted"] or found["plain"]).replace("_", "-")
    if found["given"]:
        return f"{flag} {found['text'] or (found['made'] or '').replace('_', '-')}"
    return f"`{flag}`" if found["quoted"] else flag


def _page(*, coloured: bool) -> io.TextIOWrapper:
    """Returns a file for a help text, which tyro takes for stdout: it draws boxes if that can show them."""
    encoding = codecs.lookup(sys.stdout.encoding or "utf-8").name  # tyro knows no other spelling
    return io.TextIOWrapper(Terminal() if coloured else io.BytesIO(), encoding=encoding)


@contextlib.contextmanager
def _columns(number: int) -> Iterator[None]:
    """Tells tyro, which asks the terminal, how wide it may write."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(number)
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
