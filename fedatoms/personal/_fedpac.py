"""FedPAC: Xu et al., "Personalized Federated Learning with Feature Alignment and Classifier Collaboration", ICLR 2023.

A client uploads statistics of its features z for each class, with p_c the shares and n the number of its samples::

    mu_c = mean of z over class c      h_c = p_c mu_c      V = (1 / n) (mean of |z|^2 - sum_c |h_c|^2)

Its next head is a mean of the round's heads, whose weights a minimise ``a^T (diag(V) + M_i) a`` over the simplex.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from fedatoms.algorithms.base import require
from fedatoms.core.trees import Params, apply
from fedatoms.personal._simplex import minimiser
from fedatoms.personal.base import Collaboration, FeatureReport, Personal, Phase, of_groups

_SMALLEST = 1e-3  # weights below count as zero, as in the authors' code


def fedpac(align: float = 1.0, head_lr: float = 0.1) -> Personal:
    """Trains the head for an epoch, then the body on ``CE + align * MSE(z, prototype of y)``; the server mixes heads.

    >>> [(phase.moves, phase.epochs, phase.align) for phase in fedpac().phases]
    [('own', 1, 0.0), ('shared', 0, 1.0)]
    """
    require(align, "align", or_zero=True)
    require(head_lr, "head_lr")
    phases = (Phase("own", epochs=1, lr=head_lr), Phase("shared", align=align))
    return Personal(of_groups("head"), phases=phases, collaboration=_COLLABORATION)


def describe(z: Tensor, y: Tensor) -> Params:
    """Returns a client's classes, their counts, ``h`` with a row for each class, and ``V``.

    >>> describe(torch.tensor([[1.0], [3.0]]), torch.tensor([4, 4]))
    {'classes': tensor([4]), 'counts': tensor([2]), 'h': tensor([[2.]]), 'variance': tensor(0.5000)}
    """
    classes, counts = y.unique(return_counts=True)
    h = _sums(z, y, classes) / len(y)
    variance = (z.double().square().sum(1).mean() - h.square().sum()).clamp(min=0) / len(y)
    return {"classes": classes, "counts": counts, "h": h.to(z.dtype), "variance": variance.to(z.dtype)}


def prototypes(z: Tensor, y: Tensor) -> Params:
    """Returns the mean features of each class that occurs, in order.

    >>> prototypes(torch.tensor([[1.0], [3.0], [7.0]]), torch.tensor([0, 0, 4]))
    {'prototypes': tensor([[2.],
            [7.]])}
    """
    classes, counts = y.unique(return_counts=True)
    return {"prototypes": (_sums(z, y, classes) / counts[:, None]).to(z.dtype)}


def forms(h: Tensor, variances: Tensor) -> Iterator[Tensor]:
    """Yields ``diag(V) + M_i`` on the host for each client i, with ``M_i[j, l] = <h_i - h_j, h_i - h_l>``; h: (C, any).

    >>> [form.tolist() for form in forms(torch.tensor([[0.0], [2.0]]), torch.tensor([1.0, 1.0]))]
    [[[1.0, 0.0], [0.0, 5.0]], [[5.0, 0.0], [0.0, 1.0]]]
    """
    h = h.double()
    products, diagonal = (h @ h.T).cpu(), torch.diag(variances.double().cpu())
    for i, with_own in enumerate(products):
        yield products - with_own - with_own[:, None] + products[i, i] + diagonal


def collaborators(form: Tensor, client: int) -> Tensor:
    """Returns the weights of all heads in a client's next one; its own head alone if all weights are negligible.

    >>> collaborators(torch.tensor([[1.0, 0.0], [0.0, 9999.0]]), client=1)
    tensor([1., 0.], dtype=torch.float64)
    """
    alone = torch.zeros(len(form), dtype=torch.float64, device="cpu")
    alone[client] = 1.0
    if not torch.isfinite(form).all():
        return alone
    weights = minimiser(form)
    weights = torch.where(weights < _SMALLEST, 0.0, weights)
    return weights / weights.sum() if weights.any() else alone


def _start(classes: int, z: Tensor) -> Params:
    known = torch.zeros(classes, dtype=torch.bool, device=z.device)
    return {"prototypes": z.new_zeros(classes, z.shape[1]), "known": known}


def _sends(memory: Params) -> Params:
    classes = memory["known"].nonzero().flatten()
    return {"classes": classes, "prototypes": memory["prototypes"][classes]}


def _targets(sent: Params, before: Params, classes: int) -> Tensor:
    """Returns the global prototypes; for a class without one, the client's own from before its training."""
    h, counts = before["h"], before["counts"]
    targets = h.new_zeros(classes, h.shape[1])
    targets[before["classes"]] = h * (counts.sum() / counts)[:, None].to(h.dtype)  # mu_c = h_c / p_c
    targets[sent["classes"]] = sent["prototypes"]
    return targets


def _settle(memory: Params, reports: list[FeatureReport]) -> tuple[Params, list[Params]]:
    classes = len(memory["known"])
    h = torch.stack([_dense(each.before["h"], each.before["classes"], classes).flatten() for each in reports])
    variances = torch.stack([each.before["variance"] for each in reports])
    heads = {name: torch.stack([each.own[name] for each in reports]).double() for name in reports[0].own}
    mixed = []
    for i, (each, form) in enumerate(zip(reports, forms(h, variances), strict=True)):
        weights = collaborators(form, i).to(h.device)
        mean = apply(lambda head, weights=weights: torch.tensordot(weights, head, dims=1), heads)
        mixed.append(apply(lambda leaf, like: leaf.to(like.dtype), mean, each.own))
    return _remember(memory, reports), mixed


def _remember(memory: Params, reports: list[FeatureReport]) -> Params:
    """Averages the prototypes of each class, weighted by the clients' counts; absent classes keep theirs."""
    old, classes = memory["prototypes"], len(memory["known"])
    total, count = old.new_zeros(old.shape, dtype=torch.float64), old.new_zeros(classes, 1, dtype=torch.float64)
    for each in reports:
        counts = each.before["counts"].double()[:, None]
        total = total + _dense(counts * each.after["prototypes"], each.before["classes"], classes)
        count = count + _dense(counts, each.before["classes"], classes)
    new = torch.where(count > 0, (total / count.clamp(min=1)).to(old.dtype), old)
    return {"prototypes": new, "known": memory["known"] | (count[:, 0] > 0)}


def _sums(z: Tensor, y: Tensor, classes: Tensor) -> Tensor:
    # a float64 matrix product: index_add sums in no fixed order on a GPU
    return (y == classes[:, None]).double() @ z.double()


def _dense(rows: Tensor, classes: Tensor, count: int) -> Tensor:
    dense = rows.new_zeros(count, *rows.shape[1:])
    dense[classes] = rows
    return dense


_COLLABORATION = Collaboration(_start, _sends, describe, prototypes, _targets, _settle)
