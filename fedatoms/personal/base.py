"""What a personalised method is: the part of the model that each client has of its own, and the phases of its round."""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from torch import Tensor, nn

from fedatoms.core.options import Group
from fedatoms.core.trees import Params

Labels = Mapping[str, Group]
Part = Callable[[nn.Module, Labels], frozenset[str]]  # names in a model's state dict
Moves = Literal["all", "own", "shared"]
View = Literal["personal", "global"]


class Phase(NamedTuple):
    """One training in a client's round. What is not a client's own is uploaded after the phase that moves it."""

    moves: Moves = "all"
    view: View = "personal"  # the received model with the client's own part in it, or without
    epochs: int = 0  # 0 takes the run's
    pull: float = 0.0  # towards the received model, when only the own part moves
    align: float = 0.0  # pull of the features towards a collaboration's targets, from the second round on
    lr: float = 0.0  # 0 takes the run's; decays as that does


class Told(NamedTuple):
    """What a client uploads to a collaboration: its own part, and what it says of its features."""

    own: Params
    before: Params  # of those that the received model gives
    after: Params  # of those that its trained model gives


class Collaboration(NamedTuple):
    """What a method exchanges beside the model: clients describe features, the server makes new own parts of all that.

    Features z (n, d) are what goes into the head, y (n,) their labels.
    """

    start: Callable[[int, Tensor], Params]  # number of classes, some features -> the server's memory
    sends: Callable[[Params], Params]  # memory -> what goes to each sampled client
    before: Callable[[Tensor, Tensor], Params]
    after: Callable[[Tensor, Tensor], Params]
    targets: Callable[
        [Params, Params, int], Tensor
    ]  # sent, before, number of classes -> features to aim at (classes, d)
    settle: Callable[[Params, list[Told]], tuple[Params, list[Params]]]  # memory, the round -> memory, new own parts


class Personal(NamedTuple):
    """A personalised method; the default has nothing personal.

    ``beside``: a client's own part is a second version; the server has its own, which travels like the rest. Else the
    own part never leaves the client. ``final``: what a last local pass trains on every client; None takes the own part.
    """

    own: Part = lambda model, labels: frozenset()
    beside: bool = False
    phases: tuple[Phase, ...] = (Phase(),)
    final: Part | None = None
    collaboration: Collaboration | None = None


def everything(model: nn.Module, labels: Labels) -> frozenset[str]:
    """The whole model.

    >>> sorted(everything(nn.Linear(1, 1), {"weight": "head", "bias": "head"}))
    ['bias', 'weight']
    """
    return frozenset(labels)


def groups(*wanted: Group) -> Part:
    """The parameters of some groups.

    >>> sorted(groups("head")(nn.Module(), {"conv.weight": "rest", "fc.bias": "head"}))
    ['fc.bias']
    """

    def part(model: nn.Module, labels: Labels) -> frozenset[str]:
        for group in wanted:
            if group not in labels.values():
                raise ValueError(f"the model has no {group} that a client could have of its own. {_REMEDIES[group]}")
        return frozenset(name for name, group in labels.items() if group in wanted)

    return part


def layers(kinds: tuple[type[nn.Module], ...], what: str) -> Part:
    """The tensors of all layers of some kinds, which an error calls ``what``.

    >>> model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1, affine=False, momentum=None))
    >>> sorted(layers((nn.BatchNorm1d,), "norm")(model, {"0.bias": "head", "1.running_mean": "statistics"}))
    ['1.running_mean']
    """

    def part(model: nn.Module, labels: Labels) -> frozenset[str]:
        inside = [f"{name}." if name else "" for name, layer in model.named_modules() if isinstance(layer, kinds)]
        found = frozenset(name for name in labels if name.startswith(tuple(inside)))
        if not found:
            raise ValueError(f"the model has no {what} of a client's own. Use --model resnet18, or another --personal.")
        return found

    return part


_REMEDIES: dict[Group, str] = {
    "atoms": "Decompose it first: --parametrisation atoms, or fedatoms.decompose(model).",
    "coefficients": "Decompose it first: --parametrisation atoms, or fedatoms.decompose(model).",
    "head": "Name its last layer with --head, or head=... of the simulation.",
    "rest": "Use another --personal.",
    "statistics": "Use a network with BatchNorm, or another --personal.",
}
