"""What a personalised method is: which parameters are personal, and the phases of a client's round."""

from collections.abc import Callable, Mapping, Set
from typing import NamedTuple

from torch import Tensor, nn

from fedatoms.core.lookup import nearest, shown
from fedatoms.core.options import Group, Moves, View
from fedatoms.core.trees import Params

Labels = Mapping[str, Group]
Part = Callable[[nn.Module, Labels], frozenset[str]]  # names in a model's state dict


class Phase(NamedTuple):
    """One training in a client's round. Shared parameters are uploaded after the phase that moves them.

    >>> Phase("own", epochs=1).view
    'personal'
    """

    moves: Moves = "all"
    view: View = "personal"  # the received model, with the client's personal parameters in it or without
    epochs: int = 0  # 0 takes the run's
    pull: float = 0.0  # towards the received model, in an own phase
    align: float = 0.0  # pull of the features towards a collaboration's targets, from the second round on
    lr: float = 0.0  # 0 takes the run's; decays as that does


class FeatureReport(NamedTuple):
    """What a client uploads to a collaboration: its personal parameters, and statistics of its features.

    >>> sorted(FeatureReport(own={}, before={}, after={})._asdict())
    ['after', 'before', 'own']
    """

    own: Params
    before: Params  # statistics of the received model's features
    after: Params  # statistics of the trained model's features


class Collaboration(NamedTuple):
    """What is exchanged beside the model: clients upload feature statistics, the server returns personal parameters.

    Features z (n, d) are the inputs of the head, y (n,) their labels.

    >>> from fedatoms.personal import fedpac
    >>> isinstance(fedpac().collaboration, Collaboration)
    True
    """

    start: Callable[[int, Tensor], Params]  # number of classes, some features -> the server's memory
    sends: Callable[[Params], Params]  # memory -> what each sampled client is sent
    before: Callable[[Tensor, Tensor], Params]
    after: Callable[[Tensor, Tensor], Params]
    targets: Callable[[Params, Params, int], Tensor]  # sent, before, number of classes -> target features (classes, d)
    settle: Callable[[Params, list[FeatureReport]], tuple[Params, list[Params]]]  # memory, reports -> memory, personal


class Personal(NamedTuple):
    """A personalised method; the default has nothing personal.

    ``own`` names the personal parameters. ``beside``: they are a second version beside the server's, which travels like
    the rest; else they never leave the client. ``final``: what a last local pass trains on every client; None: ``own``.
    """

    own: Part = lambda model, labels: frozenset()
    beside: bool = False
    phases: tuple[Phase, ...] = (Phase(),)
    final: Part | None = None
    collaboration: Collaboration | None = None


def names_of(part: Part, model: nn.Module, labels: Labels) -> frozenset[str]:
    """Returns the names of a part, or refuses what is no set of them, and names that nothing of the model has.

    >>> names_of(lambda model, labels: frozenset({"fc.wieght"}), nn.Module(), {"fc.weight": "head"})
    Traceback (most recent call last):
    ...
    ValueError: the personalised method names 'fc.wieght', which is no tensor of the model that may travel. Did you mean
    'fc.weight'? Take names from `labels`.
    """
    found: object = part(model, labels)
    if not isinstance(found, Set):
        raise ValueError(
            f"the personalised method's part is {shown(found)}, not a set of names. Let it return for example "
            f"frozenset(name for name in labels if name.endswith('bias'))."
        )
    if odd := sorted(str(name) for name in found if name not in labels):
        near = nearest(odd[0], labels, cutoff=0.6)
        hint = f" Did you mean '{near}'?" if near else ""
        raise ValueError(
            f"the personalised method names {odd[0]!r}, which is no tensor of the model that may travel.{hint} Take "
            f"names from `labels`."
        )
    return frozenset(found)


def everything(model: nn.Module, labels: Labels) -> frozenset[str]:
    """Names all parameters of the model.

    >>> sorted(everything(nn.Linear(1, 1), {"weight": "head", "bias": "head"}))
    ['bias', 'weight']
    """
    return frozenset(labels)


def of_groups(*wanted: Group) -> Part:
    """Returns the part that holds all parameters of some groups.

    >>> sorted(of_groups("head")(nn.Module(), {"conv.weight": "rest", "fc.bias": "head"}))
    ['fc.bias']
    """

    def part(model: nn.Module, labels: Labels) -> frozenset[str]:
        for group in wanted:
            if group not in labels.values():
                raise ValueError(f"the model has no {group} to make personal. {_REMEDIES[group]}")
        return frozenset(name for name, group in labels.items() if group in wanted)

    return part


def of_layers(kinds: tuple[type[nn.Module], ...], what: str) -> Part:
    """Returns the part that holds all layers of some kinds, which an error calls ``what``.

    >>> model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1, affine=False, momentum=None))
    >>> sorted(of_layers((nn.BatchNorm1d,), "norm")(model, {"0.bias": "head", "1.running_mean": "statistics"}))
    ['1.running_mean']
    """

    def part(model: nn.Module, labels: Labels) -> frozenset[str]:
        inside = [f"{name}." if name else "" for name, layer in model.named_modules() if isinstance(layer, kinds)]
        found = frozenset(name for name in labels if name.startswith(tuple(inside)))
        if not found:
            raise ValueError(f"the model has no {what} to make personal. Use model='resnet18', or another method.")
        return found

    return part


_DECOMPOSE = "Decompose it first: parametrisation='atoms', or fedatoms.decompose(model)."
_REMEDIES: dict[Group, str] = {
    "atoms": _DECOMPOSE,
    "coefficients": _DECOMPOSE,
    "head": "Name its last layer with `head`.",
    "rest": "Use another method.",
    "statistics": "Use a network with BatchNorm, or another method.",
}
