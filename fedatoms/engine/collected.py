"""What clients have uploaded in a round so far, and how several processes put theirs together."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from torch import Tensor

from fedatoms.core import ledger
from fedatoms.core.ledger import Bytes
from fedatoms.core.trees import Params
from fedatoms.engine.client_round import Traces
from fedatoms.engine.peers import Peers, gather, shapes_of, summed
from fedatoms.engine.server import Total
from fedatoms.engine.uploads import shown_to_all

_LAST = "last models"  # names their sum among the trees of uploads
_Plain = tuple[list[int], Tensor, Tensor, Tensor | None]


class Collected(NamedTuple):
    """What has been collected in a round so far."""

    total: Total
    last_sum: Params | None
    up: Bytes
    own: list[Traces]  # of each block, in the phases that upload nothing
    shared: list[Traces]  # in the one whose result is uploaded
    before: Mapping[int, Params]  # clients' feature statistics, if they are exchanged
    after: Mapping[int, Params]


def joined(peers: Peers, got: Collected, device: str) -> Collected:
    """Puts together what all processes have collected, but for feature statistics; the same in all of them.

    The sums are added in one message; one before it has what is small, and the shapes that a process without clients
    cannot know.
    """
    trees = got.total.uploads if got.last_sum is None else {**got.total.uploads, _LAST: got.last_sum}
    small = (shapes_of(trees), got.total.weight, got.up, _plain(got.own), _plain(got.shared))
    shapes, weights, ups, own, shared = zip(*gather(peers, small), strict=True)
    sums = summed(peers, trees, {kind: tree for each in shapes for kind, tree in each.items()}, device)
    last_sum = sums.pop(_LAST, None)
    total = Total(sums, sum(weights), shown_to_all(peers, got.total.each, device))
    return Collected(total, last_sum, ledger.add(*ups), _traces(own), _traces(shared), got.before, got.after)


def _plain(traces: list[Traces]) -> list[_Plain]:
    return [(each.clients, each.values, each.steps, each.numbers) for each in traces]


def _traces(of_all: Iterable[list[_Plain]]) -> list[Traces]:
    """Returns the traces of all processes in the order of their clients, as one process would have them."""
    return sorted((Traces(*each) for some in of_all for each in some), key=lambda each: each.clients)
