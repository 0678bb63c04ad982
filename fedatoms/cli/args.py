"""The words of a command line: flags into settings, grids of them, and mistakes in one line."""

import contextlib
import dataclasses
import io
import itertools
import re
from collections.abc import Sequence
from typing import TypeVar

from fedatoms.experiment.fields import LIST_FIELDS, Experiment

Settings = TypeVar("Settings")


def parse(command: str, words: Sequence[str], default: Settings) -> Settings:
    """Reads flags into settings, such as an experiment; a mistake is a ValueError of one line.

    >>> from fedatoms.experiment.fields import Experiment
    >>> parse("run", ["--atoms", "3"], Experiment()).atoms
    3
    >>> parse("run", ["--atms", "3"], Experiment())
    Traceback (most recent call last):
    ...
    ValueError: Unrecognized options: --atms, 3. Did you mean --atoms? See `fedatoms run --help`.
    """
    import tyro

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(type(default), prog=f"fedatoms {command}", args=words, default=default)
    except SystemExit as end:
        if end.code in (0, None):
            raise
        raise ValueError(_unbox(said.getvalue(), command)) from None


def grid(words: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Takes the words of ``compare`` apart: the presets, and one list of flags for each point of the grid.

    >>> grid(["fedavg", "--atoms", "3,9", "--seeds", "0,1"])[1][1]
    ['--atoms', '3', '--seed', '1']
    """
    names, flags = before_flags(words)
    axes: list[list[list[str]]] = []
    for word in (part for flag in flags for part in split_equals(flag)):
        if word.startswith("--"):
            axes.append([[word.replace("--seeds", "--seed")]])
        elif axes:
            flag = axes[-1][0]
            values = [word] if flag[0].removeprefix("--") in LIST_FIELDS else word.split(",")
            axes[-1] = [[*flag, value] for value in values]
    return names, [list(itertools.chain(*point)) for point in itertools.product(*axes)]


def with_flags(text: str) -> str:
    """Turns the arguments of an experiment that an error names into flags; what stands in a call is code, and stays.

    >>> with_flags("batch_size=0 is less than 1. Use another `name`, or decompose(model, where=...).")
    '--batch-size 0 is less than 1. Use another `--name`, or decompose(model, where=...).'
    """
    names = "|".join(field.name for field in dataclasses.fields(Experiment))

    def flag(found: re.Match[str]) -> str:
        if found["call"]:
            return found[0]
        dashed = "--" + (found["given"] or found["quoted"]).replace("_", "-")
        return f"{dashed} " if found["given"] else f"`{dashed}`"

    pattern = rf"(?P<call>\w\([^()]*\))|(?<![\w.'-])(?P<given>{names})=(?!lambda\b|=)|`(?P<quoted>{names})`"
    return re.sub(pattern, flag, text)


def before_flags(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits words at the first flag.

    >>> before_flags(["table1", "--quick"])
    (['table1'], ['--quick'])
    """
    first = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
    return list(words[:first]), list(words[first:])


def take(words: list[str], flag: str) -> tuple[list[str], str | None]:
    """Takes a flag with its value out of the words."""
    words = [part for word in words for part in split_equals(word)]
    if flag not in words:
        return words, None
    place = words.index(flag)
    if place + 1 == len(words):
        raise ValueError(f"{flag} needs a value.")
    return words[:place] + words[place + 2 :], words[place + 1]


def split_equals(word: str) -> list[str]:
    return word.split("=", 1) if re.match(r"--[a-z-]+=", word) else [word]


def _unbox(text: str, command: str) -> str:
    """Makes one line of tyro's message: its first paragraph below the title, and the flag that it suggests."""
    lines = [line.strip("│╭╮╰╯ ") for line in text.splitlines()[1:]]
    paragraphs = "\n".join("" if set(line) <= set("─-") else line for line in lines).strip()
    first = " ".join(paragraphs.split("\n\n")[0].split()).rstrip(".")
    first = re.sub(
        r"Error parsing (\S+): invalid literal for int\(\) with base 10: (.*)", r"\1 \2 is not a whole number", first
    )
    first = re.sub(r"Error parsing (\S+): could not convert string to float: (.*)", r"\1 \2 is not a number", first)
    near = re.search(r"Perhaps you meant:\s*(--[a-z-]+)", paragraphs)
    hint = f" Did you mean {near[1]}?" if near else ""
    return f"{first}.{hint} See `fedatoms {command} --help`."
