"""fedatoms explain: what latent clients change in a run, and the paper's bounds."""

from pathlib import Path

from fedatoms.cli.args import parse
from fedatoms.cli.console import say, terminal


def command(words: list[str]) -> int:
    """Replays rounds of a run and says what was found."""
    if "--bounds" in words:
        return _bounds([word for word in words if word != "--bounds"])
    from fedatoms.evidence.explain.study import check, explain, out_of
    from fedatoms.evidence.explain.values import Explain

    if not words or "-h" in words or "--help" in words:
        print("fedatoms explain RUN [--FLAG VALUE ...]        replays rounds of a run with atoms and measures them")
        print("fedatoms explain --bounds [--FLAG VALUE ...]   the paper's bounds, with and without latent clients\n")
        parse("explain", ["--help"], Explain())
    if words[0].startswith("-"):
        raise ValueError("the run is missing. Give its folder first, for example `fedatoms explain runs/mine`.")
    from fedatoms.cli.tables import working
    from fedatoms.evidence.explain.files import write
    from fedatoms.evidence.explain.tables import layers_table, rounds_table
    from fedatoms.evidence.explain.words import findings

    console, run, settings = terminal(), Path(words[0]), parse("explain", words[1:], Explain())
    check(run, settings)
    with working(console, f"replaying rounds of {run.name}") as tell:
        done = explain(run, settings, tell=tell, say=say)
    found, out = findings(done), out_of(run, settings)
    write(done, out, found)
    for table in (rounds_table(done), layers_table(done)):
        console.print(table)
    for line in (*found, f"file: {out}"):
        console.print(line, highlight=False, markup=False)
    return 0


def _bounds(words: list[str]) -> int:
    from fedatoms.evidence.explain.bounds import ASSUMED, Bounds, fast_and_slow, rate, with_and_without
    from fedatoms.evidence.explain.tables import bounds_table

    asked, console = parse("explain --bounds", words, Bounds()), terminal()
    title = f"Theorem 5.5: {asked.sampled} of {asked.clients} clients in a round, {asked.epochs} local steps"
    console.print(bounds_table(title, asked, "latent\nclients", with_and_without(asked)))
    title = (
        f"Theorem F.1: all {asked.clients} clients in every round, {asked.epochs} local steps, no latent clients in it"
    )
    console.print(bounds_table(title, asked, "beta", fast_and_slow(asked)))
    sent = f"beta {asked.beta} sends {rate(asked):.3f} of {asked.fast + asked.slow:,} parameters in a round."
    assumed = "Assumed, so the bounds weigh terms against each other and predict no run:"
    for line in (sent, assumed, *(f"- {line}" for line in ASSUMED)):
        console.print(line, highlight=False, markup=False)
    return 0
