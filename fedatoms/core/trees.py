"""Arithmetic on state dicts: a dictionary of named tensors is the only tree in fedatoms."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils import _pytree as pytree

from fedatoms.core.lookup import some

T = TypeVar("T")
Params = dict[str, Tensor]
Memory = dict[str, Params]  # named trees, for example {"control": ...}
_JOINED = 1 << 16  # numbers of a leaf at most, to be joined with others for one norm
_SMALL = 1 << 14  # numbers of a leaf at most, which are sooner copied for each client than one by one elsewhere
NUMBERS = "numbers"  # the tree of an upload that has names of its own, and scalars; all others have parameters' names


def apply(function: Callable[..., Tensor], *trees: Mapping[str, Tensor]) -> Params:
    """Applies ``function`` leaf by leaf to trees with the keys of the first.

    >>> apply(torch.add, {"w": torch.tensor(1.0)}, {"w": torch.tensor(2.0)})
    {'w': tensor(3.)}
    """
    first, *others = trees
    return {name: function(leaf, *(other[name] for other in others)) for name, leaf in first.items()}


def subtract(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Params:
    """Returns ``a - b``.

    >>> subtract({"w": torch.tensor(3.0)}, {"w": torch.tensor(2.0)})
    {'w': tensor(1.)}
    """
    return apply(torch.sub, a, b)


def add(a: Mapping[str, Tensor], b: Mapping[str, Tensor], scale: float = 1.0) -> Params:
    """Returns ``a + scale * b``.

    >>> add({"w": torch.tensor(1.0)}, {"w": torch.tensor(2.0)}, scale=0.5)
    {'w': tensor(2.)}
    """
    return apply(lambda x, y: torch.add(x, y, alpha=scale), a, b)


def zeros_like(tree: Mapping[str, Tensor]) -> Params:
    """Returns a tree of zeros of the same shapes.

    >>> zeros_like({"w": torch.ones(2)})
    {'w': tensor([0., 0.])}
    """
    return apply(torch.zeros_like, tree)


def squared(tree: Mapping[str, Tensor]) -> Tensor:
    """Returns the sum of the squares of all elements.

    >>> squared({"w": torch.tensor([1.0, 2.0]), "b": torch.tensor(2.0)})
    tensor(9.)
    """
    return _row([leaf.square().sum() for leaf in tree.values()]).sum()


def norm(tree: Mapping[str, Tensor]) -> Tensor:
    """Returns the norm of all leaves together.

    Small leaves are joined: a norm for each costs a compiler seconds where there are many.

    >>> norm({"w": torch.tensor([3.0, 0.0]), "b": torch.tensor(4.0)})
    tensor(5.)
    """
    leaves = tuple(tree.values())
    if has_torch_function(leaves):
        other: Tensor = handle_torch_function(norm, leaves, tree)  # one kernel for all
        return other
    small = [leaf.flatten() for leaf in tree.values() if leaf.numel() <= _JOINED]
    parts = [leaf for leaf in tree.values() if leaf.numel() > _JOINED] + ([torch.cat(small)] if small else [])
    total: Tensor = torch.linalg.vector_norm(_row([torch.linalg.vector_norm(part) for part in parts]))
    return total


def restrict(tree: Mapping[str, Tensor], names: Collection[str]) -> Params:
    """Returns the leaves of ``tree`` whose names are in ``names``, in the order of the tree.

    >>> restrict({"a": torch.tensor(1), "b": torch.tensor(2)}, {"b"})
    {'b': tensor(2)}
    """
    return {name: leaf for name, leaf in tree.items() if name in names}


def stack(trees: Sequence[Mapping[str, Tensor]]) -> Params:
    """Stacks trees along a new leading client axis; a large leaf that all of them share stays in memory once.

    >>> stack([{"w": torch.tensor(1)}, {"w": torch.tensor(2)}])
    {'w': tensor([1, 2])}
    """
    return {name: _stacked([tree[name] for tree in trees]) for name in trees[0]}


def is_shared(leaf: Tensor) -> bool:
    """Says whether the clients of a stacked leaf have the same memory.

    >>> one = {"w": torch.ones(200, 300)}
    >>> is_shared(stack([one, one])["w"]), is_shared(stack([one, {"w": torch.ones(200, 300)}])["w"])
    (True, False)
    """
    return len(leaf) > 1 and leaf.stride(0) == 0


def lead(tree: Mapping[str, Tensor]) -> Params:
    """Adds a leading client axis, of one client.

    >>> lead({"w": torch.tensor(1)})
    {'w': tensor([1])}
    """
    return apply(lambda leaf: leaf.unsqueeze(0), tree)


def unstack(tree: Mapping[str, Tensor], client: int) -> Params:
    """Returns one client's slice of a stacked tree, in memory of its own.

    >>> unstack({"w": torch.tensor([1, 2])}, 1)
    {'w': tensor(2)}
    """
    return {name: leaf[client].clone() for name, leaf in tree.items()}


def move(leaf: Tensor, device: torch.device) -> Tensor:
    """Copies a tensor to a device; from the host to a GPU without waiting for the kernels that run there.

    >>> move(torch.ones(1), torch.device("cpu"))
    tensor([1.])
    """
    if device.type == "cuda" and leaf.device.type == "cpu":
        return leaf.pin_memory().to(device, non_blocking=True)
    return leaf.to(device)


def arriving(tensors: T, device: torch.device) -> Callable[[], T]:
    """Starts to copy nested tensors to the host; returns what waits for them, but for no later work of the device.

    >>> arriving([torch.ones(1)], torch.device("cpu"))()
    [tensor([1.])]
    """
    if device.type != "cuda":
        return lambda: tensors
    copies: T = pytree.tree_map_only(Tensor, lambda leaf: leaf.to("cpu", non_blocking=True), tensors)
    copied = torch.cuda.Event()
    copied.record(torch.cuda.current_stream(device))

    def arrived() -> T:
        copied.synchronize()
        return copies

    return arrived


def nbytes(tree: Mapping[str, Tensor]) -> int:
    """Counts the bytes of all leaves.

    >>> nbytes({"w": torch.zeros(3), "b": torch.zeros(1, dtype=torch.float64)})
    20
    """
    return sum(leaf.numel() * leaf.element_size() for leaf in tree.values())


def misfit(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str:
    """Describes how a tree differs from the expected one: missing, extra or misshapen leaves; empty if it fits.

    >>> misfit({"w": torch.ones(1), "v": torch.ones(1)}, {"w": torch.ones(2, 3), "b": torch.ones(2)})
    'missing: b; extra: v; misshapen: w is float32 (1,) instead of float32 (2, 3)'
    """
    both = {name: (_kind(found[name]), _kind(leaf)) for name, leaf in expected.items() if name in found}
    lists = {
        "missing": [name for name in expected if name not in found],
        "extra": sorted(name for name in found if name not in expected),  # a file has no order
        "misshapen": [f"{name} is {this} instead of {that}" for name, (this, that) in both.items() if this != that],
    }
    return "; ".join(f"{what}: {some(names)}" for what, names in lists.items() if names)


def unlike(found: object, given: Mapping[str, Tensor]) -> str | None:
    """Says in what a tree differs from one whose names, shapes and types it must keep; None if in nothing.

    It reads no number, so it waits for no device, and a compiled step has it behind itself.

    >>> import torch
    >>> given = {"w": torch.ones(2, 3)}
    >>> unlike({"w": torch.zeros(2, 3)}, given)
    >>> unlike({"w": torch.ones(())}, given), unlike({"w": torch.ones(2, 3).double()}, given), unlike(1.0, given)
    ("'w' of shape () for one of shape (2, 3)", "'w' of float64 for one of float32", 'float instead of a tree')
    >>> unlike({}, given), unlike({"v": 1.0}, given), unlike({"w": 1.0}, given)
    ("a tree without 'w'", "'v', a name that it was not given", "'w' as float instead of a tensor")
    """
    if found is given:
        return None
    if not isinstance(found, dict):
        return f"{_type(found)} instead of a tree"
    if found.keys() != given.keys():
        if extra := [name for name in found if name not in given]:
            return f"{extra[0]!r}, a name that it was not given"
        return f"a tree without {next(name for name in given if name not in found)!r}"
    return next((f"{name!r} {wrong}" for name in given if (wrong := _unlike_leaf(found[name], given[name]))), None)


def unlike_trees(found: object, given: Mapping[str, Mapping[str, Tensor]]) -> str | None:
    """Says in what named trees differ from those whose kinds, names, shapes and types they must keep.

    >>> unlike_trees({"control": {}}, {"control": {}})
    >>> unlike_trees({"drift": {}}, {"control": {}}), unlike_trees({}, {"control": {}})
    ("'drift', a tree that it was not given", "no tree 'control'")
    """
    if found is given:
        return None
    if not isinstance(found, dict):
        return f"{_type(found)} instead of named trees"
    if extra := [kind for kind in found if kind not in given]:
        return f"{extra[0]!r}, a tree that it was not given"
    for kind, tree in given.items():
        if kind not in found:
            return f"no tree {kind!r}"
        if wrong := unlike(found[kind], tree):
            return f"in its tree {kind!r} {wrong}"
    return None


def misnamed_trees(found: object, names: Mapping[str, Tensor]) -> str | None:
    """Says why something is no named trees of tensors, one for each of some names; their shapes are free.

    >>> import torch
    >>> misnamed_trees({"control": {"w": torch.ones(1)}}, {"w": torch.ones(2)})
    >>> misnamed_trees({"control": torch.ones(1)}, {"w": torch.ones(2)})
    "as its tree 'control' Tensor instead of a tree"
    """
    if (why := no_trees(found)) or not isinstance(found, dict):
        return why
    for kind, tree in found.items():
        if wrong := unlike(dict.fromkeys(tree, _ANY), dict.fromkeys(names, _ANY)):
            return f"as its tree {kind!r} {wrong}"
    return None


def no_trees(found: object) -> str | None:
    """Says why something is no named trees of tensors.

    >>> import torch
    >>> no_trees({"steps": {"w": torch.tensor(0)}})
    >>> no_trees({"w": torch.ones(2)}), no_trees(None)
    ("as its tree 'w' Tensor instead of a tree", 'None instead of named trees')
    """
    if not isinstance(found, dict):
        return f"{_type(found)} instead of named trees"
    wrong = ((kind, no_tree(tree)) for kind, tree in found.items())
    return next((f"as its tree {kind!r} {why}" for kind, why in wrong if why), None)


def no_tree(found: object) -> str | None:
    """Says why something is no tree of tensors.

    >>> no_tree({"w": 1.0}), no_tree([])
    ("'w' as float instead of a tensor", 'list instead of a tree')
    """
    if not isinstance(found, dict):
        return f"{_type(found)} instead of a tree"
    odd = next((name for name, leaf in found.items() if not isinstance(leaf, Tensor)), None)
    return None if odd is None else f"{odd!r} as {_type(found[odd])} instead of a tensor"


_ANY = Tensor()  # stands for a leaf of which only the name counts


def _row(numbers: list[Tensor]) -> Tensor:
    return torch.stack(numbers) if numbers else torch.zeros(0)


def _stacked(leaves: Sequence[Tensor]) -> Tensor:
    first = leaves[0]
    alike = first.numel() > _SMALL and all(leaf is first for leaf in leaves)
    return first.expand(len(leaves), *first.shape) if alike else torch.stack(list(leaves))


def _kind(leaf: Tensor) -> str:
    return f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)}"


def _unlike_leaf(found: object, given: Tensor) -> str | None:
    if found is given:
        return None
    if not isinstance(found, Tensor):
        return f"as {_type(found)} instead of a tensor"
    if found.shape != given.shape:
        return f"of shape {tuple(found.shape)} for one of shape {tuple(given.shape)}"
    if found.dtype != given.dtype:
        return "of {} for one of {}".format(*(str(each.dtype).removeprefix("torch.") for each in (found, given)))
    return None


def _type(value: object) -> str:
    return "None" if value is None else type(value).__name__
