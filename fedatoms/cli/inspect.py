"""fedatoms inspect: what a decomposition would do to a network."""

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from tyro.conf import FlagCreatePairsOff, arg

from fedatoms.cli.console import line, suggest, terminal
from fedatoms.cli.parsing import Job, Options

if TYPE_CHECKING:
    from fedatoms.nn.summaries import Summary

MODEL = arg(metavar="MODEL", help="A network by name, or module:factory of your own.", help_behavior_hint="")
ATOMS = arg(help="Atoms per layer.")
CLASSES = arg(help="Classes that the network is built for.")
IMAGE = arg(metavar="CxHxW", help="Shape of an image, as 3x32x32: the network must take it.", help_behavior_hint="")
WEIGHTS = arg(metavar="FILE", help="Its weights: .safetensors, .pth or .pt.", help_behavior_hint="")
WHERE = arg(help="Regular expression: only layers whose name it matches.", help_behavior_hint="")
HEAD = arg(help="Name of the layer that is the head; empty takes the last linear layer.", help_behavior_hint="")
JSON = arg(name="json", help="Print one JSON object.", help_behavior_hint="")


def options(words: Sequence[str]) -> Options:
    """Returns the options: a network, and how it would be decomposed."""

    def inspect(
        model: Annotated[str, MODEL],
        /,
        *,
        atoms: Annotated[int, ATOMS] = 9,
        weights: Annotated[str, WEIGHTS] = "",
        image: Annotated[str, IMAGE] = "",
        classes: Annotated[int, CLASSES] = 10,
        where: Annotated[str, WHERE] = "",
        head: Annotated[str, HEAD] = "",
        as_json: Annotated[FlagCreatePairsOff[bool], JSON] = False,
    ) -> Job:
        """Says what atoms would do to a network: its layers, parameters, bytes, and what stays plain and why."""
        return lambda: _show(_summary(model, atoms, weights, image, classes, where, head), model, as_json=as_json)

    return inspect


def _summary(model: str, atoms: int, weights: str, image: str, classes: int, where: str, head: str) -> "Summary":
    from fedatoms.core.options import check_range
    from fedatoms.experiment.parse import pattern_of
    from fedatoms.nn.models import build, check_input
    from fedatoms.nn.summaries import summary
    from fedatoms.nn.weights import load_weights

    check_range("atoms", atoms)
    check_range("classes", classes, command="inspect")
    shape, pattern = _shape(image), pattern_of(where, "where")
    net = build(model, classes=classes, channels=shape[0] if shape else 3)
    if shape:
        check_input(net, shape, classes)
    if weights:
        net = load_weights(net, weights, head=head or None)
    chosen = (lambda name, module: bool(pattern.search(name))) if where else None
    return summary(net, atoms, where=chosen, head=head or None)


def _shape(image: str) -> tuple[int, ...]:
    """Reads the shape of an image.

    >>> _shape("3x32x32"), _shape("")
    ((3, 32, 32), ())
    """
    if image and not re.fullmatch(r"[1-9]\d{0,5}(x[1-9]\d{0,5})+", image):
        raise ValueError(f"image={image} is not the shape of an image. Use for example 3x32x32.")
    return tuple(map(int, image.split("x"))) if image else ()


def _show(found: "Summary", name: str, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({**found._asdict(), "layers": [layer._asdict() for layer in found.layers]}))
        return 0
    from fedatoms.cli.result_tables import inspected, inspected_lines

    console = terminal()
    if any(layer.atoms for layer in found.layers):
        console.print(inspected(found))
    for each in inspected_lines(found):
        line(console, each)
    suggest(console, (f"fedatoms run --model {name} --parametrisation atoms --atoms {found.atoms}", "trains it"))
    return 0
