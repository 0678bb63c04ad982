"""Checks of answers before they are averaged: one that is malformed, late or an outlier is refused."""

from collections import Counter
from collections.abc import Collection, Mapping

import torch
from torch import nn

from fedatoms.algorithms.base import Work, memory_of_client, reported
from fedatoms.core import trees
from fedatoms.core.trees import NUMBERS, Memory, Params
from fedatoms.engine import codes
from fedatoms.engine import server as server_side
from fedatoms.engine.evaluation import from_numbers, score_of
from fedatoms.engine.round import travelling
from fedatoms.engine.runtime import Runtime
from fedatoms.engine.state import State
from fedatoms.flower.ranges import LARGEST, misfit_of_loss, misfit_of_score
from fedatoms.flower.wire import Answer, Missing, Tested
from fedatoms.objectives.base import Objective

FEWEST = 3  # answers, for one of them to be far from the others


class Refused(ValueError):
    """An answer that is not averaged, and why."""


def check_answer(runtime: Runtime, state: State, answer: Answer | Missing, *, most: int) -> Answer:
    """Returns an answer that can be averaged, with its leaves in the order of the model's, or refuses it.

    ``most`` is the number of samples that the node reported when it joined.
    """
    if isinstance(answer, Missing):
        raise Refused(f"it lacks {', '.join(answer.groups)} although it was sent all")
    if answer.round != state.round:
        raise Refused(f"it is about round {answer.round + 1}")
    _check_samples(answer.samples, least=1, most=most)
    if why := misfit_of_loss(runtime.sim.objective, runtime.sim.algorithm, answer.loss):
        raise Refused(why)
    expected = _expected(runtime, state)
    upload = _ordered(expected, _decoded(runtime, state, expected, answer.upload))
    for name in sorted(variances(runtime.sim.model) & upload["statistics"].keys()):
        if (upload["statistics"][name] < 0).any():
            raise Refused(f"'statistics/{name}' is a variance and less than 0")
    return answer._replace(upload=upload, sent=None if runtime.sim.uploads == "exact" else answer.upload)


def check_records(content: Collection[str]) -> None:
    """Refuses a message with a record that nobody asked for: its bytes would only be counted."""
    if extra := set(content) - {"arrays", "metrics", "config"}:
        raise Refused(f"it has a record {min(extra)!r}, which nobody asked for")


def check_score(objective: Objective, tested: Tested | Missing, *, most: int) -> Tested:
    """Returns a score that can be averaged; ``most`` is the number of test images that the node joined with."""
    if isinstance(tested, Missing):
        raise Refused("it lacks what it was not sent")
    _check_samples(tested.samples, least=0, most=most)
    if not tested.samples:
        return tested._replace(numbers={})  # it weighs nothing
    means = from_numbers(objective, tested.numbers)
    if not all(bool((each.abs() <= LARGEST).all()) for each in means):
        raise Refused("a number of its score is not finite, or too large for any")
    if why := misfit_of_score(objective, score_of(objective, means)):
        raise Refused(why)
    return tested


def alike(objective: Objective, tested: Mapping[int, Tested]) -> dict[int, Tested]:
    """Returns the scores whose statistics have the shapes that most of them have."""
    shapes = {
        client: tuple(mean.shape for mean in from_numbers(objective, each.numbers))
        for client, each in tested.items()
        if each.samples
    }
    usual = Counter(shapes.values()).most_common(1)
    return {client: tested[client] for client, shape in shapes.items() if shape == usual[0][0]}


def variances(model: nn.Module) -> frozenset[str]:
    """Names the running variances of a model: those of normalisation layers, and of layers with the same buffers.

    >>> sorted(variances(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.GroupNorm(1, 2))))
    ['1.running_var']
    """
    layers = {name: dict(layer.named_buffers(recurse=False)) for name, layer in model.named_modules()}
    both = {"running_mean", "running_var"}
    return frozenset(f"{name}.running_var".lstrip(".") for name, buffers in layers.items() if both <= buffers.keys())


def outliers(state: State, answers: Mapping[int, Answer], times: float) -> dict[int, str]:
    """Finds clients whose update is more than ``times`` as long as the median, and says how long each is.

    What is uploaded beside the model is checked too, each kind by itself; a number may be ``times`` squared as large.
    """
    far: dict[int, str] = {}
    if not times or len(answers) < FEWEST:
        return far
    for kind, name in _measured(next(iter(answers.values())).upload):
        uploads = {client: answer.upload[kind] for client, answer in answers.items()}
        lengths = {client: _length(state, kind, _part(tree, name)) for client, tree in uploads.items()}
        median = float(torch.tensor(sorted(lengths.values()), dtype=torch.float64).median())
        for client, length in lengths.items():
            if length > (times**2 if name else times) * median:  # a number may be the square of a norm
                what = f"its update of '{name or kind}' has norm {length:.3g}, and the median is {median:.3g}"
                far.setdefault(client, what)
    return far


def _check_samples(count: int, *, least: int, most: int) -> None:
    """Refuses a larger weight than the node joined with: an unbounded one could dominate the mean."""
    if count < least:
        raise Refused(f"it says {count} samples")
    if count > most:
        raise Refused(f"it says {count} samples, more than the {most} with which it joined")


def _expected(runtime: Runtime, state: State) -> Memory:
    """Makes an upload of the round's form: what the algorithm reports for a client that did not move."""
    sent, algorithm = travelling(runtime, state.round), runtime.sim.algorithm
    broadcast = server_side.broadcast(state.server, algorithm, sent & runtime.layout.parameters)
    params = broadcast.params
    one = next((leaf.new_ones(()) for leaf in params.values()), torch.ones(()))
    still = Work(params, torch.ones(()), trees.apply(lambda leaf: leaf.new_ones(()), params), one)
    upload, _ = reported(algorithm, params, broadcast, memory_of_client(algorithm, params), still)
    return {**upload, "statistics": trees.restrict(runtime.network.statistics, sent)}


def _decoded(runtime: Runtime, state: State, expected: Memory, sent: Memory) -> Memory:
    """Reads an upload that was sent in few bits, or refuses what are no codes."""
    if (uploads := runtime.sim.uploads) == "exact":
        return sent
    try:
        codes.refuse_malformed(sent, expected, codes.BITS[uploads])
    except ValueError as error:
        raise Refused(str(error)) from None
    block = {kind: trees.lead(tree) for kind, tree in sent.items()}
    found = codes.received(block, expected, state.server.params, codes.BITS[uploads])
    return {kind: trees.unstack(tree, 0) for kind, tree in found.items()}


def _ordered(expected: Memory, upload: Memory) -> Memory:
    if extra := upload.keys() - expected.keys():
        raise Refused(f"it has '{min(extra)}', which nobody asked for")
    return {kind: _tree(kind, like, upload.get(kind, {})) for kind, like in expected.items()}


def _tree(kind: str, like: Params, tree: Params) -> Params:
    if tree.keys() != like.keys():
        name = min(tree.keys() ^ like.keys())
        raise Refused(f"'{kind}/{name}' is {'not asked for' if name in tree else 'missing'}")
    for name, leaf in tree.items():
        if (leaf.dtype, leaf.shape) != (like[name].dtype, like[name].shape):
            was, wanted = (f"{each.dtype} {tuple(each.shape)}" for each in (leaf, like[name]))
            raise Refused(f"'{kind}/{name}' is {was} instead of {wanted}")
        if leaf.is_floating_point() and not torch.isfinite(leaf).all():
            raise Refused(f"'{kind}/{name}' is not finite")
    return {name: tree[name].to(like[name].device) for name in like}


def _measured(upload: Memory) -> list[tuple[str, str | None]]:
    """Lists what of an upload has a length: each kind as a whole, and each number by its name."""
    kinds: list[tuple[str, str | None]] = [(kind, None) for kind in upload if kind != NUMBERS]
    return kinds + [(NUMBERS, name) for name in upload.get(NUMBERS, {})]


def _part(tree: Params, name: str | None) -> Params:
    return tree if name is None else {name: tree[name]}


def _length(state: State, kind: str, tree: Params) -> float:
    """Returns the norm of a client's update; what is uploaded beside the model is an update already."""
    if kind in ("params", "statistics"):
        tree = trees.subtract(tree, trees.restrict(state.server.params, tree))
    return float(sum((leaf.double() ** 2).sum() for leaf in tree.values() if leaf.is_floating_point()) ** 0.5)
