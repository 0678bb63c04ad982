"""Uploads that are kept until the end of a round, for rules that compare them and attacks that replace them."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedatoms.aggregation.base import Rule, combined
from fedatoms.core import trees
from fedatoms.core.trees import Memory, Params
from fedatoms.engine import server
from fedatoms.engine.peers import Peers, union
from fedatoms.engine.server import Kept, Total


def keep(clients: list[int], total: Total, uploads: Memory, weights: Tensor) -> Total:
    """Adds a block of uploads, with a leading client axis, to those that are kept: one copy for each client.

    >>> kept = keep([4, 7], server.NOTHING_YET, {"params": {"w": torch.tensor([1.0, 2.0])}}, torch.tensor([3.0, 1.0]))
    >>> kept.weight, kept.each[7]
    (4.0, Kept(upload={'params': {'w': tensor(2.)}}, weight=1.0))
    """
    rows = [{kind: trees.unstack(tree, i) for kind, tree in uploads.items()} for i in range(len(clients))]
    new = {client: Kept(*each) for client, *each in zip(clients, rows, weights.tolist(), strict=True)}
    return of_kept({**total.each, **new})


def of_kept(each: dict[int, Kept]) -> Total:
    """Returns the total of uploads that are kept.

    >>> of_kept({}) == server.NOTHING_YET
    True
    """
    return Total({}, sum(kept.weight for kept in each.values()), each)


def settled(rule: Rule, total: Total, sent: Params) -> Total:
    """Returns a total whose mean is what the rule makes of the uploads that are kept, in the order of the clients.

    >>> kept = keep([0, 1], server.NOTHING_YET, {"params": {"w": torch.tensor([1.0, 2.0])}}, torch.tensor([3.0, 1.0]))
    >>> settled(Rule(), kept, {}).uploads
    {'params': {'w': tensor(5., dtype=torch.float64)}}
    """
    kept = [total.each[client] for client in sorted(total.each)]
    weights = torch.tensor([each.weight for each in kept], dtype=torch.float64, device="cpu")
    if rule.combine is not None and kept:
        return Total(combined(rule, [each.upload for each in kept], weights, sent), 1.0)
    added = server.NOTHING_YET
    for upload, weight in kept:
        leading = {kind: trees.lead(tree) for kind, tree in upload.items()}
        added = server.gather(added, leading, torch.tensor([weight], device="cpu"))
    return added


def shown_to_all(peers: Peers, each: Mapping[int, Kept], device: str) -> dict[int, Kept]:
    """Returns the uploads that all processes keep, on the device.

    >>> from fedatoms.engine.peers import ALONE
    >>> shown_to_all(ALONE, {2: Kept({}, 1.0)}, "cpu")
    {2: Kept(upload={}, weight=1.0)}
    """
    weights = union(peers, {client: kept.weight for client, kept in each.items()})
    found = union(peers, {client: kept.upload for client, kept in each.items()})
    return {client: Kept(_moved(upload, device), weights[client]) for client, upload in found.items()}


def _moved(upload: Memory, device: str) -> Memory:
    return {kind: trees.apply(lambda leaf: leaf.to(device), tree) for kind, tree in upload.items()}
