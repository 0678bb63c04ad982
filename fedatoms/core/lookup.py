"""Looks names up in tables, with the nearest valid one in the error; names, paths and errors on one line."""

import difflib
import shlex
from collections.abc import Iterable, Mapping
from textwrap import shorten
from typing import TypeVar

T = TypeVar("T")
LONGEST = 200  # characters of a name that is listed whole: names in a file may be anything


def unknown(name: object, valid: Iterable[str], kind: str) -> ValueError:
    """Makes the error for an unknown name.

    >>> print(unknown("fedavgg", ["fedavg", "feddc"], "algorithm"))
    unknown algorithm 'fedavgg'. Did you mean 'fedavg'? Valid: fedavg, feddc.
    """
    names = list(valid)
    near = nearest(str(name), names)
    hint = f" Did you mean '{near}'?" if near else ""
    return ValueError(f"unknown {kind} '{name}'.{hint} Valid: {', '.join(names)}.")


def nearest(name: str, valid: Iterable[str], cutoff: float = 0) -> str:
    """Returns the valid name that is most like a name, in large or small letters; "" if none is as like as the cutoff.

    >>> nearest("SCAFOLD", ["fedavg", "scaffold"]), nearest("SCAFOLD", ["fedavg"], cutoff=0.6)
    ('scaffold', '')
    """
    names = {each.lower(): each for each in valid}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=cutoff)
    return names[near[0]] if near else ""


def find(name: str, table: Mapping[str, T], kind: str) -> T:
    """Looks a name up in a table.

    >>> find("a", {"a": 1}, "letter")
    1
    """
    if name not in table:
        raise unknown(name, list(table), kind)
    return table[name]


def some(names: Iterable[str], most: int = 3) -> str:
    """Lists the first few names, and counts the others.

    >>> some(["a", "b", "c", "d", "e"]), some(["a"]), some(["two\\nlines"])
    ('a, b, c and 2 more', 'a', "'two\\\\nlines'")
    """
    listed = [name if name.isprintable() and len(name) <= LONGEST else shown(name) for name in names]
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def counted(numbers: int | Iterable[int], word: str) -> str:
    """Writes a number, or all that occur, with a word in the singular or plural.

    >>> counted(1, "round"), counted(1437, "image"), counted([3, 1, 3], "seed")
    ('1 round', '1,437 images', '1/3 seeds')
    """
    found = {numbers} if isinstance(numbers, int) else set(numbers)
    return f"{'/'.join(f'{number:,}' for number in sorted(found))} {word}{'' if found == {1} else 's'}"


def as_word(value: object) -> str:
    """Writes a path or a name as a word of a command that can be pasted; a plain one stays as it is.

    >>> as_word("runs/mine"), as_word("my runs/mine")
    ('runs/mine', "'my runs/mine'")
    """
    return shlex.quote(str(value))


def article(word: str) -> str:
    """Returns the article of a word.

    >>> article("objective"), article("training")
    ('an', 'a')
    """
    return "an" if word[0] in "aeiou" else "a"


def shown(value: object, most: int = 60) -> str:
    """Shows a value in an error: the beginning of what Python writes, or its type where that takes several lines.

    >>> shown(None), shown("a" * 9, most=8), shown(type("Net", (), {"__repr__": lambda self: "a\\nb"})())
    ('None', "'aaa ...", '<Net>')
    """
    text = repr(value)
    if "\n" in text:
        return f"<{type(value).__name__}>"
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def first_line(error: BaseException, most: int = 120) -> str:
    """Returns the beginning of an error's first line: some of torch's list all devices, or the code that failed.

    >>> first_line(RuntimeError("no such device.\\nCalled from ...")), first_line(KeyError())
    ('no such device.', 'KeyError')
    """
    return shorten((str(error).strip() or type(error).__name__).splitlines()[0], most, placeholder=" ...")


def one_line(error: BaseException) -> str:
    """Returns the message of an error on one line; its type if it has none.

    >>> one_line(ValueError("no\\n  such thing")), one_line(KeyError())
    ('no such thing', 'KeyError')
    """
    return " ".join(str(error).split()) or type(error).__name__
