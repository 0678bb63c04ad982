"""Layers that drop at random, with masks that are a function of a key: dropout, in attention too, and stochastic depth.

A layer draws by the buffer ``key`` and by each element's position, and rows of a batch come first in that: its mask is
the same on any device, in any block of clients, under vmap, and with any rows of padding after the real ones.
"""

import copy
import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedatoms.nn.layers import swap

_GOLDEN = -7046029254386353131  # 2^64 / golden ratio as a signed integer, the increment of splitmix64
PLAIN_DROPOUTS: dict[type[nn.Module], bool] = {  # whether it drops whole channels
    nn.Dropout: False,
    nn.Dropout1d: True,
    nn.Dropout2d: True,
    nn.Dropout3d: True,
}


def with_addressed_dropout(model: nn.Module) -> nn.Module:
    """Puts addressed layers in the place of those that draw from the global stream and are known, in ``model`` itself.

    Those are torch's dropouts, ``nn.MultiheadAttention`` with dropout, and stochastic depth, known by its class's name
    (torchvision's ``StochasticDepth``, timm's ``DropPath`` and Hugging Face's, as ``SwinDropPath``).

    >>> with_addressed_dropout(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)))
    Sequential(
      (0): Linear(in_features=2, out_features=2, bias=True)
      (1): AddressedDropout()
    )
    """
    second = {id(layer) for layer in model.modules() if _rows_are_second(layer) for layer in layer.children()}
    new: dict[nn.Module, nn.Module] = {}
    for layer in model.modules():
        if type(layer) in PLAIN_DROPOUTS and isinstance(layer, nn.modules.dropout._DropoutNd):
            new[layer] = AddressedDropout(layer.p, PLAIN_DROPOUTS[type(layer)], rows=int(id(layer) in second))
        elif type(layer) is nn.MultiheadAttention and layer.dropout:
            new[layer] = AddressedAttention(layer)
        elif (depth := _depth_of(layer)) is not None:
            new[layer] = depth
    return swap(model, new)


def uniform(key: Tensor, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """Hashes a key and each element's position to a number in [0, 1), on any device and under vmap alike (splitmix64).

    >>> key = torch.tensor(1)
    >>> bool((uniform(key, (2, 3)) == uniform(key, (4, 3))[:2]).all())  # more rows change nothing in the first ones
    True
    """
    places = torch.arange(math.prod(shape), device=key.device)
    z = _mix(_mix(key) + places)  # keys are mixed first: those of two steps differ by one
    return ((z >> 40 & (1 << 24) - 1).float() / (1 << 24)).reshape(shape)


def _mix(z: Tensor) -> Tensor:
    z = z * _GOLDEN
    z = (z ^ (z >> 30 & (1 << 34) - 1)) * -4658895280553007687
    z = (z ^ (z >> 27 & (1 << 37) - 1)) * -7723592293110705685
    return z ^ (z >> 31 & (1 << 33) - 1)


class Addressed(nn.Module):
    """A layer that drops with probability ``p`` while it is trained, by the buffer ``key``."""

    key: Tensor

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.register_buffer("key", torch.tensor(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Drops what the layer drops, and scales the others up."""
        return self.dropped(x) if self.training and self.p else x

    def dropped(self, x: Tensor) -> Tensor:
        """Drops, while the layer is trained."""
        raise NotImplementedError


class AddressedDropout(Addressed):
    """Dropout whose mask is a function of the buffer ``key``; drops whole channels if ``channels``.

    ``rows`` is the axis of the batch.
    """

    def __init__(self, p: float, channels: bool, rows: int = 0) -> None:
        super().__init__(p)
        self.channels, self.rows = channels, rows

    def dropped(self, x: Tensor) -> Tensor:
        """Drops elements, or channels."""
        if self.rows and x.dim() > 2:
            return _dropped(x.transpose(0, self.rows), self.key, self.p).transpose(0, self.rows)
        return _dropped(x, self.key, self.p, kept_axes=2 if self.channels else x.dim())


class AddressedDepth(Addressed):
    """Stochastic depth: a branch is dropped for single rows, or for the whole batch, by the buffer ``key``.

    >>> branch = AddressedDepth(0.5, "row")
    >>> [float(x) for x in branch(torch.ones(5, 1))]
    [0.0, 2.0, 0.0, 0.0, 2.0]
    """

    def __init__(self, p: float, mode: Literal["row", "batch"], scaled: bool = True) -> None:
        super().__init__(p)
        self.mode, self.scaled = mode, scaled

    def dropped(self, x: Tensor) -> Tensor:
        """Drops rows, or all of them."""
        dropped = _dropped(x, self.key, self.p, kept_axes=int(self.mode == "row"))
        return dropped if self.scaled else dropped * (1 - self.p)


class AddressedAttention(nn.MultiheadAttention):
    """Attention with the parameters of a plain one, whose weights are dropped by the buffer ``key``."""

    key: Tensor

    def __init__(self, plain: nn.MultiheadAttention) -> None:
        self.__dict__ |= {name: copy.copy(value) for name, value in vars(plain).items()}
        self.register_buffer("key", torch.tensor(0), persistent=False)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Computes what torch's does, step by step: softmax(q k' / sqrt(D) + mask) v, with weights dropped."""
        if not self.training or (is_causal and attn_mask is None):  # which torch refuses
            masks = key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            return super().forward(query, key, value, *masks)
        single, swapped = query.dim() == 2, query.dim() == 3 and not self.batch_first
        query, key, value = (x[None] if single else x.transpose(0, 1) if swapped else x for x in (query, key, value))
        q, k, v = self._projected(query, key, value)
        mask = self._mask(attn_mask, key_padding_mask, q, k.shape[2])
        weights = _dropped(_softmax(q @ k.mT / math.sqrt(self.head_dim), mask), self.key, self.dropout)
        out = self.out_proj((weights @ v).transpose(1, 2).flatten(2))
        seen = (weights.mean(1) if average_attn_weights else weights) if need_weights else None
        if single:
            return out[0], None if seen is None else seen[0]
        return out.transpose(0, 1) if swapped else out, seen

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries, keys and values of each head, (N, H, L, D), with torch's additional keys and values."""
        separate = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        weights = separate if self.in_proj_weight is None else self.in_proj_weight.chunk(3)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        inputs = zip((query, key, value), weights, biases, strict=True)
        q, k, v = (functional.linear(x, weight, bias) for x, weight, bias in inputs)
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (torch.cat([x, bias.expand(len(x), -1, -1)], 1) for x, bias in ((k, self.bias_k), (v, self.bias_v)))
        if self.add_zero_attn:
            k, v = (functional.pad(x, (0, 0, 0, 1)) for x in (k, v))
        q, k, v = (x.unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2) for x in (q, k, v))
        return q, k, v

    def _mask(self, attention: Tensor | None, padding: Tensor | None, q: Tensor, keys: int) -> Tensor | None:
        """Returns what is added to (N, H, L, S) scores, if anything; additional keys are never masked."""
        masks = list[Tensor]()
        if attention is not None:
            heads = self.num_heads if attention.dim() == 3 else 1
            masks.append(_added(attention, q).reshape(-1, heads, *attention.shape[-2:]))
        if padding is not None:
            masks.append(_added(padding, q).reshape(-1, 1, 1, padding.shape[-1]))
        wide = [functional.pad(mask, (0, keys - mask.shape[-1])) for mask in masks]
        return torch.stack(torch.broadcast_tensors(*wide)).sum(0) if wide else None


ADDRESSED = (AddressedDropout, AddressedDepth, AddressedAttention)


def _dropped(x: Tensor, key: Tensor, p: float, kept_axes: int | None = None) -> Tensor:
    """Drops with probability ``p``; all axes from ``kept_axes`` on share a draw."""
    axes = x.dim() if kept_axes is None else kept_axes
    keep = uniform(key, (*x.shape[:axes], *([1] * (x.dim() - axes)))) >= p
    return x * keep / max(1 - p, 1e-12)


def _softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Returns attention's weights; a query that may see nothing has none, as in torch's own."""
    if mask is None:
        return scores.softmax(-1)
    blind = mask.isneginf().all(-1, keepdim=True)
    return (scores + torch.where(blind, 0, mask)).softmax(-1).masked_fill(blind, 0)


def _added(mask: Tensor, like: Tensor) -> Tensor:
    """Returns a mask as numbers to be added: torch's masks are True where nothing is seen."""
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros(mask.shape, dtype=like.dtype, device=mask.device).masked_fill(mask, -torch.inf)


def _rows_are_second(layer: nn.Module) -> bool:
    """Says whether a layer of torch's Transformer takes (L, N, E): the rows of a batch are its second axis."""
    kinds = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    return isinstance(layer, kinds) and not layer.self_attn.batch_first


def _depth_of(layer: nn.Module) -> AddressedDepth | None:
    """Returns stochastic depth as an addressed layer; None for what is something else."""
    kind = type(layer).__name__
    if kind == "StochasticDepth":
        p, mode = getattr(layer, "p", None), getattr(layer, "mode", None)
    elif kind.endswith("DropPath"):
        p, mode = getattr(layer, "drop_prob", None), "row"
    else:
        return None
    if not isinstance(p, float | int) or not 0 <= p <= 1 or mode not in ("row", "batch"):
        return None
    scaled = bool(getattr(layer, "scale_by_keep", True))
    return AddressedDepth(p, mode, scaled=scaled) if _drops_samples(layer, p, mode, scaled) else None


def _drops_samples(layer: nn.Module, p: float, mode: str, scaled: bool) -> bool:
    """Tries whether a layer of that name does drop whole samples, and nothing else: a name is no promise."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(0)
        try:
            found = copy.deepcopy(layer).cpu().train()(torch.ones(64, 2))
        except Exception:  # of another kind
            return False
    kept = 1 / (1 - p) if scaled and p < 1 else 1.0
    dropped = (found == 0).all(1, keepdim=True)
    as_often = mode == "batch" or abs(float(dropped.float().mean()) - p) < 0.3
    return as_often and torch.allclose(found, torch.where(dropped, 0.0, kept).expand(64, 2))
