"""A default device of the user's, as by torch.set_default_device, changes no draw and no score of ours."""

from collections.abc import Callable

import pytest
import torch
from support.small import clients_of, small_net
from torch import Tensor
from torch.utils import _pytree as pytree

from fedatoms.aggregation import median
from fedatoms.algorithms import scaffold
from fedatoms.data.batches import plan
from fedatoms.data.datasets import Images, Recipe
from fedatoms.data.federations import federation, hold_out
from fedatoms.engine.attacks import Attack, malicious
from fedatoms.engine.evaluation import evaluate
from fedatoms.engine.loop import begin, train
from fedatoms.engine.runtime import prepare
from fedatoms.engine.server import drawn
from fedatoms.engine.spec import Simulation

DATA, NET = clients_of((4, 6, 5)), small_net(norm=True, dropout=True)
IMAGES = Images(DATA.x, DATA.y, DATA.test_x, DATA.test_y, 3, None)
CROPPED = Recipe(1, mean=(0.0,), std=(1.0,), flip=True, pad=1, crop=0.5, fill="zero")


def scored() -> object:
    runtime = prepare(Simulation(NET, DATA, score=("server", "all"), device="cpu"))
    return [score.value for score in evaluate(runtime, begin(runtime)).values()]


def trained(**settings: object) -> object:
    return train(Simulation(NET, DATA, device="cpu", **settings), 2).state.server.params  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [
        lambda: federation([(DATA.x[part], DATA.y[part]) for part in DATA.parts], test=(DATA.test_x, DATA.test_y)),
        lambda: hold_out(IMAGES, 0.2, seed=0),
        lambda: plan(DATA.parts[1], batch_size=4, epochs=2, recipe=CROPPED, seed=0, client=1, round=0),
        lambda: drawn(9, 0.5, 0.3, seed=0, t=3),
        lambda: drawn(9, 0.5, 0.3, seed=0, t=3, sampling="poisson"),
        lambda: malicious(Attack("sign-flip", 0.3), 9, 0),
        scored,
        trained,
        lambda: trained(map="vectorised"),
        lambda: trained(aggregation=median()),
        lambda: trained(algorithm=scaffold(), failures=0.2),
    ],
    ids=[
        *("federation", "holdout", "batches", "sampled", "poisson", "attackers", "scores"),
        *("trained", "vectorised", "by the median", "with failures"),
    ],
)
def test_a_default_device_changes_nothing(make: Callable[[], object]) -> None:
    expected = pytree.tree_leaves(make())
    drawn.cache_clear()
    with torch.device("meta"):
        found = pytree.tree_leaves(make())
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other
