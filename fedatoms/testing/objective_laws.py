"""The laws of an objective."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedatoms.engine.spec import Simulation
from fedatoms.nn.layers import copied
from fedatoms.objectives.base import Objective, Rows
from fedatoms.testing import laws
from fedatoms.testing.small import check_same, clients, simulation


def check_objective(
    factory: Callable[[], Objective],
    model: nn.Module | None = None,
    targets: Callable[[Tensor], Tensor] = torch.clone,
) -> None:
    """Checks that an objective keeps the laws of federated training, on a small built-in federation, in seconds.

    ``targets`` makes its targets of classes from 0 to 2, and ``model`` returns what it compares with them: float64, of
    6x6 images of one channel. By default targets are the classes, and the model returns three logits.

    >>> import fedatoms
    >>> check_objective(fedatoms.objectives.classification)
    >>> def centred():
    ...     return fedatoms.objectives.classification()._replace(loss=lambda out, y: out.sum(1) - out.mean())
    >>> check_objective(centred)
    Traceback (most recent call last):
    ...
    AssertionError: centred breaks the law 'one_row_each': The loss and each metric have one row per sample, which is a
    function of that sample alone. But the loss of single samples differs by 0.214
    """
    objective = laws.made_by(factory, Objective)
    sim = replace(simulation(model), data=clients(targets=targets), objective=objective)
    laws.keep(LAWS, sim, laws.name_of(factory))


def one_row_each(sim: Simulation) -> None:
    """The loss and each metric have one row per sample, which is a function of that sample alone."""
    outputs, y = _seen(sim)
    for name, of in _functions(sim.objective).items():
        each, alone = of(outputs, y), [of(outputs[i : i + 1], y[i : i + 1]) for i in range(len(y))]
        if not isinstance(each, Tensor) or each.shape[:1] != (len(y),):
            got = f"shape {tuple(each.shape)}" if isinstance(each, Tensor) else f"type {type(each).__name__}"
            raise AssertionError(f"the {name} of {len(y)} samples has {got}")
        what = f"the {name} of single samples"
        check_same({what: each.double()}, {what: torch.cat(alone).double()}, laws.ROUNDING)


def one_mean(sim: Simulation) -> None:
    """The mean loss in one kernel, if there is one, is the mean of the losses."""
    if sim.objective.mean_loss is not None:
        outputs, y = _seen(sim)
        together, apart = sim.objective.mean_loss(outputs, y), sim.objective.loss(outputs, y).mean()
        check_same({"the mean loss": together}, {"the mean loss": apart}, laws.ROUNDING)


def within_bounds(sim: Simulation) -> None:
    """A score is a finite number, and lies where its metric says that it lies."""
    outputs, y = _seen(sim)
    for metric in sim.objective.metrics:
        (score,) = metric.each(metric.of(outputs, y).double().mean(0)[None]).tolist()
        if not metric.low <= score <= metric.high or abs(score) == torch.inf:  # nan lies nowhere
            raise AssertionError(f"{metric.name} is {score:g}, and goes from {metric.low:g} to {metric.high:g}")


def _seen(sim: Simulation) -> tuple[Tensor, Tensor]:
    """Returns what the objective sees of the test set."""
    with torch.no_grad():
        return sim.objective.read(copied(sim.model).eval()(sim.data.test_x)), sim.data.test_y


def _functions(objective: Objective) -> dict[str, Rows]:
    return {"loss": objective.loss, **{metric.name: metric.of for metric in objective.metrics}}


LAWS: tuple[laws.Law, ...] = (
    one_row_each,
    one_mean,
    within_bounds,
    laws.repeatable,
    laws.resumable,
    laws.vectorised,
)
