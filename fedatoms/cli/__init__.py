"""The command line: every command with its one-line summary; imports all layers, torch only when it must."""

import importlib
import itertools
import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from inspect import getdoc  # a command of that name lies in this folder
from typing import Annotated, NamedTuple, Union, cast

from tyro.conf import Suppress, subcommand

from fedatoms.cli.console import Unread, say
from fedatoms.cli.parsing import CAUGHT, Job, Options, as_typed, filled, message_of, parse
from fedatoms.cli.processes import check_alone, is_silent, wait_for_the_first
from fedatoms.core.lookup import find
from fedatoms.core.memory import is_out_of_memory
from fedatoms.core.version import __version__

__all__ = ["main"]


class Command(NamedTuple):
    """A command: its line in the help, and where its options are made, or commands of its own.

    Modules of commands are imported when they are typed, so that the help of one does not wait for the others.
    """

    summary: str
    options: str = ""  # module:function in this folder; the function gets the words that follow the command
    commands: Mapping[str, "Command"] = {}
    needs_words: bool = False  # without words it prints its help
    about: str = ""  # in the help of commands that have commands of their own
    passes_on: bool = False  # its words are another program's, and only --help is ours


FEDERATION = """Runs a real federation, on Flower: here, or on machines that do not trust each other.

docs/federation.md leads from one to the other."""
FLOWER = {
    "new": Command("write an app to fill in: your network and your data", "flower:new_options"),
    "keys": Command("make certificates for a server and keys for its nodes", "flower:keys_options"),
    "roster": Command("say whose key each client has, and how many samples", "flower_roster:options"),
    "supernode": Command("start a node that keeps torch loaded", "flower:supernode_options", passes_on=True),
    "demo": Command("run a SuperLink and SuperNodes on this machine", "flower:demo_options"),
}
COMMANDS = {
    "demo": Command("compare FedAvg with and without atoms, in about a minute", "demo:options"),
    "run": Command("train one experiment, or resume one", "run:options"),
    "runs": Command("list runs: running, stopped, finished, failed or damaged", "runs:options"),
    "compare": Command("train a grid of experiments, and show one table", "compare:options", needs_words=True),
    "tune": Command("search settings on held-out images, and print the best", "tune:options", needs_words=True),
    "reproduce": Command("redo the paper's tables and figures", "reproduce:options", needs_words=True),
    "report": Command("make one page of all results in some folders", "report:options", needs_words=True),
    "personalize": Command("fit a client that joins later", "personalize:options", needs_words=True),
    "export": Command("write a run's network as ONNX, a torch program or weights", "export:options", needs_words=True),
    "explain": Command("measure what latent clients change in a run", "explain:options", needs_words=True),
    "inspect": Command("say what atoms would do to a network", "inspect:options", needs_words=True),
    "presets": Command("list the named experiments", "presets:options"),
    "bench": Command("measure speed and memory against a hand-written loop", "bench:options"),
    "flower": Command("run a real federation, on Flower", commands=FLOWER, needs_words=True, about=FEDERATION),
}
SPELT = {"personalise": "personalize"}  # how else a command may be typed
ABOUT = (
    "Federated learning with filter atoms, on PyTorch. `fedatoms COMMAND --help` lists the options of a command, "
    "`fedatoms --version` prints the version."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; a mistake costs one line on stderr and exit status 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    words[:1] = [SPELT.get(word, word) for word in words[:1]]
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *where: _warn(as_typed(str(message), words))
            status = _parsed(words)()
            sys.stdout.flush()  # here: at Python's end a closed pipe is a message
            return status
    except (Unread, BrokenPipeError) as unread:  # whoever read the output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _stopped(unread, 141) if isinstance(unread, Unread) and unread.args else 141
    except KeyboardInterrupt as stop:
        return _stopped(stop, 130)
    except (*CAUGHT, RuntimeError) as error:
        if os.environ.get("FEDATOMS_DEBUG") or not (isinstance(error, CAUGHT) or is_out_of_memory(error)):
            raise
        if is_silent(error):
            wait_for_the_first()
        else:
            print(f"fedatoms: {message_of(error, words)}", file=sys.stderr)
        return 2


def _stopped(stop: KeyboardInterrupt, status: int) -> int:
    """Says that a command was stopped and how to go on, and returns the exit status."""
    if not is_silent():
        print(*("fedatoms: stopped.", *stop.args), file=sys.stderr)
    return status


def _warn(text: str) -> None:
    if not is_silent():
        say(text)


def _parsed(words: Sequence[str]) -> Job:
    """Returns what the words ask for; help and version are printed, and leave nothing to do."""
    if words[:1] == ["--version"]:
        print(f"fedatoms {__version__}")
        return lambda: 0
    for flag, word in itertools.pairwise(["", *words]):
        if "\0" in word:  # which no path and no name can have
            named = f"{flag} " if flag.startswith("-") else ""
            raise ValueError(f"{named}{repr(word)[1:-1]} has a null byte in it. Leave it out.")
    path, command = _chosen(words)
    check_alone(" ".join(path))
    rest = list(words[len(path) :]) or (["--help"] if command.needs_words else [])
    options = cast(Options, _union(COMMANDS, path, rest))
    ours = rest if not command.passes_on else [word for word in rest[:1] if word in ("-h", "--help")]
    try:
        job = parse("fedatoms", options, [*path, *ours], command=" ".join(["fedatoms", *path]), about=filled(ABOUT))
    except SystemExit:  # the help is printed
        return lambda: 0
    importlib.import_module("numpy")  # by torch, which comes later, its import is called from C: that swallows Ctrl-C
    _interrupt_by("SIGTERM")  # a cluster's "time is up" saves a checkpoint too
    _interrupt_by("SIGHUP")  # and a terminal that is closed leaves nothing running, unless by nohup
    return job


def _chosen(words: Sequence[str]) -> tuple[list[str], Command]:
    """Returns the words that name a command, such as flower and new, and the command."""
    path, command = list[str](), Command(ABOUT, commands=COMMANDS, needs_words=True)
    for word in itertools.takewhile(lambda word: not word.startswith("-"), words):
        if not command.commands:
            break
        command = find(word, command.commands, " ".join([*path, "command"]))
        path.append(word)
    return path, command


def _union(commands: Mapping[str, Command], path: Sequence[str], rest: Sequence[str]) -> object:
    """Returns commands as subcommands of tyro: the one that is typed as a whole, of the others their summary alone.

    The options of some commands need torch, which the help of another should not wait for.
    """
    parts: list[object] = [Annotated[object, Suppress]]  # spares tyro a check of types that takes longer than all else
    for name, command in commands.items():
        made: object = _nothing
        about = command.summary
        if [name] == path[:1]:
            made = _options(command, rest) if command.options else _union(command.commands, path[1:], rest)
            about = filled(getdoc(made) or "" if command.options else command.about)
        parts.append(Annotated[object, subcommand(name, constructor=cast(Options, made), description=about)])
    return Union[tuple(parts)]  # noqa: UP007 (a union of what is only known now)


def _options(command: Command, rest: Sequence[str]) -> Options:
    module, _, function = command.options.partition(":")
    make: Callable[[Sequence[str]], Options] = getattr(importlib.import_module(f"{__name__}.{module}"), function)
    return make(rest)


def _nothing() -> None:
    """Stands for the options of a command that is not typed."""


def _interrupt_by(name: str) -> None:
    """Makes a signal stop a command as Ctrl-C does, if there is such a signal and nobody had it ignored."""
    number = getattr(signal, name, None)
    if number is not None and signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, _interrupt)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
