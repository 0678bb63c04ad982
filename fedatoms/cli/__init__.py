"""The command line: fedatoms demo | run | compare | report | personalize | ...; torch only when it must."""

import errno
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence

from fedatoms.cli import bench, experiments, explain, flower, personalize, report, reproduce
from fedatoms.cli.args import grid, parse, with_flags
from fedatoms.cli.console import say
from fedatoms.core.lookup import one_line, unknown

__all__ = ["grid", "main", "parse"]

HELP = """usage: fedatoms COMMAND [OPTIONS]

Federated learning with filter atoms, on PyTorch.

  demo          FedAvg with and without atoms on built-in data: a table and a plot, in about a minute
  run           one experiment:  fedatoms run [PRESET | FILE] [--FLAG VALUE ...] [--resume FOLDER]
  compare       a grid of them:  fedatoms compare [PRESET ...] [--FLAG VALUE,VALUE ...] [--seeds 0,1,2]
  reproduce     the paper's tables and figures: fedatoms reproduce table1 | figure-variance | ... | all [--quick]
  report        a page of results: fedatoms report FOLDER ... [-o report.html] [--data-dir FOLDER]
  personalize   a client that joins later: fedatoms personalize RUN --images FILE.npz --out FILE.safetensors
  explain       what latent clients change: fedatoms explain RUN [--fork N] [--plain RUN], or explain --bounds
  presets       the named experiments
  bench         how fast, how big, against a hand-written loop; --device cuda adds torch.compile and JAX
  flower        a real federation: fedatoms flower new DIR | keys DIR | demo [--nodes 3] [--rounds 3] [--tls]

fedatoms COMMAND --help lists a command's options.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; a mistake costs one line on stderr and exit status 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    commands: dict[str, Callable[[list[str]], int]] = {
        "demo": experiments.demo_command,
        "run": experiments.run_command,
        "compare": experiments.compare_command,
        "reproduce": reproduce.command,
        "report": report.command,
        "personalize": personalize.command,
        "explain": explain.command,
        "presets": experiments.presets_command,
        "bench": bench.command,
        "flower": flower.command,
    }
    if not words or words[0] in ("-h", "--help"):
        print(HELP, end="")
        return 0
    if words[0] == "--version":
        from fedatoms.core.version import __version__

        print(f"fedatoms {__version__}")
        return 0
    try:
        if words[0] not in commands:
            raise unknown(words[0], commands, "command")
        _interrupt_by("SIGTERM")  # a cluster's "time is up" saves a checkpoint too
        _interrupt_by("SIGHUP")  # and a terminal that is closed leaves nothing running, unless by nohup
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *where: say(str(message))
            return commands[words[0]](words[1:])
    except KeyboardInterrupt as stop:
        print(*("fedatoms: stopped.", *stop.args), file=sys.stderr)
        return 130
    except (ValueError, OSError, FloatingPointError, MemoryError) as error:
        if os.environ.get("FEDATOMS_DEBUG"):
            raise
        print(f"fedatoms: {_one_line(error)}", file=sys.stderr)
        return 2


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        place = f" for {error.filename}" if error.filename else ""
        return f"no space left{place}. Free some, then use --resume: it goes on from the last whole checkpoint."
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}. Choose another --out or --data-dir, or mend that path."
    return with_flags(one_line(error))


def _interrupt_by(name: str) -> None:
    """Makes a signal stop a command as Ctrl-C does, if there is such a signal and nobody had it ignored."""
    number = getattr(signal, name, None)
    if number is not None and signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, _interrupt)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
