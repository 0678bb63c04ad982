"""fedatoms personalize: a client that joins later."""

from pathlib import Path

from fedatoms.cli.args import parse
from fedatoms.cli.console import terminal


def command(words: list[str]) -> int:
    """Fits a newcomer's own part to its pictures."""
    from fedatoms.adapt.join import Newcomer, join, prepare

    if not words or "-h" in words or "--help" in words:
        print("fedatoms personalize RUN --images FILE.npz --out FILE.safetensors [--FLAG VALUE ...]")
        print("Fits a new client's own atoms to its pictures, with all else of the run's model as it is.\n")
        parse("personalize", ["--help"], Newcomer())
    if words[0].startswith("-"):
        raise ValueError("the run is missing. Give its folder first, for example `fedatoms personalize runs/mine`.")
    from fedatoms.cli.tables import joining, working

    console, newcomer = terminal(), parse("personalize", words[1:], Newcomer())
    ready = prepare(Path(words[0]), newcomer)
    what = f"fitting {ready.numbers:,} numbers to {len(ready.sim.data.y):,} images, {newcomer.epochs} epochs"
    with working(console, what):
        done = join(ready)
    if Path(newcomer.images).is_dir():
        console.print(f"labels: {ready.labels_from}", highlight=False, soft_wrap=True, markup=False)
    if done.scores:
        console.print(joining(done))
    lines = (
        f"file: {ready.out}, {ready.numbers:,} numbers ({newcomer.part}) in {done.size / 1000:.1f} kB",
        f'load: model = fedatoms.adapt.load_personal("{ready.run}", "{ready.out}")',
        f'use:  model(fedatoms.adapt.inputs_of("{ready.run}", images))',
    )
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    return 0
