"""Clients of a network trained together, tried on a batch, and why torch refuses that, in words of ours."""

import warnings
from collections.abc import Callable, Iterator
from types import TracebackType

import torch
from torch import Tensor, nn

from fedatoms.core.inputs import Inputs, each, leaves, output_of, samples_in, take
from fedatoms.core.lookup import one_line
from fedatoms.core.trees import Params, stack
from fedatoms.nn.pure import Network, network

NUMBERS = "reads numbers out of a tensor, as .numpy() does"
REASONS = {  # by torch's words for what it meets
    "called random operation": "draws random numbers itself, as F.dropout does",
    "would mutate a captured Tensor": "changes its input in place, as x -= 1 does",
    "support saved tensor hooks": "keeps its activations elsewhere, as checkpoint and save_on_cpu do",
    "that doesn't have storage": NUMBERS,
    "Cannot access storage": NUMBERS,
}
MIXES = "what it makes of a sample depends on the other rows of a batch, and some batches would be padded"
REFUSALS = ("vmap", "functorch", "Batching rule")  # one of them is in all others of torch's refusals


def why_not_together(model: nn.Module, x: Inputs) -> str | None:
    """Trains two clients of a model together for a step on a batch, and returns why that fails; None if it does not.

    >>> why_not_together(nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5)), torch.zeros(2, 2))
    >>> why_not_together(nn.Sequential(nn.Linear(2, 3), nn.AlphaDropout()), torch.zeros(2, 2))
    "its forward pass draws random numbers itself, as F.dropout does, in layer '1' (AlphaDropout)"
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            _step(network(model), x)
    except Exception as error:  # a model may raise anything, and this is about what it does
        return why_refused(error) or f"training two clients at once fails ({one_line(error)})"
    return None


@torch.no_grad()
def mixes_rows(net: Network, x: Inputs, read: Callable[[object], Tensor] = output_of) -> bool:
    """Says whether what a network makes of the first two samples depends on a padded row: the third one, or the last.

    A round would then train on padding. BatchNorms are known, and leave it out.

    >>> mixes_rows(network(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))), torch.rand(4, 2))
    False
    """
    params, device = {**net.parameters, **net.statistics, **net.constants}, leaves(x)[0].device
    real, key = torch.tensor([True, True, False], device=device), torch.tensor(0, device=device)

    def seen(padding: int) -> list[Tensor]:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):  # the same draws for both
            returned, buffers = net.train(params, take(x, torch.tensor([0, 1, padding], device=device)), real, key)
        return [read(returned)[:2], *buffers.values()]

    try:
        both = zip(seen(2), seen(samples_in(x) - 1), strict=True)
        return any(not torch.allclose(one, other, 1e-3, 1e-5, equal_nan=True) for one, other in both)
    except Exception:  # a model may raise anything: the first round says so
        return False


def why_refused(error: BaseException) -> str | None:
    """Returns why torch refuses to vectorise a model, however wrapped; None if the error is about something else.

    >>> why_refused(RuntimeError("vmap: called random operation while in randomness error mode. Please either use"))
    'its forward pass draws random numbers itself, as F.dropout does'
    """
    for cause in causes(error):
        words = first_sentence(cause)
        if does := [does for said, does in REASONS.items() if said in words]:
            return f"{_who(cause)} {does[0]}{_place(cause.__traceback__)}"
        if any(name in words for name in REFUSALS):
            return words
    return None


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and its chain of causes and contexts, each once: compilers wrap the errors that they meet.

    >>> error = RuntimeError("of itself")
    >>> error.__cause__ = error
    >>> list(causes(error))
    [RuntimeError('of itself')]
    """
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        yield error
        seen.append(error)
        error = error.__cause__ or error.__context__


def first_sentence(error: BaseException) -> str:
    """Returns the first sentence of an error, without the advice that follows.

    >>> first_sentence(RuntimeError("vmap: no such thing. Please file an issue."))
    'vmap: no such thing'
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].split(". ")[0].rstrip(".")


def _step(net: Network, x: Inputs) -> None:
    """Takes the gradients of two clients at once, as a round does, with a mask of rows and keys for dropout."""
    own, shared = net.split({**net.statistics, **net.constants})

    def loss(weights: Params, own: Params, x: Inputs, real: Tensor, key: Tensor) -> Tensor:
        returned, _ = net.train({**shared, **own, **weights}, x, real, key)
        return output_of(returned).square().mean()

    device = leaves(x)[0].device
    real, keys = torch.ones(2, samples_in(x), dtype=torch.bool, device=device), torch.arange(2, device=device)
    twice = each(lambda leaf: torch.stack([leaf, leaf]), x)
    torch.vmap(torch.func.grad(loss))(stack([net.parameters] * 2), stack([own] * 2), twice, real, keys)


def _who(error: BaseException) -> str:
    """Says in whose code an error was raised: a model's, or what else a step calls."""
    known = error.__traceback__ is None or _modules(error.__traceback__)
    return "its forward pass" if known else "the algorithm or the objective"


def _place(frames: TracebackType | None) -> str:
    """Names the module in whose forward pass an error was raised: the innermost one of the model, the outermost."""
    seen = _modules(frames)
    if not seen:
        return ""
    kind, names = type(seen[-1]).__name__, {module: name for name, module in seen[0].named_modules()}
    return f", in layer '{name}' ({kind})" if (name := names.get(seen[-1])) else f", in {kind}"


def _modules(frames: TracebackType | None) -> list[nn.Module]:
    """Returns the modules in whose methods an error was raised, the outermost first."""
    seen: list[nn.Module] = []
    while frames is not None:
        module = frames.tb_frame.f_locals.get("self")
        seen += [module] if isinstance(module, nn.Module) else []
        frames = frames.tb_next
    return seen
