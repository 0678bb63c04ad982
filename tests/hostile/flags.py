"""Every flag of every command with extreme values, one to three at once: refused in one line, or it works."""

import dataclasses
import math
import os
import random
import signal
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, get_args, get_origin, get_type_hints

from hostile import subjects
from hostile.shell import Shell
from hostile.verdicts import Case, Verdict, verdict

NUMBER, REAL = 1000, 60
MEMORY = 1000.0  # MB above an idle command: the digits need 100
SECONDS, WORKING = 30.0, 8.0  # limits: of a command, and of one that was asked for much work
LONG = frozenset(  # flags that ask for more work: when the time is over, such a command must stop by Ctrl-C
    "rounds epochs last-epochs clients fraction repeats fork crossed steps seeds samples tested minutes nodes".split()
)
WHOLE = ("-1", "0", "1", "2", "7", "1000000", "100000000", str(2**31), str(2**63), str(10**12), str(10**23), "-0")
REAL_NUMBERS = (
    "nan", "inf", "-inf", "-1", "0", "-0.0", "5e-324", "1e-308", "1e-9", "0.5", "0.999999999", "1", "2", "1e9", "1e38",
    "1e308",
)  # fmt: skip
INTS = (*WHOLE * 2, "1e3", "1.5", "nan", "", "x", "\N{ARABIC-INDIC DIGIT THREE}", "0x10", " 1", "1_0")
FLOATS = (*REAL_NUMBERS * 2, "1e400", "", "x", "1e", "0x1p3")
TEXTS = (
    "", " ", ".", "..", "/", "/dev/null", "/dev/zero", "/proc/self/mem", "a" * 300, "a" * 5000, "\N{COLLISION SYMBOL}",
    "\u202e", "-", "--", "a\nb", "(", "[red]", "{x}", "%s", "nosuch", ",", ",,", "a,b", "1/0", "0/1", "1/3", "-1/2",
    "1/1000000000000", "os:", ":", "os:nosuch", "os:getcwd", "math:pi", "fedatoms:nosuch", "\udcff", "*", "$HOME", "~",
    "cuda", "cuda:7", "cpu:7", "meta", "mps", "i.npz", "runs", "pipe", "\0",
)  # fmt: skip
LONG_COMMANDS = ("bench", "demo", "reproduce", "tune")
SHAPES = (
    "3x32x32", "1x8x8", "999999x3x3", "3x20000x20000", "1x800000x800000", "3x", "x", "0x8x8", "1x-8x8", "1x8", "8",
    "1x8x8x8x8x8x8", f"{'9' * 30}x3x3", "1x8x8.5", "1X8X8", "\N{ARABIC-INDIC DIGIT THREE}x8x8",
)  # fmt: skip
OVER = (
    "lr=0.1,0.2", "lr=0.1..1", "lr=0.1..1:log", "lr=1..0.1", "lr=0..1:log", "lr=5e-324..1e6:log", "lr=1e-300..1e-299",
    "lr=nan..1", "lr=0.1,", "lr=,", "lr=", "lr", "=", "=1", "..", "lr=..", "lr=....", "lr=1..2..3", "lr=:log", "rl=1,2",
    "epochs=1..3", "epochs=1..3:log", "epochs=0..3", "epochs=1.5..3", f"epochs=1..{10**23}", "clients=1..1000000000",
    "seed=0,1", "holdout=0,0.1", "out=a,b", "fixed=head;rest", "fixed=head,hed", "distinct=true,false", "distinct=x",
    "algorithm=fedavg,scaffold", "algorithm=nosuch", "personal=ditto,fedavg", "strength=None,0.1", "strength=None..1",
    f"lr={','.join(['0.1'] * 20_000)}", f"momentum={','.join(str(n / 20_000) for n in range(20_000))}",
)  # fmt: skip
RUN = "runs/a"


NONSENSE = (  # what must be refused, and leave no folder
    ["run", *subjects.SMALL, "--rounds", "1", "--personal", "local-atoms"],
    ["run", *subjects.SMALL, "--rounds", "1", "--where", "("],
    ["run", *subjects.SMALL, "--rounds", "1", "--device", "cpu:7"],
    ["run", *subjects.SMALL, "--rounds", "1", "--device", "meta"],
    ["run", *subjects.SMALL, "--rounds", "1", "--lr", "1e308"],
    ["run", *subjects.SMALL, "--rounds", "1", "--weight-decay", "1e308"],
    ["run", *subjects.SMALL, "--rounds", "1", "--batch-size", "1000000000000"],
    ["run", *subjects.SMALL, "--rounds", "1", *subjects.ATOMS, "--atoms", "1000000"],
    ["run", *subjects.SMALL, "--rounds", "1", *subjects.ATOMS, "--atoms-lr", "1e308"],
    ["run", *subjects.SMALL, "--rounds", "1", "--failures", "0.999999999"],  # nobody ever reports
    ["tune", *subjects.SMALL, "--rounds", "1"],  # over nothing
    ["tune", *subjects.SMALL, "--rounds", "1", "--over", "lr=0.1", "--holdout", "0"],
    ["tune", *subjects.SMALL, "--rounds", "1", "--over", "lr=0.1", "--out", RUN],
    ["tune", *subjects.SMALL, "--rounds", "1", "--over", "lr=0.1", "--out", "runs"],
    ["tune", *subjects.SMALL, "--rounds", "1", "--over", "lr=0.1", "--out", f"{RUN}/checkpoint"],
    ["tune", *subjects.SMALL, "--rounds", "1", "--over", "lr=0.1..1", "--trials", "0"],
    ["explain", RUN, "--threads", "-1"],
    ["explain", RUN, "--rounds", "99999999999999999999"],
    ["flower", "keys", "k", "--nodes", "-1"],
    ["bench", "--backend", "nosuch"],
    ["run", *subjects.SMALL, "--rounds", "1", "--accumulate", "10000"],
    ["run", *subjects.SMALL, "--rounds", "1", "--warmup-steps", "1000000000"],
    ["inspect", "resnet18", "--image", "999999x3x3"],
    ["inspect", "resnet18", "--classes", "1000000"],
    *(
        ["explain", RUN, "--rounds", "1", "--out", f"{RUN}/{own}"]
        for own in ("experiment.json", "checkpoint/000004.json")
    ),
    *(["bench", "--repeats", "1", "--steps", "1", "--out", f"{RUN}/{own}"] for own in ("result.json", "rounds.jsonl")),
    *(
        ["export", RUN, "--to", "safetensors", "--out", f"{RUN}/{own}"]
        for own in ("model.safetensors", "personal/000000.safetensors")
    ),
    ["personalize", RUN, "--images", "i.npz", "--out", f"{RUN}/personal/000009.safetensors"],
    ["report", "runs", "--out", f"{RUN}/checkpoint/r.html"],
    ["compare", *subjects.SMALL, "--rounds", "1", "--plot", f"{RUN}/checkpoint/plot.png"],
    ["export", RUN, "--to", "safetensors", "--out", "pipe"],
)


class Command(NamedTuple):
    """A command: the words it always has, and its flags with the values to try."""

    words: list[str]
    flags: dict[str, Sequence[str]]


def commands() -> dict[str, Command]:
    """Lists the commands; the flags of settings come from their fields, with the ends of their ranges."""
    from fedatoms.adapt.joining import Newcomer
    from fedatoms.bench.results import Bench
    from fedatoms.cli import COMMANDS
    from fedatoms.evidence.explain.bounds import Bounds
    from fedatoms.evidence.explain.values import Explain
    from fedatoms.evidence.reproduce.plan import Reproduce
    from fedatoms.experiment.fields import Experiment
    from fedatoms.tuning.settings import Tune

    short = [*subjects.SMALL, "--rounds", "1"]
    experiment, paths = flags_of(Experiment), {"out": TEXTS, "data-dir": TEXTS}
    inspected = {
        **{name: _values(name, int) for name in ("atoms", "classes")},
        **dict.fromkeys(("weights", "where", "head"), TEXTS),
        "image": (*SHAPES * 3, *TEXTS),
    }
    made = {
        "run": Command(["run", *short], experiment),
        "run atoms": Command(["run", *short, *subjects.ATOMS], experiment),
        "run personal": Command(["run", *short, *subjects.CONFIGURATIONS["personal"]], experiment),
        "resume": Command(["run", "--resume", RUN], experiment),
        "compare": Command(["compare", *short], {**experiment, "plot": TEXTS}),
        "tune": Command(
            ["tune", *short, "--over", "momentum=0,0.5"], {**experiment, **flags_of(Tune), "over": (*OVER * 3, *TEXTS)}
        ),
        "tune range": Command(["tune", *short, "--over", "lr=0.01..1:log"], {**flags_of(Tune), "over": OVER * 3}),
        "personalize": Command(
            ["personalize", RUN, "--images", "i.npz", "--out", "n.safetensors", "--epochs", "1"], flags_of(Newcomer)
        ),
        "export": Command(["export", RUN, "--to", "safetensors"], {"to": TEXTS, "out": TEXTS, "client": INTS}),
        "explain": Command(["explain", RUN, "--rounds", "1"], flags_of(Explain)),
        "bounds": Command(["explain", "--bounds"], flags_of(Bounds)),
        "report": Command(["report", "runs"], paths),
        "reproduce": Command(["reproduce", "iid", "--quick", "--minutes", "0.01"], flags_of(Reproduce)),
        "bench": Command(["bench", "--repeats", "1", "--steps", "1"], flags_of(Bench)),
        "inspect": Command(["inspect", "digits-cnn"], inspected),
        "inspect resnet18": Command(["inspect", "resnet18"], inspected),
        "demo": Command(["demo", *short, "--seeds", "0"], experiment),
        "presets": Command(["presets"], {"nosuch": TEXTS}),
        "keys": Command(["flower", "keys", "k"], {"host": TEXTS, "address": TEXTS, "nodes": INTS}),
        "flower demo": Command(
            ["flower", "demo"], {"nodes": ("-1", "0", "x", "nan", ""), "rounds": ("-1", "0", "x", "")}
        ),
        "flower roster": Command(
            ["flower", "roster", "r.json"],
            {"client": INTS, "key": TEXTS, "samples": INTS, "tests": INTS, "remove": INTS},
        ),
        "flower new": Command(["flower", "new"], {"": TEXTS}),
        "runs": Command(["runs", "runs"], {"json": ("", "x"), "check": ("", "x")}),
    }
    return {name: command for name, command in made.items() if command.words[0] in COMMANDS}


def parts() -> list[str]:
    """Names what the cases are made of."""
    return sorted(commands())


def flags_of(settings: type) -> dict[str, Sequence[str]]:
    """Returns the flags of a dataclass with values that its types cannot have, or only just."""
    kinds = get_type_hints(settings)
    return {
        field.name.replace("_", "-"): _values(field.name, kinds[field.name]) for field in dataclasses.fields(settings)
    }


def cases(draws: random.Random, number: int, store: Path) -> Iterator[Case]:
    """Makes cases: a command and one to three of its flags with extreme values; every flag of every command comes."""
    made, source = commands(), subjects.finished(store, "personal")
    nonsense = NONSENSE if number >= NUMBER else draws.sample(NONSENSE, min(number // 4, len(NONSENSE)))
    for words in nonsense:
        yield Case(
            f"nonsense {' '.join(words)}".replace(f"{' '.join(subjects.SMALL)} ", ""), partial(_refused, source, words)
        )
    slots = [(name, flag) for name, command in made.items() for flag in command.flags]
    draws.shuffle(slots)
    for place in range(number - len(nonsense)):
        name, flag = slots[place % len(slots)]
        command, more = made[name], draws.choice([0, 0, 0, 0, 1, 2])
        chosen = list(dict.fromkeys([flag, *draws.choices(list(command.flags), k=more)]))
        given = [word for flag in chosen for word in _typed(flag, draws.choice(command.flags[flag]))]
        shown = " ".join(word if len(word) < 40 else f"{word[:20]}...{len(word)}" for word in given)
        yield Case(f"{place} {name} {shown!r}", partial(_judge, source, [*command.words, *given], LONG & set(chosen)))


def _judge(source: Path, words: list[str], long: frozenset[str], folder: Path, shell: Shell) -> Verdict:
    subjects.copied(source, folder)
    subjects.write_images(folder / "i.npz")
    os.mkfifo(folder / "pipe")
    if shell.fresh and any("\0" in word for word in words):
        return Verdict("refused", "no program can be given a zero byte")
    working = bool(long) or words[0] in LONG_COMMANDS
    ran = shell.run(words, folder, WORKING if working else SECONDS, signal.SIGINT)
    if ran.late and working and ran.status == 130:
        return verdict(ran._replace(late=False, status=0), MEMORY)  # it was at work, and stopped
    return verdict(ran, MEMORY, statuses=(0, 1) if words[0] in ("compare", "demo", "reproduce", "tune") else (0,))


def _refused(source: Path, words: list[str], folder: Path, shell: Shell) -> Verdict:
    """Judges a command that must be refused, leave nothing, and leave the run that is there alone."""
    found = _judge(source, words, frozenset(), folder, shell)
    for path in (source / RUN).rglob("*"):
        if path.is_file() and path.read_bytes() != (folder / path.relative_to(source)).read_bytes():
            return Verdict("different", f"{path.name} of the run was overwritten")
    if found.word == "fine":
        return Verdict("different", "nonsense is accepted")
    left = [path.name for path in (folder / "runs").iterdir() if path.name != "a"]
    return Verdict("different", f"refused, but leaves {left[0]}") if found.word == "refused" and left else found


def _values(name: str, kind: object) -> Sequence[str]:
    members = [one for one in get_args(kind) if one is not type(None)]
    if get_origin(kind) is Literal:
        return (*map(str, members), "", "nosuch", "None")
    if kind is bool:
        return ("", "x")
    if kind is int or int in members:
        return (*INTS, *_ends(name, whole=True))
    if kind is float or float in members:
        return (*FLOATS, *_ends(name, whole=False), *(("1/2", "1/0", "1/-2") if str in members else ()))
    return (*TEXTS, *_choices(name))


def _ends(name: str, *, whole: bool) -> list[str]:
    """Returns the ends of an option's range, and what lies just beyond them."""
    from fedatoms.core.options import RANGES

    if name not in RANGES:
        return []
    low, high = float(RANGES[name].low), float(RANGES[name].high)
    ends = [end for end in (low, high) if math.isfinite(end)]
    if whole:
        return [str(int(end) + step) for end in ends for step in (-1, 0, 1)]
    return [
        repr(value) for end in ends for value in (math.nextafter(end, -math.inf), end, math.nextafter(end, math.inf))
    ]


def _choices(name: str) -> tuple[str, ...]:
    from fedatoms.core.options import CHOICES

    return CHOICES.get(name, ())


def _typed(flag: str, value: str) -> list[str]:
    """Types a flag with its value; a flag that takes none stands alone or is followed by a word too many.

    Without a flag's name the value is a word of its own.
    """
    if not flag:
        return [value]
    return [f"--{flag}", value] if value.startswith("-") is False or value in ("-", "") else [f"--{flag}={value}"]
