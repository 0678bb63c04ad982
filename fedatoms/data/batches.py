"""Batches as a function of (seed, client, round): a plan names the samples, ``fetch`` turns them into inputs."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from fedatoms.core import trees
from fedatoms.core.inputs import Inputs, each
from fedatoms.core.options import check_range
from fedatoms.core.randomness import generator
from fedatoms.data.datasets import Recipe

_AS_THEY_ARE = (torch.int32, torch.int64, torch.bool)  # token ids and masks


class Plan(NamedTuple):
    """The batches of one client in one round, S steps of B samples; a client axis, if any, leads.

    Padding repeats the first sample of its batch, or the client's first in a step that is all padding; it never counts.
    """

    rows: Tensor  # int64 (S, B): indices into the pool
    real: Tensor  # bool (S, B): not padding; real entries come first in each row
    flip: Tensor  # bool (S, B)
    shift: Tensor  # int64 (S, B, 2): down and right, in [-pad, pad]; 0 = no crop
    key: Tensor  # int64 (): seeds dropout


Planner = Callable[[int, int, int, int], Plan]  # client, round, epochs, phase -> its batches


def planner(parts: Sequence[Tensor], recipe: Recipe | None, batch_size: int, seed: int, remembered: int = 0) -> Planner:
    """Returns the function that draws any client's batches, and keeps the last ``remembered`` of them.

    >>> batches = planner([torch.arange(3), torch.arange(3, 9)], recipe=None, batch_size=4, seed=0)
    >>> batches(1, 0, 1, 0).rows.shape  # client 1, first round, one epoch, first phase
    torch.Size([2, 4])
    """
    of_part = partial(plan, batch_size=batch_size, recipe=recipe, seed=seed)

    def draw(client: int, round: int, epochs: int, phase: int) -> Plan:
        return of_part(parts[client], epochs=epochs, client=client, round=round, phase=phase)

    return lru_cache(remembered)(draw) if remembered else draw


def plan(
    part: Tensor,
    *,
    batch_size: int,
    epochs: int,
    recipe: Recipe | None,
    seed: int,
    client: int,
    round: int,
    phase: int = 0,
) -> Plan:
    """Draws ``epochs`` passes over a client's samples, each in a new order and with a last batch that may be partial.

    >>> drawn = plan(torch.tensor([7, 8, 9]), batch_size=2, epochs=2, recipe=None, seed=0, client=0, round=0)
    >>> drawn.real.tolist()
    [[True, True], [True, False], [True, True], [True, False]]
    >>> [sorted(epoch.tolist()) for epoch in drawn.rows[drawn.real].view(2, 3)]
    [[7, 8, 9], [7, 8, 9]]
    """
    _check_plan(part, batch_size, epochs)
    draws = generator(seed, "batches", client, round, *([phase] if phase else []))
    order = torch.stack([torch.randperm(len(part), generator=draws, device="cpu") for _ in range(epochs)])
    key = torch.randint(2**63 - 1, (), generator=draws, device="cpu")
    rows, real = part[order], torch.ones_like(order, dtype=torch.bool)
    if missing := -len(part) % batch_size:
        rows, real = (pad_tensor(leaf, (0, missing)) for leaf in (rows, real))
    rows, real = rows.view(-1, batch_size), real.view(-1, batch_size)
    drawn = Plan(rows, real, *_draw_augmentation(rows.shape, recipe, draws), key)
    return _pad_with_first(drawn) if missing else drawn


def pad_steps(plans: Sequence[Plan], steps: int = 0) -> Plan:
    """Stacks the plans of several clients along a leading axis; shorter ones get steps of padding.

    >>> settings = dict(batch_size=2, epochs=1, recipe=None, seed=0, client=0, round=0)
    >>> pad_steps([plan(torch.arange(2), **settings), plan(torch.arange(5), **settings)]).real.sum(dim=-1).tolist()
    [[2, 0, 0], [2, 2, 1]]
    """
    widths = sorted({one.rows.shape[1] for one in plans})
    if len(widths) != 1:
        raise ValueError(f"batch sizes {widths} are not one size: only plans of equal width stack. Use one batch_size.")
    steps = max(steps, *(len(one.rows) for one in plans))
    rows, real, flip, shift, key = zip(*(_lengthen(one, steps) for one in plans), strict=True)
    return Plan(*(torch.stack(leaf) for leaf in (rows, real, flip, shift, key)))


def move(plan: Plan, device: torch.device) -> Plan:
    """Returns a plan on a device."""
    return Plan(*(trees.move(leaf, device) for leaf in plan))


def fetch(
    x: Inputs, y: Tensor, rows: Tensor, recipe: Recipe | None, dtype: torch.dtype, flip: Tensor, shift: Tensor
) -> tuple[Inputs, Tensor]:
    """Gathers rows of the pool, of any leading shape, as inputs, augmented if they are images, and their targets.

    An image is normalised, flipped and then shifted: ``out[i, j] = padded[i + down, j + right]``.

    >>> recipe = Recipe(scale=1, mean=(0.0,), std=(1.0,), flip=True, pad=1, crop=1.0, fill="zero")
    >>> x, y = torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8), torch.tensor([5])
    >>> fetch(x, y, torch.tensor([0]), recipe, torch.float32, torch.tensor([True]), torch.tensor([[0, 1]]))
    (tensor([[[[1., 0.], [3., 0.]]]]), tensor([5]))
    """
    if not isinstance(x, Tensor):
        found = each(lambda leaf: leaf.index_select(0, rows.flatten()).view(*rows.shape, *leaf.shape[1:]), x)
        return cast_inputs(found, recipe, dtype), cast_targets(y[rows], dtype)
    images = x.index_select(0, rows.flatten())  # ten times as fast as x[rows] on a CPU
    if recipe is None or not (recipe.flip or recipe.pad):
        images = normalise(images, recipe, dtype)
    else:
        images = _augmented(images, recipe, dtype, flip.flatten(), shift.flatten(0, -2))
    return images.view(*rows.shape, *x.shape[1:]), cast_targets(y[rows], dtype)


def cast_inputs(x: Inputs, recipe: Recipe | None, dtype: torch.dtype) -> Inputs:
    """Returns samples as a model takes them: images by their recipe; the parts of a tuple or dictionary cast.

    >>> cast_inputs((torch.zeros(1, dtype=torch.uint8), torch.ones(1, dtype=torch.bool)), None, torch.float32)
    (tensor([0.]), tensor([True]))
    """
    if isinstance(x, Tensor):
        return normalise(x, recipe, dtype)
    return each(lambda leaf: leaf if leaf.dtype in _AS_THEY_ARE else leaf.to(dtype), x)


def received(x: Inputs, y: Tensor, dtype: torch.dtype, device: torch.device) -> tuple[Inputs, Tensor]:
    """Returns samples that were read as inputs and targets on a device.

    >>> received(torch.tensor([1.5], dtype=torch.float64), torch.tensor([0]), torch.float32, torch.device("cpu"))
    (tensor([1.5000]), tensor([0]))
    """
    there = each(lambda leaf: trees.move(leaf, device), cast_inputs(x, None, dtype))
    return there, trees.move(cast_targets(y, dtype), device)


def cast_targets(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns targets that are real numbers in the type of the parameters; whole numbers stay.

    >>> [cast_targets(torch.tensor([1], dtype=kind), torch.float32).dtype for kind in (torch.float64, torch.int64)]
    [torch.float32, torch.int64]
    """
    return y.to(dtype) if y.is_floating_point() else y


def normalise(x: Tensor, recipe: Recipe | None, dtype: torch.dtype) -> Tensor:
    """Returns ``(x / scale - mean) / std`` of images (n, C, H, W); without a recipe, casts all but int32 and int64.

    >>> recipe = Recipe(scale=16, mean=(0.5,), std=(0.25,), flip=False, pad=0, crop=0.0, fill="zero")
    >>> normalise(torch.tensor([[[[0, 16]]]], dtype=torch.uint8), recipe, torch.float32)
    tensor([[[[-2.,  2.]]]])
    """
    if recipe is None:
        return x if x.dtype in (torch.int32, torch.int64) else x.to(dtype)  # whole numbers are token ids
    scale = _per_channel([1 / (recipe.scale * std) for std in recipe.std], dtype, x.device)
    return (x.to(dtype) * scale).add_(_black(recipe, dtype, x.device))  # twice as fast as addcmul on a CPU


def largest_input(x: Inputs, recipe: Recipe | None) -> float | None:
    """Returns what no number of a normalised image exceeds in magnitude, if the pool's pixels are bytes.

    >>> recipe = Recipe(scale=255, mean=(0.25,), std=(0.5,), flip=False, pad=0, crop=0.0, fill="zero")
    >>> largest_input(torch.zeros(1, 1, 2, 2, dtype=torch.uint8), recipe)
    1.5
    """
    if recipe is None or not isinstance(x, Tensor) or x.dtype != torch.uint8:
        return None
    white = 255 / recipe.scale
    return max(max(mean, abs(white - mean)) / std for mean, std in zip(recipe.mean, recipe.std, strict=True))


def bounded(x: Tensor, largest: float) -> Tensor:
    """Returns inputs as they are; who replaces it knows that none is larger than that, and need not search them.

    >>> bounded(torch.tensor([0.5]), 1.0)
    tensor([0.5000])
    """
    if has_torch_function_unary(x):
        same: Tensor = handle_torch_function(bounded, (x,), x, largest)
        return same
    return x


def _augmented(images: Tensor, recipe: Recipe, dtype: torch.dtype, flip: Tensor, shift: Tensor) -> Tensor:
    """Flips, shifts and normalises (n, C, H, W) by one gather: a flip reverses the column that is read.

    What lies outside is filled afterwards: a compiler makes one kernel of it, and none of padded images.
    """
    n, channels, height, width = images.shape
    row = torch.arange(height, device=images.device) + shift[:, :1]
    column = torch.arange(width, device=images.device) + shift[:, 1:]
    column = torch.where(flip[:, None], width - 1 - column, column)
    pixel = row.clamp(0, height - 1)[:, :, None] * width + column.clamp(0, width - 1)[:, None, :]
    found = images.flatten(2).gather(2, pixel.view(n, 1, -1).expand(-1, channels, -1)).view(images.shape)
    inside = _within(row, height)[:, None, :, None] & _within(column, width)[:, None, None, :]
    outside = _black(recipe, dtype, images.device) if recipe.fill == "black" else 0
    return torch.where(inside, normalise(found, recipe, dtype), outside)


def _within(at: Tensor, size: int) -> Tensor:
    return (at >= 0) & (at < size)


def _black(recipe: Recipe, dtype: torch.dtype, device: torch.device) -> Tensor:
    return _per_channel([-mean / std for mean, std in zip(recipe.mean, recipe.std, strict=True)], dtype, device)


def _per_channel(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    # torch.tensor(values, device=...) would copy from the host: it waits for the GPU, and no CUDA graph can hold it
    return torch.stack([torch.full((1, 1), value, dtype=dtype, device=device) for value in values])


def _draw_augmentation(shape: Sequence[int], recipe: Recipe | None, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    flip = torch.zeros(*shape, dtype=torch.bool, device="cpu")
    shift = torch.zeros(*shape, 2, dtype=torch.int64, device="cpu")
    if recipe is not None and recipe.flip:
        flip = torch.rand(*shape, generator=draws, device="cpu") < 0.5
    if recipe is not None and recipe.pad:
        cropped = torch.rand(*shape, 1, generator=draws, device="cpu") < recipe.crop
        moves = torch.randint(-recipe.pad, recipe.pad + 1, (*shape, 2), generator=draws, device="cpu")
        shift = moves * cropped
    return flip, shift


def _pad_with_first(one: Plan) -> Plan:
    """Pads a batch with its own first sample, on which a network does nothing that it does not do anyway."""
    rows, flip = (torch.where(one.real, leaf, leaf[:, :1]) for leaf in (one.rows, one.flip))
    return one._replace(rows=rows, flip=flip, shift=torch.where(one.real[..., None], one.shift, one.shift[:, :1]))


def _lengthen(one: Plan, steps: int) -> Plan:
    more = steps - len(one.rows)
    if not more:
        return one
    rows = torch.cat([one.rows, one.rows[0, 0].expand(more, one.rows.shape[1])])
    real, flip = (pad_tensor(leaf, (0, 0, 0, more)) for leaf in (one.real, one.flip))
    return Plan(rows, real, flip, pad_tensor(one.shift, (0, 0, 0, 0, 0, more)), one.key)


def _check_plan(part: Tensor, batch_size: int, epochs: int) -> None:
    if batch_size < 1 or epochs < 1:
        check_range("batch_size", batch_size)
        check_range("epochs", epochs)
    if len(part) == 0:
        raise ValueError("the client has no samples to train on. Leave it out of the federation.")
