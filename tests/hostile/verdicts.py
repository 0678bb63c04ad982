"""What became of a case, in one word and a reason; docs/reliability.md explains the words."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from hostile.sandbox import Ran
from hostile.shell import Shell

Word = Literal["refused", "fine", "traceback", "raw", "hang", "memory", "unnoticed", "different"]
WORDS: tuple[Word, ...] = get_args(Word)
GOOD: tuple[Word, ...] = ("refused", "fine")
SLACK = 150.0  # MB, pages of libraries that a forked child touches for the first time among them
RAW = (  # words of others
    r"^MemoryError|^std::bad_alloc|^Unable to allocate|DefaultCPUAllocator|embedded null|no median|Expecting value|"
    r"^\[Errno|invalid literal|could not convert|is not iterable|unsupported operand|has no attribute|^'\w*'$|"
    r"out of range$|maximum recursion|codec can't|cannot be interpreted|object is not|Exceeds the limit|"
    r"must be real number|Python int too large|too large to convert|unexpected keyword|not supported between"
)


class Verdict(NamedTuple):
    """What became of a case."""

    word: Word
    why: str = ""


class Case(NamedTuple):
    """A case: its name tells it from all others of its kind, and ``judge`` runs it in an empty folder."""

    name: str
    judge: Callable[[Path, Shell], Verdict]


def verdict(ran: Ran, most: float, *, statuses: tuple[int, ...] = (0,)) -> Verdict:
    """Judges one command by itself; ``most`` is the memory that it may take, in MB above an idle one.

    >>> verdict(Ran(2, "", "fedatoms: lr=-1 is not positive. Use 0.1.", 0.1, 5.0, False), most=100)
    Verdict(word='refused', why='lr=-1 is not positive. Use 0.1.')
    >>> verdict(Ran(2, "", "fedatoms: MemoryError", 0.1, 5.0, False), most=100).word
    'raw'
    """
    last = (ran.err.strip().splitlines() or [""])[-1]
    if ran.memory > most:
        return Verdict("memory", f"{ran.memory:.0f} MB, of {most:.0f}; {last}")
    if ran.late:
        return Verdict("hang", last)
    if "Traceback" in ran.err or ran.status < 0:
        raised = re.findall(r"^[\w.]*(?:Error|Exception|Interrupt|Iteration)\b.*", ran.err, flags=re.M)
        return Verdict("traceback", raised[-1] if raised else last or f"signal {-ran.status}")
    if ran.status in statuses:
        return Verdict("fine", last)
    refusals = [line for line in ran.err.splitlines() if line.startswith("fedatoms: ")]
    if ran.status != 2 or not refusals or refusals[-1] != last:
        return Verdict("traceback", f"status {ran.status}: {last}")
    message = last.removeprefix("fedatoms: ")
    return Verdict("raw" if re.search(RAW, _first_clause(message)) else "refused", message)


def _first_clause(message: str) -> str:
    """Returns what a message says itself; a cause after a colon or in brackets may be in another library's words.

    >>> _first_clause("a.json is damaged (Expecting value (char 0)): NaN")
    'a.json is damaged '
    """
    shorter = re.sub(r"\([^()]*\)", "", message)
    return message.partition(": ")[0] if shorter == message else _first_clause(shorter)
