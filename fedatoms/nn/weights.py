"""Weights of a file in a network that they fit: all of them, or all but a head for other classes."""

import warnings
from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor, nn

from fedatoms.core.border import as_path
from fedatoms.core.lookup import some
from fedatoms.core.trees import Params
from fedatoms.core.weight_files import read_weights
from fedatoms.nn.layers import Conv, copied
from fedatoms.nn.parameter_groups import heads

PREFIXES = ("module.", "_orig_mod.")  # what DataParallel and torch.compile put before every name
Classes = dict[str, tuple[int, int]]  # of a tensor of the head: how many in the file, and in the model
COUNTERS = "num_batches_tracked"  # of BatchNorm, which old files lack and nothing but a rare option reads


def load_weights(
    model: nn.Module, file: Path | str, *, head: str | Collection[str] | None = None, sha256: str = ""
) -> nn.Module:
    """Returns a copy of a network with the weights of a file: safetensors, ``.pth`` or ``.pt``, which runs no code.

    Every tensor must be there and fit. Only a head for another number of classes stays fresh, and a warning says so:
    ``head`` as in ``groups``, and all linear layers and convolutions with the same two numbers of outputs, such as
    auxiliary classifiers, if nothing else differs. A file with another ``sha256`` is refused.

    >>> import tempfile
    >>> net, file = nn.Linear(2, 3), Path(tempfile.mkdtemp()) / "net.pth"
    >>> torch.save({"state_dict": net.state_dict()}, file)
    >>> torch.equal(load_weights(nn.Linear(2, 3), file).weight, net.weight)
    True
    """
    path = as_path(file, "weights")
    new = copied(model)
    held = {name: leaf for name, leaf in new.state_dict().items() if isinstance(leaf, Tensor)}
    found = _unwrapped(read_weights(path, sha256), held)
    optional = {name for name in held if name.endswith(COUNTERS)} | _tied(new, found)
    fresh = _of_other_classes(found, held, heads(new, head))
    every = _outputs_of_other_classes(new, found, held, fresh)
    if not _misfit(found, held, optional, every):  # otherwise the network has other widths, not other classes
        fresh = every
    if wrong := _misfit(found, held, optional, fresh):
        use = "Use the file of this network."
        if any(name.endswith(".coefficients") and name not in held for name in found):
            use = "Its filters are atoms: use the plain file, which fedatoms export writes, and fedatoms.fuse makes."
        raise ValueError(f"weights={path} do not fit {type(model).__name__} ({wrong}). {use}")
    with torch.no_grad():
        for name in (name for name in found if name not in fresh):
            held[name].copy_(found[name])
    _require_finite(held, model, path)
    _require_tied(new, {name: leaf for name, leaf in found.items() if name not in fresh}, path)
    if fresh:
        classes = " and ".join(sorted({f"{ours} instead of {theirs}" for theirs, ours in fresh.values()}))
        warnings.warn(f"the head ({', '.join(fresh)}) starts afresh, for {classes} classes in {path}", stacklevel=2)
    return new


def _unwrapped(found: Params, held: Collection[str]) -> Params:
    """Takes off what wrappers put before every name, as long as none of the names is the network's."""
    while not found.keys() & set(held):
        prefix = next((each for each in PREFIXES if all(name.startswith(each) for name in found)), None)
        if prefix is None:
            break
        found = {name.removeprefix(prefix): leaf for name, leaf in found.items()}
    return found


def _of_other_classes(found: Params, held: Params, heads: Collection[str]) -> Classes:
    """Returns the classes, in the file and in the model, of the head's tensors that differ in nothing else."""
    names = [name for name in held if any(name.startswith(f"{head}.") for head in heads)]
    return {name: sizes for name in names if (sizes := _sizes(name, found, held))}


def _outputs_of_other_classes(model: nn.Module, found: Params, held: Params, head: Classes) -> Classes:
    """Adds to the head's tensors those of layers that differ by the same two numbers of outputs, all in one way."""
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv)]
    more: Classes = {}
    for layer, module in layers:
        names = [f"{layer}.{leaf}" if layer else leaf for leaf, _ in module.named_parameters(recurse=False)]
        pairs = {_sizes(name, found, held) for name in names}
        if len(pairs) == 1 and (alike := pairs.pop()):
            more |= dict.fromkeys(names, alike)
    every = {name: sizes for name in held if (sizes := head.get(name) or more.get(name))}
    return every if len(set(every.values())) == 1 else head


def _sizes(name: str, found: Params, held: Params) -> tuple[int, int] | None:
    """Returns the sizes of a tensor's first axis, in the file and in the model, if they alone differ."""
    a, b = (tuple(tree[name].shape) if name in tree else () for tree in (found, held))
    return (a[0], b[0]) if a and b and a[0] != b[0] and a[1:] == b[1:] else None


def _misfit(found: Params, held: Params, optional: Collection[str], fresh: Collection[str]) -> str:
    both = {name: (_kind(found[name]), _kind(held[name])) for name in held if name in found and name not in fresh}
    lists = {
        "missing": [name for name in held if name not in found and name not in optional],
        "extra": sorted(name for name in found if name not in held),
        "misshapen": [f"{name} is {this} instead of {that}" for name, (this, that) in both.items() if this != that],
    }
    return "; ".join(f"{len(names)} {what}: {some(names)}" for what, names in lists.items() if names)


def _kind(leaf: Tensor) -> str:
    """Shows a shape, and a type that is not any floating-point number."""
    other = "" if leaf.is_floating_point() else f"{str(leaf.dtype).removeprefix('torch.')} "
    return f"{other}{tuple(leaf.shape)}"


def _tied(model: nn.Module, found: Collection[str]) -> set[str]:
    """Names the parameters that another name in the file stands for."""
    names = dict(model.named_parameters(remove_duplicate=False))
    given = {leaf for name, leaf in names.items() if name in found}
    return {name for name, leaf in names.items() if leaf in given}


def _require_tied(model: nn.Module, found: Params, path: Path) -> None:
    """Refuses different tensors for one parameter with two names: it can be but one of them."""
    first: dict[Tensor, str] = {}
    for name, leaf in model.named_parameters(remove_duplicate=False):
        if name not in found:
            continue
        other = first.setdefault(leaf, name)
        if not torch.equal(found[name].to(leaf), found[other].to(leaf)):
            raise ValueError(
                f"weights={path}: '{other}' and '{name}' differ, but are one parameter of {type(model).__name__}. Use "
                f"a network that does not tie them, or leave one of them out of the file."
            )


def _require_finite(held: Params, model: nn.Module, path: Path) -> None:
    """Refuses what is not finite, but for what the network has there itself, such as a mask of infinities."""
    own = model.state_dict()
    for name, leaf in held.items():
        if (~torch.isfinite(leaf) & (leaf != own[name])).any():
            raise ValueError(
                f"weights={path}: '{name}' holds nan or infinity. Use weights that were trained to an end."
            )
