"""What a decomposition does to a network: layer by layer, in parameters and in bytes, and what it cannot do."""

import warnings
from collections.abc import Collection
from typing import NamedTuple

from torch import nn

from fedatoms.core.inputs import Inputs
from fedatoms.core.ledger import Bytes, bytes_of, total
from fedatoms.core.options import Group
from fedatoms.nn.atoms import AtomConv, decompose
from fedatoms.nn.choice import Choice, Where, choose
from fedatoms.nn.initialise import error_of
from fedatoms.nn.layers import Convolution, require_eager, require_values, require_weights
from fedatoms.nn.parameter_groups import groups
from fedatoms.nn.pure import tensor_names, why_not_vectorised
from fedatoms.nn.vectorising import why_not_together

FAST: tuple[Group, ...] = ("atoms", "head")  # what travels in every round of fast and slow exchange


class LayerSummary(NamedTuple):
    """A convolution: its parameters without the bias, and what the svd of its present weights loses, of their norm."""

    name: str
    kind: str
    kernel: tuple[int, ...]
    atoms: int  # 0: it stays plain
    before: int
    after: int
    error: float
    why_plain: str


class Summary(NamedTuple):
    """A network, plain and decomposed; bytes are those that one client sends up in a round of FedAvg."""

    model: str
    atoms: int
    layers: tuple[LayerSummary, ...]
    parameters_before: int
    parameters_after: int
    bytes_before: int
    bytes_full: int
    bytes_fast: int
    not_vectorised: str
    tried: bool  # whether two clients were trained together; otherwise only the layers are known


def summary(
    model: nn.Module,
    atoms: int = 9,
    *,
    where: Where | None = None,
    head: str | Collection[str] | None = None,
    inputs: Inputs | None = None,
) -> Summary:
    """Says what ``decompose(model, atoms, where=where)`` would do; ``head`` as in ``groups``. The model stays as it is.

    With ``inputs``, a batch that the model takes, two clients are trained together for a step, to see that it works.

    >>> found = summary(nn.Sequential(nn.Conv2d(3, 8, 5), nn.Conv2d(8, 2, 1)), atoms=9)
    >>> [(layer.name, layer.atoms, layer.before, layer.after, layer.why_plain) for layer in found.layers]
    [('0', 9, 600, 441, ''), ('1', 0, 16, 16, 'its kernel has one entry')]
    >>> found.parameters_before, found.parameters_after, found.bytes_full, found.bytes_fast
    (626, 467, 1868, 900)
    >>> found.not_vectorised, found.tried
    ('', False)
    """
    require_eager(model)
    require_weights(model)
    require_values(model)
    choice = choose(model, where)
    made = _decomposed(model, atoms, choice)
    sent, (why_not, tried) = _sent(made, head), _together(made, inputs)
    return Summary(
        model=type(model).__name__,
        atoms=atoms,
        layers=tuple(_layers(model, made, choice, where is None)),
        parameters_before=sum(leaf.numel() for leaf in model.parameters()),
        parameters_after=sum(leaf.numel() for leaf in made.parameters()),
        bytes_before=total(_sent(model, head)),
        bytes_full=total(sent),
        bytes_fast=sum(sent.get(group, 0) for group in FAST),
        not_vectorised=why_not,
        tried=tried,
    )


def _together(model: nn.Module, inputs: Inputs | None) -> tuple[str, bool]:
    """Says why clients cannot be trained together, by the layers or else by a trial, and whether it was tried."""
    if (of_layers := why_not_vectorised(model)) or inputs is None:
        return of_layers or "", False
    return why_not_together(model, inputs) or "", True


def _decomposed(model: nn.Module, atoms: int, choice: Choice) -> nn.Module:
    """Decomposes the chosen layers without a word of what it loses: that is told in numbers."""
    if not choice.replaced:
        return model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return decompose(model, atoms, where=lambda name, module: name in choice.replaced)


def _layers(model: nn.Module, made: nn.Module, choice: Choice, by_default: bool) -> list[LayerSummary]:
    left_out = "its kernel has one entry" if by_default else "`where` leaves it out"
    why = {**choice.unable, **dict.fromkeys(choice.left_out, left_out)}
    pairs = [(name, module, made.get_submodule(name)) for name, module in model.named_modules()]
    kinds = (AtomConv, Convolution)
    return [_layer(*pair, why.get(pair[0], "")) for pair in pairs if isinstance(pair[1], kinds)]


def _layer(name: str, old: nn.Module, new: nn.Module, why: str) -> LayerSummary:
    assert isinstance(old, AtomConv | Convolution)
    before, kind = old.weight.numel(), type(old).__name__
    if not isinstance(new, AtomConv):
        return LayerSummary(name, kind, tuple(old.kernel_size), 0, before, before, 0.0, why)
    after = sum(factor.numel() for factor in new.factors())
    error = 0.0 if old is new or isinstance(old, AtomConv) else error_of(old.weight, new.filter())
    return LayerSummary(name, kind, tuple(old.kernel_size), len(new.atoms), before, after, error, why)


def _sent(model: nn.Module, head: str | Collection[str] | None) -> Bytes:
    """Counts the bytes of what is trained or averaged, by group."""
    names, state = frozenset[str]().union(*tensor_names(model)), model.state_dict()
    labels = groups(model, head)
    return bytes_of({"params": {name: state[name] for name in state if name in names}}, labels)
