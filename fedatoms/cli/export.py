"""fedatoms export: a run's network leaves, as a file for other tools."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from fedatoms.cli.console import line, suggest, terminal, working
from fedatoms.cli.parsing import Job, Options
from fedatoms.core.extras import how_to_add
from fedatoms.core.lookup import as_word
from fedatoms.core.options import Export

if TYPE_CHECKING:
    from torch import nn

    from fedatoms.nn.exporting import Exported

RUN = arg(metavar="RUN", help="The folder of a finished run, for example runs/mine.")
TO = arg(
    metavar="FORMAT",
    help="onnx, torch-export (a program that `torch.export.load` reads) or safetensors (weights alone).",
)
OUT = arg(metavar="FILE", aliases=("-o",), help="The file; by default the run's name, here.", help_behavior_hint="")
CLIENT = arg(metavar="N", help="The own model of a client, in a run of a personalised method.", help_behavior_hint="")


def options(words: Sequence[str]) -> Options:
    """Returns the options: a run, a format, a file, and a client if its own model is wanted."""

    def export(
        run: Annotated[Path, RUN],
        /,
        *,
        to: Annotated[Export, TO] = "onnx",
        out: Annotated[Path | None, OUT] = None,
        client: Annotated[int | None, CLIENT] = None,
    ) -> Job:
        """Writes a run's network, with plain filters, to a file for other tools, and checks its outputs.

        For example:
          fedatoms export runs/mine --to onnx -o mine.onnx
        """
        return lambda: _export(run, to, out, client)

    return export


def _export(run: Path, to: Export, out: Path | None, client: int | None) -> int:
    from fedatoms.nn.exporting import SUFFIXES, export
    from fedatoms.runs.loading import images_of

    console, model = terminal(), _network(run, client)
    shape = images_of(run).shape
    path = out or Path(f"{run.resolve().name}{'' if client is None else f'-{client}'}{SUFFIXES[to]}")
    replaces = path.exists()
    with working(console, f"exporting {run} to {path}"):
        done = export(model, path, shape=shape, to=to)
    line(console, f"file: {done.path}, {done.parameters:,} parameters in {done.size / 1000:.1f} kB{_older(replaces)}")
    line(console, f"check: {_checked(done)}")
    line(console, f'inputs: (N, {", ".join(map(str, shape))}), by fedatoms.adapt.inputs_of("{run}", images)')
    suggest(console, *_next(run))
    return 0


def _network(run: Path, client: int | None) -> "nn.Module":
    from fedatoms.adapt.fitting import personal_model
    from fedatoms.runs.loading import load_model

    return load_model(run) if client is None else personal_model(run, client)


def _next(run: Path) -> list[tuple[str, str]]:
    from fedatoms.experiment.files import load_run

    typed = f"fedatoms personalize {as_word(run)} --images FILE --out FILE"
    has_atoms = load_run(run).parametrisation == "atoms"  # else there is nothing for it to fit
    return [(typed, "fit it to a client that joins later")] if has_atoms else []


def _checked(done: "Exported") -> str:
    if done.difference is None:
        return f"none, as onnxruntime is not here. Type: {how_to_add('export')}"
    return f"outputs lie {done.difference:.1e} from the network's at most"


def _older(replaces: bool) -> str:
    return " (replaces an older file)" if replaces else ""
