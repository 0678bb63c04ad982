"""fedatoms inspect: what a decomposition would do to a network."""

import json
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from tyro.conf import FlagCreatePairsOff, arg

from fedatoms.cli.console import line, show_table, suggest, terminal
from fedatoms.cli.parsing import Job, Options
from fedatoms.cli.tune import command_of
from fedatoms.core.options import check_range
from fedatoms.experiment.fields import Experiment

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedatoms.nn.summaries import Summary

MODEL = arg(metavar="MODEL", help="A network by name, or module:factory of your own.", help_behavior_hint="")
ATOMS = arg(help="Atoms per layer.")
CLASSES = arg(help="Classes that the network is built for.")
IMAGE = arg(metavar="CxHxW", help="Shape of an image, as 3x32x32: the network must take it.", help_behavior_hint="")
WEIGHTS = arg(metavar="FILE", help="Its weights: .safetensors, .pth or .pt.", help_behavior_hint="")
WHERE = arg(help="Regular expression: only layers whose name it matches.", help_behavior_hint="")
HEAD = arg(help="Name of the layer that is the head; empty takes the last linear layer.", help_behavior_hint="")
TRIED = 2**18  # numbers of an image that is run through the network: 3x224x224 is
SMALL = 3, 8, 8  # what digits-cnn has here
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
        chosen = Experiment(model=model, parametrisation="atoms", atoms=atoms, weights=weights, where=where, head=head)
        return lambda: _show(_summary(chosen, image, classes), chosen, image, as_json=as_json)

    return inspect


def _summary(chosen: Experiment, image: str, classes: int) -> "Summary":
    from fedatoms.experiment.parse import pattern_of
    from fedatoms.nn.models import build
    from fedatoms.nn.summaries import summary
    from fedatoms.nn.weights import load_weights

    check_range("atoms", chosen.atoms)
    shape, pattern = _shape(image), pattern_of(chosen.where, "where")
    net = build(chosen.model, classes=classes, channels=shape[0] if shape else 3)
    if shape:
        _check_input(net, shape, classes)
    head = chosen.head or None
    if chosen.weights:
        net = load_weights(net, chosen.weights, head=head)
    where = (lambda name, module: bool(pattern.search(name))) if chosen.where else None
    return summary(net, chosen.atoms, where=where, head=head, inputs=_inputs(net, [shape] if shape else _shapes()))


def _shapes() -> list[tuple[int, ...]]:
    """Returns the shapes of the built-in data, those in colour first, for which a network is built here.

    >>> _shapes()
    [(3, 32, 32), (3, 64, 64), (1, 8, 8), (1, 28, 28), (3, 8, 8)]
    """
    from fedatoms.data.datasets import DATASETS

    shapes = dict.fromkeys(source.form.shape for source in DATASETS.values())
    return [*sorted(shapes, key=lambda shape: -shape[0]), SMALL]


def _inputs(net: "nn.Module", shapes: Sequence[tuple[int, ...]]) -> "Tensor | None":
    """Returns two images of the first shape that a network takes; None if it takes none, or only large ones."""
    import torch

    from fedatoms.nn.layers import copied

    like = next(net.parameters(), torch.zeros(()))
    for shape in (each for each in shapes if math.prod(each) <= TRIED):
        images = torch.zeros(2, *shape, dtype=like.dtype, device=like.device)
        with suppress(Exception), torch.no_grad():  # a network may refuse what it does not take in any way
            copied(net).eval()(images)
            return images
    return None


def _shape(image: str) -> tuple[int, ...]:
    """Reads the shape of an image.

    >>> _shape("3x32x32"), _shape("")
    ((3, 32, 32), ())
    """
    if image and not re.fullmatch(r"[1-9][0-9]{0,17}(x[1-9][0-9]{0,17}){1,4}", image):
        raise ValueError(f"image={image} is not the shape of an image. Use for example 3x32x32.")
    shape = tuple(map(int, image.split("x"))) if image else ()
    for place, number in enumerate(shape):
        what = "side" if place else "channels"
        check_range(what, number, f"image={image}: {what}", command="inspect")
    return shape


def _check_input(net: "nn.Module", shape: tuple[int, ...], classes: int) -> None:
    """Refuses images that the network does not take; large ones are tried by their shapes alone."""
    from fedatoms.core.inputs import output_of
    from fedatoms.nn.models import check_input

    check_input(net, shape, classes, output_of, device="meta" if math.prod(shape) > TRIED else "")


def _trainable(chosen: Experiment, image: str) -> Experiment | None:
    """Returns the experiment on the first data set whose images the network takes, of that shape if one was given."""
    from fedatoms.data.datasets import DATASETS
    from fedatoms.experiment.build import network_of

    for dataset, source in DATASETS.items():  # digits first, which need no files
        if _shape(image) in ((), source.form.shape):
            with suppress(Exception):  # as above
                network_of(chosen, source.form.classes, source.form.shape)
                return replace(chosen, dataset=dataset)
    return None


def _show(found: "Summary", chosen: Experiment, image: str, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({**found._asdict(), "layers": [layer._asdict() for layer in found.layers]}))
        return 0
    from fedatoms.cli.result_tables import inspected, inspected_lines

    console = terminal()
    decomposed = any(layer.atoms for layer in found.layers)
    if decomposed:
        show_table(console, inspected(found))
    for each in inspected_lines(found):
        line(console, each)
    if decomposed and (trained := _trainable(chosen, image)) is not None:
        suggest(console, (command_of("", Experiment(), trained), "trains it"))
    return 0
