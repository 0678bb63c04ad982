"""Scores of three global models on the test set, and of every client's own models on that client's test images."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedatoms.core import inputs, trees
from fedatoms.core.inputs import Inputs
from fedatoms.core.options import Scored
from fedatoms.core.scales import ACCURACY, Scale
from fedatoms.core.trees import Params
from fedatoms.data.batches import cast_inputs, cast_targets
from fedatoms.engine.peers import gather, owned, union
from fedatoms.engine.runtime import Runtime, scored_at_once
from fedatoms.engine.state import State
from fedatoms.objectives.base import Metric, Objective, Running


class Score(NamedTuple):
    """A model's score and loss; for clients' own models the means over samples, and the spread over clients."""

    value: float  # of the objective's first metric, for example the accuracy in per cent
    loss: float
    worst: float | None = None  # mean value of the worst tenth of the clients
    spread: float | None = None  # standard deviation over clients
    scale: Scale = ACCURACY  # what the value is a number of
    others: Mapping[str, float] = {}  # the objective's further metrics

    @property
    def accuracy(self) -> float:
        """The value of a classifier, in per cent."""
        if not self.scale.is_accuracy:
            raise AttributeError(f"this score is {self.scale.axis}, no accuracy. Use its value.")
        return self.value

    def parts(self) -> dict[str, float]:
        """Returns what is known, with the value under its metric's name.

        >>> Score(97.5, 0.1).parts()
        {'accuracy': 97.5, 'loss': 0.1}
        """
        known = {"loss": self.loss, "worst": self.worst, "spread": self.spread}
        return {self.scale.name: self.value, **{n: v for n, v in known.items() if v is not None}, **self.others}

    def __repr__(self) -> str:
        more = f", others={dict(self.others)}" if self.others else ""
        words = f"{self.scale.name}={self.value!r}, loss={self.loss!r}, worst={self.worst!r}, spread={self.spread!r}"
        return f"Score({words}{more})"


Means = Sequence[Tensor]  # of the statistics of each metric over samples, and of the loss
Seen = Mapping[str, Running]  # by the names of the metrics that see all outputs
NOTHING: Seen = MappingProxyType({})


def evaluate(runtime: Runtime, state: State) -> dict[Scored, Score]:
    """Scores the models that the simulation asks for; equal models are evaluated once."""
    scores: dict[Scored, Score] = {}
    seen: list[tuple[Params, Score]] = []
    for which in runtime.sim.scored:
        if which == "personal":
            scores[which] = personal_score(runtime, state)
            continue
        if which == "local":
            scores |= {} if (found := local_score(runtime, state)) is None else {which: found}
            continue
        params = scored_model(state, which, len(runtime.data.parts))
        known = [score for other, score in seen if all(_same(other[name], leaf) for name, leaf in params.items())]
        scores[which] = known[0] if known else score(runtime, params)
        seen.append((params, scores[which]))
    return scores


def scored_model(state: State, which: Scored, clients: int) -> Params:
    """Returns one of the three global models."""
    server = state.server.params
    if which == "selected":
        return server if state.selected is None else state.selected
    if which == "all":
        assert state.last_sum is not None
        return {**server, **{name: (leaf / clients).to(server[name].dtype) for name, leaf in state.last_sum.items()}}
    return server


def score(runtime: Runtime, params: Params) -> Score:
    """Evaluates a model on the test set."""
    rows, seen = torch.arange(len(runtime.data.test_y), device="cpu"), begin_metrics(runtime.sim.objective)
    if runtime.peers.size > 1 and not seen:
        return score_of(runtime.sim.objective, _shared_means(runtime, params, rows))
    each = _outcomes(runtime, params, rows, [seen])
    return score_of(runtime.sim.objective, [one.double().mean(0) for one in each], seen)


def begin_metrics(objective: Objective) -> Seen:
    """Begins the metrics of an objective that see all outputs of a test set.

    >>> from fedatoms.objectives import classification
    >>> begin_metrics(classification())
    {}
    """
    return {metric.name: metric.running() for metric in objective.metrics if metric.running is not None}


def score_of(objective: Objective, means: Means, seen: Seen = NOTHING) -> Score:
    """Turns means over samples, and what other metrics have seen, into a score.

    >>> from fedatoms.objectives import regression
    >>> score_of(regression(), [torch.tensor(4.0), torch.tensor(1.5), torch.tensor([4.0, 0.0, 8.0]), torch.tensor(4.0)])
    Score(rmse=2.0, loss=4.0, worst=None, spread=None, others={'mae': 1.5, 'r2': 0.5})
    """
    pairs = zip(objective.metrics, means, strict=False)  # the loss comes last
    first, *others = (metric.times * _number(metric, mean, seen) for metric, mean in pairs)
    names = [metric.name for metric in objective.metrics[1:]]
    return Score(first, float(means[-1]), scale=objective.scale, others=dict(zip(names, others, strict=True)))


def personal_score(runtime: Runtime, state: State) -> Score:
    """Evaluates the server's model with each client's personal parameters on that client's test images."""
    tested = torch.tensor([float(len(part)) for part in runtime.data.test_parts], dtype=torch.float64, device="cpu")
    all_of_them, own = begin_metrics(runtime.sim.objective), [begin_metrics(runtime.sim.objective) for _ in tested]
    if not all_of_them:
        return over_clients(runtime.sim.objective, personal_sums(runtime, state), tested)
    if runtime.peers.size > 1:
        raise ValueError(
            f"'{next(iter(all_of_them))}' sees the outputs of all clients' own models, which no process has. Train in "
            f"one process, or leave it out of the metrics."
        )
    sums = personal_sums(runtime, state, [[all_of_them, one] for one in own])
    return over_clients(runtime.sim.objective, sums, tested, all_of_them, own)


def local_score(runtime: Runtime, state: State) -> Score | None:
    """Evaluates each client's last trained model on that client's test images; None if no client has trained yet.

    Every client that has trained counts the same, whatever the number of its images.
    """
    parts, metrics = runtime.data.test_parts, runtime.sim.objective.metrics
    if whole := [metric.name for metric in metrics if metric.running is not None]:
        raise ValueError(f"score=local: '{whole[0]}' sees the outputs of one model at a time. Use score=server.")
    mine = [client for client in owned(runtime.peers, range(len(parts))) if len(parts[client])]
    found = _sums_of(runtime, state.server.params, ((client, _local(state, client)) for client in mine))
    if runtime.peers.size > 1:
        found = union(runtime.peers, found)
    if not found:
        return None
    means = zip(*([one / len(parts[client]) for one in found[client]] for client in sorted(found)), strict=True)
    each = [torch.stack(column).cpu() for column in means]
    return over_clients(runtime.sim.objective, each, torch.ones(len(found), dtype=torch.float64, device="cpu"))


def personal_sums(runtime: Runtime, state: State, seen: Sequence[Sequence[Seen]] = ()) -> list[Tensor]:
    """Adds up what is known of each client's test images, (C, ...), in float64: of each metric, and the loss."""
    server, parts = state.server.params, runtime.data.test_parts
    mine = owned(runtime.peers, range(len(parts)))
    if seen:
        whole = ((client, {**server, **_own(runtime, state, client)}) for client in mine if len(parts[client]))
        found = {client: _sums(_outcomes(runtime, params, parts[client], seen[client])) for client, params in whole}
    else:
        found = _sums_at_once(runtime, state, mine)
    if runtime.peers.size > 1:
        found = union(runtime.peers, found)
    nothing = [torch.zeros_like(one) for one in next(iter(found.values()), [])]  # of clients that are not tested
    columns = zip(*(found.get(client, nothing) for client in range(len(parts))), strict=True)
    return [torch.stack(column).cpu() for column in columns]


def _sums_at_once(runtime: Runtime, state: State, clients: list[int]) -> dict[int, list[Tensor]]:
    """Adds up what is known of some clients' test images, several clients at a time: all may not fit into memory."""
    server, parts = state.server.params, runtime.data.test_parts
    found = _sums_of(runtime, server, ((client, _own(runtime, state, client)) for client in clients))
    alike = [client for client in clients if client not in found and len(parts[client])]  # nothing of their own
    if alike:
        each = _outcomes(runtime, server, torch.arange(len(runtime.data.test_y), device="cpu"))
        found |= {client: _sums(one[parts[client].to(runtime.sim.device)] for one in each) for client in alike}
    return found


def _sums_of(runtime: Runtime, server: Params, models: Iterable[tuple[int, Params]]) -> dict[int, list[Tensor]]:
    """Adds up what is known of the test images of those clients that have something of their own."""
    parts, found = runtime.data.test_parts, dict[int, list[Tensor]]()
    owners = ((client, tree) for client, tree in models if tree)
    while some := dict(islice(owners, _clients_at_once(runtime))):
        outcomes = _own_outcomes(runtime, server, list(some.values()), [parts[client] for client in some])
        found.update(zip(some, map(_sums, outcomes), strict=True))
    return found


def over_clients(
    objective: Objective, sums: Means, tested: Tensor, seen: Seen = NOTHING, own: Sequence[Seen] = ()
) -> Score:
    """Combines what clients' results add up to over ``tested`` samples each, in float64, and what metrics have seen.

    >>> from fedatoms.objectives import classification
    >>> right, loss = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])
    >>> over_clients(classification(), [right, loss], torch.tensor([3.0, 1.0]))
    Score(accuracy=75.0, loss=1.0, worst=0.0, spread=50.0)
    """
    if not tested.any() or not sums:
        raise ValueError("no client has a part of the test set, so no own model can be scored. Use own_test=classes.")
    metric, some = objective.metrics[0], tested > 0
    counts = tested[some].reshape(-1, *[1] * (sums[0].dim() - 1))
    each = metric.each(sums[0][some] / counts)
    if metric.running is not None:
        each = torch.tensor(
            [own[client][metric.name].compute() for client in some.nonzero()[:, 0].tolist()], device="cpu"
        )
    each = each.double().sort(descending=not metric.higher).values
    worst = each[: max(round(len(each) / 10), 1)].mean()
    whole = score_of(objective, [one.sum(0) / tested.sum() for one in sums], seen)
    return whole._replace(worst=metric.times * float(worst), spread=metric.times * float(each.std(correction=0)))


def to_numbers(objective: Objective, means: Means) -> dict[str, Tensor]:
    """Names means over samples, as a node sends them: a mean that is a score is sent as one, in its unit.

    >>> from fedatoms.objectives import classification
    >>> to_numbers(classification(), [torch.tensor(0.5), torch.tensor(2.0)])
    {'accuracy': tensor(50.), 'loss': tensor(2.)}
    """
    pairs = zip(objective.metrics, means, strict=False)
    return {**{one.name: mean * _factor(one) for one, mean in pairs}, "loss": means[-1]}


def from_numbers(objective: Objective, numbers: Mapping[str, Tensor]) -> list[Tensor]:
    """Inverts ``to_numbers``."""
    return [*(numbers[one.name] / _factor(one) for one in objective.metrics), numbers["loss"]]


def _shared_means(runtime: Runtime, params: Params, rows: Tensor) -> list[Tensor]:
    """Returns the means over test samples, of which each process evaluates a part."""
    mine = rows.tensor_split(runtime.peers.size)[runtime.peers.rank]
    sums = _sums(_outcomes(runtime, params, mine)) if len(mine) else []
    everyone = [each for each in gather(runtime.peers, sums) if each]
    return [torch.stack(column).sum(0) / len(rows) for column in zip(*everyone, strict=True)]


def _number(metric: Metric, mean: Tensor, seen: Seen) -> float:
    if metric.running is not None:
        return seen[metric.name].compute()
    return float(metric.each(mean.cpu()[None])[0])


def _factor(metric: Metric) -> float:
    return metric.times if metric.value is None else 1


def _sums(each: Iterable[Tensor]) -> list[Tensor]:
    return [one.double().sum(0) for one in each]


def _own(runtime: Runtime, state: State, client: int) -> Params:
    row = state.clients.read(client)
    return {} if row is None else trees.restrict(row.own, runtime.layout.own)


def _local(state: State, client: int) -> Params:
    row = state.clients.read(client)
    return {} if row is None else row.local


def _clients_at_once(runtime: Runtime) -> int:
    """Returns how many clients' models to evaluate at once: one on a CPU, where vmap gains nothing."""
    longest = max(len(part) for part in runtime.data.test_parts)
    return max(scored_at_once(runtime.sim.device) // max(longest, 1), 1) if runtime.sim.device.startswith("cuda") else 1


def _own_outcomes(runtime: Runtime, server: Params, own: list[Params], parts: list[Tensor]) -> list[list[Tensor]]:
    """Returns for each client's test samples what each metric knows of them, and their losses."""
    if len(own) > 1:
        try:
            return _together(runtime, server, own, parts)
        except RuntimeError:  # a model that cannot be vectorised, or too little memory
            pass
    return [_outcomes(runtime, {**server, **tree}, part) for tree, part in zip(own, parts, strict=True)]


@torch.no_grad()
def _together(runtime: Runtime, server: Params, own: list[Params], parts: list[Tensor]) -> list[list[Tensor]]:
    net, read = runtime.network, runtime.sim.objective.read
    rows = pad_sequence(parts, batch_first=True).to(runtime.sim.device)
    x, y = _tested(runtime, rows.flatten())
    images = inputs.each(lambda leaf: leaf.unflatten(0, rows.shape), x)
    outputs = torch.vmap(lambda tree, some: read(net.predict({**server, **tree}, some)))(trees.stack(own), images)
    each = [one.unflatten(0, rows.shape) for one in _of_samples(runtime.sim.objective, outputs.flatten(0, 1), y)]
    return [[one[i, : len(part)] for one in each] for i, part in enumerate(parts)]


@torch.no_grad()
def _outcomes(runtime: Runtime, params: Params, rows: Tensor, seen: Sequence[Seen] = ()) -> list[Tensor]:
    """Returns for each test sample what each metric knows of it, and its loss; shows the batches to other metrics."""
    found = []
    for some in rows.to(runtime.sim.device).split(scored_at_once(runtime.sim.device)):
        x, y = _tested(runtime, some)
        outputs = runtime.predict(params, x)
        found.append(_of_samples(runtime.sim.objective, outputs, y))
        for running in (running for each in seen for running in each.values()):
            running.update(outputs, y)
    return [torch.cat(one) for one in zip(*found, strict=True)]


def _of_samples(objective: Objective, outputs: Tensor, y: Tensor) -> list[Tensor]:
    return [*(metric.of(outputs, y) for metric in objective.metrics), objective.loss(outputs, y)]


def _tested(runtime: Runtime, rows: Tensor) -> tuple[Inputs, Tensor]:
    data, dtype = runtime.data, runtime.network.dtype
    return cast_inputs(inputs.take(data.test_x, rows), data.recipe, dtype), cast_targets(data.test_y[rows], dtype)


def _same(a: Tensor, b: Tensor) -> bool:
    return a is b or torch.equal(a, b)  # only the second waits for a GPU
