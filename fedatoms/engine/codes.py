"""Uploads in few bits: each update, rounded at random to a short code that is right on average.

Stochastic rounding as in QSGD (Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and
Encoding", NeurIPS 2017), with the largest number of each bucket as its scale. What is rounded is the update, the
difference to what the server sent, which both sides know; its draws are a function of seed, client, round and position.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedatoms.core import trees
from fedatoms.core.options import Uploads
from fedatoms.core.randomness import address
from fedatoms.core.trees import Memory, Params
from fedatoms.engine.client_round import Reply
from fedatoms.engine.runtime import Runtime
from fedatoms.engine.state import State
from fedatoms.nn.dropouts import uniform

BITS: dict[Uploads, int] = {"8-bit": 8, "4-bit": 4}
BUCKET = 512  # numbers that share a scale: QSGD's choice, 1 % of an upload's bytes in 8 bits and 2 % in 4
SCALE = 4  # bytes of a scale, a float32
EXACT = ("statistics", trees.NUMBERS)  # few, and a variance that is rounded may be negative


def rounded(runtime: Runtime, state: State, block: list[int], reply: Reply) -> Reply:
    """Returns a block's reply with its uploads as the server reads them, and as they are sent in few bits."""
    bits, start = BITS[runtime.sim.uploads], state.server.params
    draws = [address(runtime.sim.seed, "rounding", client, state.round) for client in block]
    keys = trees.move(torch.tensor(draws, device="cpu"), torch.device(runtime.sim.device))
    sent = sent_of(reply.upload, start, bits, keys)
    return reply._replace(upload=received(sent, _one_of(reply.upload), start, bits), sent=sent)


def sent_of(uploads: Memory, start: Params, bits: int, keys: Tensor) -> Memory:
    """Encodes uploads, with a leading client axis, against what the server sent; ``keys`` seed the clients' draws.

    A leaf becomes bytes: the scales of its buckets, then its codes. Statistics, numbers and leaves that would not be
    smaller are sent as they are.

    >>> upload = {"params": {"w": torch.tensor([[0.0, 0.5, 1.0, 1.5]])}, "statistics": {"mean": torch.ones(1, 3)}}
    >>> sent = sent_of(upload, {"w": torch.ones(4)}, 8, torch.tensor([7]))
    >>> sent["params"]["w"].dtype, sent["params"]["w"].shape, sent["statistics"]["mean"]
    (torch.uint8, torch.Size([1, 8]), tensor([[1., 1., 1.]]))
    """
    places = {path: place for place, path in enumerate(sorted(_coded(_one_of(uploads), bits)))}

    def sent(kind: str, name: str, leaf: Tensor) -> Tensor:
        if (kind, name) not in places:
            return leaf
        update = leaf - start[name] if kind == "params" else leaf
        return encode(update, bits, keys + places[kind, name])

    return {kind: {name: sent(kind, name, leaf) for name, leaf in tree.items()} for kind, tree in uploads.items()}


def received(sent: Memory, like: Memory, start: Params, bits: int) -> Memory:
    """Inverts ``sent_of`` up to rounding; ``like`` is an upload of one client, ``sent`` has a client axis.

    >>> upload, start = {"params": {"w": torch.tensor([0.0, 0.5, 1.0, 1.5])}}, {"w": torch.ones(4)}
    >>> sent = sent_of({"params": trees.lead(upload["params"])}, start, 8, torch.tensor([7]))
    >>> error = received(sent, upload, start, 8)["params"]["w"] - upload["params"]["w"]
    >>> 0 < float(error.abs().max()) < 1 / 127
    True
    """
    coded = _coded(like, bits)

    def read(kind: str, name: str, leaf: Tensor) -> Tensor:
        if (kind, name) not in coded:
            return leaf
        update = decode(trees.move(leaf, like[kind][name].device), like[kind][name], bits)
        return start[name] + update if kind == "params" else update

    return {kind: {name: read(kind, name, leaf) for name, leaf in tree.items()} for kind, tree in sent.items()}


def encode(updates: Tensor, bits: int, keys: Tensor) -> Tensor:
    """Rounds updates with a leading client axis to codes of ``bits``: up with the probability of their remainder.

    A bucket's scale is the step between two codes: its largest number over ``2^(bits - 1) - 1``.

    >>> encode(torch.tensor([[-1.0, 0.0, 1.0]]), 8, torch.tensor([7]))[:, -3:]
    tensor([[  0, 127, 254]], dtype=torch.uint8)
    """
    most, count = _most(bits), updates[0].numel()
    buckets = _in_buckets(updates[..., None].flatten(1))
    top = (buckets.abs().amax(-1) / most).float()
    scales = torch.where(top == 0, top, torch.nextafter(top, top + torch.inf))  # up: no number is beyond the last code
    steps = torch.where(scales == 0, 1, scales).to(updates.dtype)
    exact = (buckets / steps[..., None]).flatten(1)[:, :count]
    low = exact.floor()
    draws = torch.vmap(lambda key: uniform(key, (count,)))(keys)
    codes = (low + (draws < exact - low)).clamp(-most, most) + most
    return torch.cat([scales.view(torch.uint8), _packed(codes.to(torch.uint8), bits)], 1)


def decode(coded: Tensor, like: Tensor, bits: int) -> Tensor:
    """Returns the updates that bytes stand for, in the shape of ``like`` after a client axis.

    >>> update = torch.tensor([[-1.0, 0.0, 1.0]])
    >>> decode(encode(update, 4, torch.tensor([7])), update[0], 4)
    tensor([[-1.0000,  0.0000,  1.0000]])
    """
    scales, codes = _parts(coded, like.numel(), bits)
    signed = _in_buckets(codes.to(like.dtype) - _most(bits))
    updates = (signed * scales.to(like.dtype)[..., None]).flatten(1)[:, : like.numel()]
    return updates.reshape(len(coded), *like.shape)


def refuse_malformed(sent: Memory, like: Memory, bits: int) -> None:
    """Raises an error if bytes of one client are no codes of a leaf: of another type or length, or with bad scales.

    >>> refuse_malformed({"params": {"w": torch.zeros(4)}}, {"params": {"w": torch.zeros(4)}}, 8)
    Traceback (most recent call last):
    ...
    ValueError: 'params/w' is float32 (4,) instead of uint8 (8,), codes of 8 bits
    """
    for kind, name in sorted(_coded(like, bits)):
        if (leaf := sent.get(kind, {}).get(name)) is not None:
            if what := _malformed(leaf, like[kind][name].numel(), bits):
                raise ValueError(f"'{kind}/{name}' {what}")


def _malformed(leaf: Tensor, count: int, bits: int) -> str:
    wanted = torch.empty(_size(count, bits), dtype=torch.uint8)
    if differs := trees.misfit({"it": leaf}, {"it": wanted}):
        return f"{differs.removeprefix('misshapen: it ')}, codes of {bits} bits"
    scales, codes = _parts(leaf[None], count, bits)
    if not bool((torch.isfinite(scales) & (scales >= 0)).all()):
        return "has a scale that is negative or not finite"
    return "has a code that is none" if bool((codes > 2 * _most(bits)).any()) else ""


def _coded(like: Memory, bits: int) -> set[tuple[str, str]]:
    """Names the leaves of one client's upload that are sent as codes: what is smaller so."""
    return {
        (kind, name)
        for kind, tree in like.items()
        for name, leaf in tree.items()
        if kind not in EXACT and leaf.is_floating_point() and _size(leaf.numel(), bits) < trees.nbytes({name: leaf})
    }


def _one_of(uploads: Memory) -> Memory:
    return {kind: trees.apply(lambda leaf: leaf[0], tree) for kind, tree in uploads.items()}


def _most(bits: int) -> int:
    return (1 << bits - 1) - 1


def _buckets(count: int) -> int:
    return -(-count // BUCKET)


def _size(count: int, bits: int) -> int:
    """Returns the bytes of so many numbers: their scales, and their codes."""
    return SCALE * _buckets(count) + -(-count * bits // 8)


def _in_buckets(rows: Tensor) -> Tensor:
    """Cuts rows of numbers into buckets; the last is filled up with zeros, which change no scale."""
    width = min(BUCKET, rows.shape[1])
    return pad(rows, (0, -rows.shape[1] % width)).reshape(len(rows), -1, width)


def _parts(coded: Tensor, count: int, bits: int) -> tuple[Tensor, Tensor]:
    """Splits bytes into scales and codes."""
    ends = SCALE * _buckets(count)
    scales = coded[:, :ends].clone(memory_format=torch.contiguous_format).view(torch.float32)
    return scales, _unpacked(coded[:, ends:], bits)[:, :count]


def _packed(codes: Tensor, bits: int) -> Tensor:
    """Puts two codes of 4 bits into a byte, the first of them above."""
    if bits == 8:
        return codes
    pairs = pad(codes, (0, codes.shape[1] % 2)).reshape(len(codes), -1, 2)
    return pairs[..., 0] << 4 | pairs[..., 1]


def _unpacked(packed: Tensor, bits: int) -> Tensor:
    return packed if bits == 8 else torch.stack([packed >> 4, packed & 15], -1).flatten(1)
