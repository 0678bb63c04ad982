"""fedatoms personalize: a client that joins later."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from fedatoms.adapt.settings import Newcomer
from fedatoms.cli.args import flags, updated
from fedatoms.cli.console import line, show_table, suggest, terminal, working
from fedatoms.cli.parsing import Job, Options
from fedatoms.core.lookup import as_word, counted

RUN = arg(metavar="RUN", help="The folder of a run, for example runs/mine.")


def options(words: Sequence[str]) -> Options:
    """Returns the options: a run, and the newcomer's settings."""

    def personalize(run: Annotated[Path, RUN], /, *, given: Annotated[object, flags(Newcomer())]) -> Job:
        """Fits a new client's own atoms to its images, with all else of the run's model as it is.

        For example:
          fedatoms personalize runs/mine --images ann.npz --out ann.safetensors
        """
        return lambda: _personalize(run, updated(Newcomer(), given))

    return personalize


def _personalize(run: Path, newcomer: Newcomer) -> int:
    from fedatoms.adapt.joining import join, prepare
    from fedatoms.cli.result_tables import joining

    console, ready = terminal(), prepare(run, newcomer)
    what = f"fitting {ready.numbers:,} numbers to {len(ready.sim.data.y):,} images, {counted(newcomer.epochs, 'epoch')}"
    with working(console, what):
        done = join(ready)
    if Path(newcomer.images).is_dir():
        line(console, f"labels: {ready.labels_from}")
    if done.scores:
        show_table(console, joining(done))
    line(console, f"file: {ready.out}, {ready.numbers:,} numbers ({newcomer.part}) in {done.size / 1000:.1f} kB")
    line(console, f'load: model = fedatoms.adapt.load_personal("{ready.run}", "{ready.out}")')
    line(console, f'use:  model(fedatoms.adapt.inputs_of("{ready.run}", images))')
    suggest(console, (f"fedatoms export {as_word(ready.run)} --to onnx", "the run's own network, for other tools"))
    return 0
