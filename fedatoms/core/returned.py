"""What a method's function returns, where it must be like what it was given: known by names, shapes and types alone."""

from collections.abc import Mapping

from torch import Tensor


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
