"""fedatoms explain: what latent clients change in a run, and the paper's bounds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from tyro.conf import FlagCreatePairsOff, arg

from fedatoms.cli.args import flags, updated
from fedatoms.cli.console import line, say, show_table, suggest, terminal, working
from fedatoms.cli.parsing import Job, Options
from fedatoms.core.lookup import as_word
from fedatoms.evidence.explain.bounds import ASSUMED, Bounds, fast_and_slow, rate, with_and_without
from fedatoms.evidence.explain.settings import Explain

RUN = arg(metavar="RUN", help="The folder of a run with --parametrisation atoms, for example runs/mine.")
INSTEAD = arg(
    help="Print the paper's bounds instead, for constants of your own: see `fedatoms explain --bounds --help`.",
    help_behavior_hint="",
)
BOUNDS = arg(help="Print the paper's bounds.", help_behavior_hint="")


def options(words: Sequence[str]) -> Options:
    """Returns the options: of the paper's bounds if they are asked for, else of a replay."""
    return _bounds_options() if "--bounds" in words else _replay_options()


def _replay_options() -> Options:
    def explain(
        run: Annotated[Path, RUN],
        /,
        *,
        bounds: Annotated[bool, INSTEAD, FlagCreatePairsOff] = False,
        given: Annotated[object, flags(Explain())],
    ) -> Job:
        """Replays rounds of a run from its last checkpoint, and measures what latent clients change in them."""
        return lambda: _explain(run, updated(Explain(), given))

    return explain


def _bounds_options() -> Options:
    def explain(
        *, bounds: Annotated[bool, BOUNDS, FlagCreatePairsOff] = False, given: Annotated[object, flags(Bounds())]
    ) -> Job:
        """Prints the bounds of Theorems 5.5 and F.1 for some constants, as printed and as their proofs give them."""
        return lambda: _bounds(updated(Bounds(), given))

    return explain


def _explain(run: Path, settings: Explain) -> int:
    from fedatoms.cli.result_tables import layers_table, rounds_table
    from fedatoms.evidence.explain.files import write
    from fedatoms.evidence.explain.study import check, explain, out_of
    from fedatoms.evidence.explain.words import findings

    console = terminal()
    check(run, settings)
    with working(console, f"replaying rounds of {run.name}") as tell:
        done = explain(run, settings, tell=tell, say=say)
    found, out = findings(done), out_of(run, settings)
    write(done, out, found)
    show_table(console, rounds_table(done))
    show_table(console, layers_table(done))
    for sentence in found:
        console.print(sentence, highlight=False, markup=False)
    line(console, f"file: {out}")
    suggest(console, (f"fedatoms report {as_word(run.parent)}", "the same on a page, with figures"))
    return 0


def _bounds(asked: Bounds) -> int:
    from fedatoms.cli.result_tables import bounds_table

    console = terminal()
    title = f"Theorem 5.5: {asked.sampled} of {asked.clients} clients in a round, {asked.epochs} local steps"
    show_table(console, bounds_table(title, asked, "latent\nclients", with_and_without(asked)))
    title = f"Theorem F.1: all {asked.clients} clients, no latent ones, {asked.epochs} local steps"
    show_table(console, bounds_table(title, asked, "beta", fast_and_slow(asked)))
    sent = f"beta {asked.beta} sends {rate(asked):.3f} of {asked.fast + asked.slow:,} parameters in a round."
    assumed = "Assumed, so the bounds weigh terms against each other and predict no run:"
    for sentence in (sent, assumed, *(f"- {each}" for each in ASSUMED)):
        console.print(sentence, highlight=False, markup=False)
    suggest(console, ("fedatoms explain RUN", "what latent clients change in a run of yours"))
    return 0
