"""The group of each tensor of a model: atoms, coefficients, head, statistics, or the rest."""

from collections.abc import Collection, Mapping

from torch import Tensor, nn

from fedatoms.core.lookup import unknown
from fedatoms.core.options import Group
from fedatoms.nn.layers import Factored, require_network


def groups(model: nn.Module, head: str | Collection[str] | None = None) -> dict[str, Group]:
    """Labels every entry of the state dict; buffers are "statistics", what is nothing else is "rest".

    ``head`` names the module or modules of the head; by default the last linear layer. Tied parameters have one label.

    >>> from fedatoms.nn.atoms import decompose
    >>> groups(decompose(nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8, affine=False))))
    {'0.atoms': 'atoms', '0.coefficients': 'coefficients', '1.running_mean': 'statistics', '1.running_var':
    'statistics', '1.num_batches_tracked': 'statistics'}
    """
    of_head = heads(model, head)
    named = {  # a parametrisation knows the groups of its parameters
        f"{owner}.{leaf}" if owner else leaf: group
        for owner, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, Factored)
        for leaf, group in module.parts().items()
    }
    parameters = dict(model.named_parameters(remove_duplicate=False))
    labels: dict[Tensor, Group] = {}
    for name, parameter in parameters.items():
        if labels.get(parameter, "rest") == "rest":  # a tied parameter takes the most specific label of its names
            labels[parameter] = _label(name, named, of_head)
    return {name: labels[parameters[name]] if name in parameters else "statistics" for name in model.state_dict()}


def heads(model: nn.Module, head: str | Collection[str] | None = None) -> list[str]:
    """Names the modules of the head: by default the last linear layer.

    >>> heads(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)))
    ['2']
    """
    require_network(model)
    modules = dict(model.named_modules(remove_duplicate=False))
    if head is None:
        return [name for name, module in modules.items() if isinstance(module, nn.Linear)][-1:]
    chosen = [head] if isinstance(head, str) else list(head)
    for name in chosen:
        if name not in modules:
            raise unknown(name, filter(None, modules), "head module")
    return chosen


def _label(name: str, named: Mapping[str, Group], heads: Collection[str]) -> Group:
    owner = name.rpartition(".")[0]
    if any(head in ("", owner) or owner.startswith(head + ".") for head in heads):
        return "head"
    return named.get(name, "rest")
