"""A model as pure functions of its parameters: dropout gets its randomness, and BatchNorm its padding, as inputs."""

import copy
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedatoms.core.inputs import Inputs
from fedatoms.core.trees import Params, misfit, restrict
from fedatoms.nn.dropouts import ADDRESSED, PLAIN_DROPOUTS, with_addressed_dropout
from fedatoms.nn.layers import copied
from fedatoms.nn.masked_norm import MaskedBatchNorm, counts_padding, with_masked_norm


class Network(NamedTuple):
    """A model split into its tensors and the functions that run it on any tensors."""

    parameters: Params  # trainable ones
    statistics: Params  # floating-point buffers of the state dict, if they are finite
    constants: Params  # the rest: frozen parameters, counters, buffers outside the state dict; never averaged
    train: Callable[[Params, Inputs, Tensor | None, Tensor], tuple[object, Params]]
    predict: Callable[[Params, Inputs], object]
    study: Callable[[str, Params, Inputs, Tensor | None, Tensor], tuple[object, Params, Tensor]]
    features: Callable[[str, Params, Inputs], Tensor]
    frozen: frozenset[str] = frozenset()  # those constants that no step changes, so that all clients share them

    @property
    def dtype(self) -> torch.dtype:
        """The type of the parameters, and so of the inputs."""
        return next(iter(self.parameters.values())).dtype

    def split(self, params: Params) -> tuple[Params, Params]:
        """Splits a model's tensors into those that a client's training may change, and those that all clients share."""
        shared = {name: params[name] for name in self.constants if name in self.frozen}  # files have another order
        return {name: leaf for name, leaf in params.items() if name not in shared}, shared


def network(model: nn.Module) -> Network:
    """Splits a model into tensors and functions; the model itself stays as it is.

    ``train(params, x, real, key)`` returns outputs and the new buffers; ``real`` marks the rows that are not padding
    (None: all of them), ``key`` seeds dropout. ``study`` is ``train`` that also returns the inputs of a layer, a row
    per sample; ``features`` is ``predict`` that returns only those.

    >>> net = network(nn.Sequential(nn.Linear(2, 3).requires_grad_(False), nn.BatchNorm1d(3)))
    >>> sorted(net.statistics), sorted(net.constants)
    (['1.running_mean', '1.running_var'], ['0.bias', '0.weight', '1.num_batches_tracked'])
    >>> sorted(net.frozen)  # a buffer may move while a client trains
    ['0.bias', '0.weight']
    >>> net.features("0", {**net.parameters, **net.statistics, **net.constants}, torch.ones(1, 2))
    tensor([[1., 1.]])
    """
    tensors = {name: leaf.detach().clone() for name, leaf in _tensors(model).items()}
    trained, averaged = tensor_names(model)
    rest = tensors.keys() - trained - averaged
    training = with_addressed_dropout(copy.deepcopy(model)).train()
    masked, scoring = with_masked_norm(copy.deepcopy(training)), copy.deepcopy(model).eval()
    tied, inputs = len(_tensors(model)) < len(_tensors(model, remove_duplicate=False)), _inputs(model, training, masked)
    copies = _buffers_of(model)

    def train(params: Params, x: Inputs, real: Tensor | None, key: Tensor) -> tuple[object, Params]:
        state, mutable = inputs(params, real, key)
        outputs = functional_call(training if real is None else masked, state, *arguments(x), tie_weights=tied)
        return outputs, {name: state[name] for name in mutable}

    def predict(params: Params, x: Inputs) -> object:
        return functional_call(scoring, {**params, **copies(params)}, *arguments(x), tie_weights=tied)

    def study(layer: str, params: Params, x: Inputs, real: Tensor | None, key: Tensor) -> tuple[object, Params, Tensor]:
        with _inputs_of(training if real is None else masked, layer) as seen:
            outputs, buffers = train(params, x, real, key)
        return outputs, buffers, _rows(seen, layer)

    def features(layer: str, params: Params, x: Inputs) -> Tensor:
        with _inputs_of(scoring, layer) as seen:
            predict(params, x)
        return _rows(seen, layer)

    parameters, statistics, constants = (restrict(tensors, names) for names in (trained, averaged, rest))
    frozen = rest & dict(model.named_parameters()).keys()
    return Network(parameters, statistics, constants, train, predict, study, features, frozenset(frozen))


def tensor_names(model: nn.Module) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the names of a model's trainable parameters, and of its statistics.

    >>> parameters, statistics = tensor_names(nn.BatchNorm1d(3, affine=True))
    >>> sorted(parameters), sorted(statistics)
    (['bias', 'weight'], ['running_mean', 'running_var'])
    """
    trainable = frozenset(name for name, leaf in model.named_parameters() if leaf.requires_grad)
    if not trainable:
        raise ValueError(
            f"{type(model).__name__} has nothing to train: no parameter requires a gradient. Unfreeze some."
        )
    saved = model.state_dict().keys()
    buffers = ((name, leaf) for name, leaf in model.named_buffers() if leaf.is_floating_point() and name in saved)
    return trainable, frozenset(name for name, leaf in buffers if leaf.isfinite().all())  # a mask of -inf has no mean


def require_real(model: nn.Module) -> None:
    """Refuses a trainable parameter that is complex.

    >>> model = nn.Linear(2, 2, dtype=torch.complex64)
    >>> require_real(model)
    Traceback (most recent call last):
    ...
    ValueError: 'weight' of the model is complex, and models are averaged as real numbers. Keep its parts in a real
    parameter, and use torch.view_as_complex of that.
    >>> require_real(model.requires_grad_(False))
    """
    for name, leaf in model.named_parameters():
        if leaf.requires_grad and leaf.dtype.is_complex:
            raise ValueError(
                f"'{name}' of the model is complex, and models are averaged as real numbers. Keep its parts in a real "
                f"parameter, and use torch.view_as_complex of that."
            )


def with_params(model: nn.Module, params: Params, names: Collection[str] | None = None) -> nn.Module:
    """Returns a copy of a model with other tensors: exactly all of them, or exactly those in ``names``.

    A tied tensor is named once. Buffers that a state dict leaves out stay the model's own.

    >>> from torch import zeros
    >>> with_params(nn.Linear(1, 1), {"weight": zeros(1, 1), "bias": zeros(1)}).bias.item()
    0.0
    >>> with_params(nn.Linear(1, 1), {"bias": zeros(1)})
    Traceback (most recent call last):
    ...
    ValueError: the tensors do not fit the model (missing: weight)
    >>> with_params(nn.Linear(1, 1), {"bias": zeros(1)}, names={"bias"}).bias.item()
    0.0
    """
    new = copied(model)
    saved, parameters, buffers = new.state_dict().keys(), dict(new.named_parameters()), dict(new.named_buffers())
    unsaved = buffers.keys() - saved
    held = {name: leaf for name, leaf in {**parameters, **buffers}.items() if name not in unsaved}
    given = {name: leaf for name, leaf in params.items() if name not in unsaved}
    if wrong := misfit(given, held if names is None else {name: held[name] for name in sorted(names)}):
        raise ValueError(f"the tensors do not fit the model ({wrong})")
    with torch.no_grad():
        for name, leaf in given.items():
            held[name].copy_(leaf)
    return new


def run_on(model: Callable[..., object], x: Inputs) -> object:
    """Calls a model with a batch.

    >>> run_on(torch.add, (torch.tensor(1), torch.tensor(2)))
    tensor(3)
    """
    given, by_name = arguments(x)
    return model(*given, **by_name)


def arguments(x: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Returns the arguments of a model: a tensor is the first, a tuple all in order, a dictionary those by name.

    >>> arguments({"ids": torch.tensor([3])})
    ((), {'ids': tensor([3])})
    """
    if isinstance(x, dict):
        return (), x
    return (x if isinstance(x, tuple) else (x,)), {}


def why_not_vectorised(model: nn.Module) -> str | None:
    """Returns which layer keeps a model from being vectorised over clients; None if none does.

    What its forward pass does besides is known when it is tried.

    >>> why_not_vectorised(nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5)))
    >>> why_not_vectorised(nn.Sequential(nn.AlphaDropout(0.5)))
    "layer '0' (AlphaDropout) draws its own randomness"
    """
    norms = (layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._NormBase))
    holders = Counter(id(buffer) for layer in norms for buffer in layer.buffers(recurse=False))
    for name, module in model.named_modules():
        kind = type(module).__name__
        if any(holders[id(buffer)] > 1 for buffer in module.buffers(recurse=False)):
            return f"layer '{name}' ({kind}) shares its statistics with another"
        if isinstance(module, nn.modules.dropout._DropoutNd) and type(module) not in PLAIN_DROPOUTS:
            return f"layer '{name}' ({kind}) draws its own randomness"
        if _drops_unaddressed(module):
            return f"layer '{name}' ({kind}) draws its own randomness for dropout={module.dropout}"
        if counts_padding(module):
            return f"layer '{name}' ({kind}) would count padded rows in its statistics"
    return None


def _drops_unaddressed(module: nn.Module) -> TypeGuard[nn.RNNBase | nn.MultiheadAttention]:
    """Returns whether a layer with an option for dropout draws masks that no addressed layer takes over."""
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0 and module.num_layers > 1  # torch drops between layers only
    known = type(module) is nn.MultiheadAttention
    return isinstance(module, nn.MultiheadAttention) and not known and module.dropout > 0


def _inputs(
    model: nn.Module, training: nn.Module, masked: nn.Module
) -> Callable[[Params, Tensor | None, Tensor], tuple[Params, list[str]]]:
    """Returns the function that adds dropout's keys and BatchNorm's masks to a model's tensors, and names buffers."""
    copies = _buffers_of(model)
    layers = enumerate(training.named_modules())
    drops = {f"{name}.key": place for place, (name, layer) in layers if isinstance(layer, ADDRESSED)}
    masks = [f"{name}.real" for name, layer in masked.named_modules() if isinstance(layer, MaskedBatchNorm)]

    def inputs(params: Params, real: Tensor | None, key: Tensor) -> tuple[Params, list[str]]:
        buffers = copies(params)
        state = {**params, **buffers} | {name: key + place * 1_000_003 for name, place in drops.items()}
        return state | (dict.fromkeys(masks, real) if real is not None else {}), [*buffers]

    return inputs


def _buffers_of(model: nn.Module) -> Callable[[Params], Params]:
    """Returns the function that copies a model's buffers, which a forward pass may change in either mode."""
    names = [name for name, _ in model.named_buffers()]
    return lambda params: {name: params[name].clone() for name in names}


@contextmanager
def _inputs_of(model: nn.Module, layer: str) -> Iterator[list[Tensor]]:
    """Collects the inputs of a layer, under any transform that the model runs in."""
    seen: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    try:
        yield seen
    finally:
        handle.remove()


def _rows(seen: list[Tensor], layer: str) -> Tensor:
    if len(seen) != 1:
        raise ValueError(
            f"layer '{layer}' is called {len(seen)} times for a batch, so its inputs are not one row of features per "
            f"sample. Name another with `head`."
        )
    return seen[0].flatten(1)


def _tensors(model: nn.Module, *, remove_duplicate: bool = True) -> Params:
    both = (model.named_parameters, model.named_buffers)
    return {name: leaf for named in both for name, leaf in named(remove_duplicate=remove_duplicate)}
