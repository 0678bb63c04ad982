"""Several runs abreast: they take turns, and the clients that they train in a round go into one block."""

import itertools
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

import torch

from fedatoms.algorithms.base import Server
from fedatoms.engine.abreast import basis_of, beside, clients_of, map_of
from fedatoms.engine.client_round import Job, Learner, Reply
from fedatoms.engine.execution.loop import MapClients
from fedatoms.engine.execution.several import Basis, Request, kind_of, train_several
from fedatoms.engine.execution.vmap import why
from fedatoms.engine.limits import check_beside
from fedatoms.engine.peers import Peers
from fedatoms.engine.runtime import Runtime, prepare
from fedatoms.engine.spec import Simulation
from fedatoms.runs.turns import Turns

T = TypeVar("T")


class NotBeside(Exception):
    """A run that cannot share blocks with those before it: it comes after them."""


class _Lane(Generic[T]):
    """A run in its lane: its turns, what it asks for, and what it is answered."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.turns = Turns(work)
        self.asks: Request | None = None
        self.answer: list[Reply] | None = None


class _Shared(NamedTuple):
    map_clients: MapClients
    basis: Basis
    runs: int  # for which it was made


class Abreast(Generic[T]):
    """Runs that share blocks. Each trains, collects, scores and writes as if it were alone; only its map is shared.

    A run goes on until it asks for its clients to be trained. When all have asked, those of all are trained in one
    block, and each goes on with its own replies. One that ends or fails leaves the others to go on; the last one, and
    all if their clients cannot be trained so, go on with maps of their own.
    """

    def __init__(self) -> None:
        self._runs: list[Runtime] = []
        self._lane: _Lane[T] | None = None  # whose turn it is
        self._shared: _Shared | None = None
        self._apart = False
        self._cores = 0

    def prepare(self, sim: Simulation, peers: Peers, rounds: int = 0) -> Runtime:
        """Prepares a run of so many rounds; raises ``NotBeside`` if it cannot share blocks with those before it."""
        runtime = self._joined(sim, rounds) if self._runs else prepare(sim, peers=peers)
        self._runs.append(runtime)
        self._cores = torch.get_num_threads()  # which a run sets for its own thread only
        mapped, own = clients_of(runtime), runtime.map_clients

        def map_clients(learner: Learner, broadcast: Server, jobs: Iterable[Job]) -> Iterator[Reply]:
            rest = iter(jobs)
            while some := list(itertools.islice(rest, mapped)):
                replies = self._ask(Request(learner, broadcast, some))
                if replies is None:
                    yield from own(learner, broadcast, itertools.chain(some, rest))
                    return
                yield from replies

        return runtime._replace(map_clients=map_clients, pause=self._pause)

    def size(self) -> int:
        """Returns how many runs have joined."""
        return len(self._runs)

    def run(self, works: Sequence[Callable[[], T]]) -> list[Turns[T]]:
        """Does the work of each run, turn by turn, and returns how each ended; an interruption stops them all."""
        lanes = [_Lane(work) for work in works]
        try:
            while live := [lane for lane in lanes if not lane.turns.over]:
                self._until_all_ask(live)
                self._train([lane for lane in live if lane.asks is not None])
        finally:
            self._lane = None
            for lane in lanes:
                lane.turns.stop()
        return [lane.turns for lane in lanes]

    def _until_all_ask(self, live: Sequence[_Lane[T]]) -> None:
        """Gives turns until each run asks for its clients or is over; who would wait for the device comes again."""
        waiting = deque(live)
        while waiting:
            self._lane = lane = waiting.popleft()
            lane.turns.go()
            if isinstance(lane.turns.error, KeyboardInterrupt):
                raise lane.turns.error
            if lane.asks is None and not lane.turns.over:
                (waiting.appendleft if self._apart else waiting.append)(lane)  # apart, one after the other

    def _ask(self, request: Request) -> list[Reply] | None:
        """Lets the others go on until there is an answer: replies, or None for a run that must do without them."""
        lane = self._lane
        if lane is None or self._apart:
            return None
        lane.asks = request
        lane.turns.give_back()
        answer, lane.answer = lane.answer, None
        return answer

    def _pause(self) -> None:
        if self._lane is not None:  # of a single run, too: an interruption waits for this
            self._lane.turns.give_back()

    def _train(self, asking: Sequence[_Lane[T]]) -> None:
        """Answers what runs ask for: requests of one kind in one block."""
        self._apart = self._apart or len(asking) == 1
        kinds: dict[object, list[tuple[_Lane[T], Request]]] = {}
        for lane in asking:
            if (request := lane.asks) is not None:
                lane.asks = None
                kinds.setdefault(kind_of(request.learner), []).append((lane, request))
        for alike in kinds.values():
            if not self._apart:
                self._answer(alike, len(asking))

    def _answer(self, alike: Sequence[tuple[_Lane[T], Request]], live: int) -> None:
        try:
            replies = train_several(*self._map_for(live), [request for _, request in alike])
        except Exception as error:
            self._apart, self._shared = True, None
            warnings.warn(f"runs cannot share blocks ({why(error)}): each trains its own clients", stacklevel=2)
            return
        for (lane, _), answer in zip(alike, replies, strict=True):
            lane.answer = answer

    def _map_for(self, live: int) -> tuple[MapClients, Basis]:
        """Returns the map of so many runs: a new one if half of the last one's clients would be idle."""
        if self._shared is None or 2 * live <= self._shared.runs:
            torch.set_num_threads(self._cores)
            self._shared = None  # frees its memory
            self._shared = _Shared(map_of(self._runs, live), basis_of(self._runs), live)
        return self._shared[:2]

    def _joined(self, sim: Simulation, rounds: int) -> Runtime:
        made = beside(self._runs[0], sim)
        if made is None:
            raise NotBeside("its network, data or frozen parameters are others")
        try:
            check_beside([each.sim for each in self._runs], made.sim, rounds)
        except ValueError as error:
            raise NotBeside(str(error)) from error
        return made
