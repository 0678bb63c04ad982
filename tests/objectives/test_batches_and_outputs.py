"""Batches are tensors, tuples or dictionaries; models return tensors, tuples, dictionaries or dataclasses."""

from collections import namedtuple
from dataclasses import dataclass, replace

import pytest
import torch
from support.small import clients_of, difference, identical, play, small_net
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedatoms.data.federations import Federation, federation
from fedatoms.engine.loop import train
from fedatoms.engine.spec import Simulation
from fedatoms.engine.training import Training
from fedatoms.personal import fedper
from fedatoms.testing.small import simulation as small_simulation

QUICK = Training(epochs=2, batch_size=5, lr=0.05, momentum=0.5)
SIZES = (1, 7, 12)


class Words(nn.Module):
    """A classifier of token ids with a mask, and a number beside."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body = nn.Embedding(11, 4), nn.BatchNorm1d(5)
        self.fc = nn.Linear(5, 3)

    def forward(self, ids: Tensor, mask: Tensor, beside: Tensor) -> Tensor:
        assert ids.dtype == torch.int64 and mask.dtype == torch.bool and beside.is_floating_point()
        words = torch.where(mask[..., None], self.embed(ids), 0.0).mean(1)
        return self.fc(self.body(torch.cat([words, beside], 1)))


def some(n: int, draws: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
    ids = torch.randint(11, (n, 6), generator=draws)
    mask, beside = torch.rand(n, 6, generator=draws) < 0.8, torch.randn(n, 1, generator=draws)
    return {"ids": ids, "mask": mask, "beside": beside}, torch.randint(3, (n,), generator=draws)


def data_of(kind: str) -> Federation:
    draws = torch.Generator().manual_seed(0)
    pairs = [some(n, draws) for n in (*SIZES, 9)]
    if kind == "tuple":
        pairs = [(tuple(x.values()), y) for x, y in pairs]
    if kind == "dataset":
        pairs = [Items(*pair) for pair in pairs]
    return federation(pairs[:-1], test=pairs[-1])


class Items(Dataset):
    def __init__(self, x: dict[str, Tensor], y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[dict[str, Tensor], Tensor]:
        return {name: leaf[i] for name, leaf in self.x.items()}, self.y[i]


def words(**changes: object) -> Simulation:
    torch.manual_seed(0)
    return replace(Simulation(Words().double(), data_of("dict"), training=QUICK), **changes)


def test_batches_of_dictionaries_tuples_and_data_sets_train_alike_in_both_maps() -> None:
    found = [
        play(words(data=data_of(kind), map=way), 2).server.params
        for kind in ("dict", "tuple", "dataset")
        for way in ("one_by_one", "vectorised")
    ]
    assert all(difference(found[0], each) < 1e-9 for each in found[1:])
    assert identical(found[0], found[2]) and identical(found[0], found[4])


def test_own_models_are_scored_on_batches_of_parts() -> None:
    done = train(words(personal=fedper(), score=("server", "personal")), 1)
    assert done.scores["personal"].worst is not None


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda x: {**x, "idz": x["ids"]}, "client 1: samples of .*idz.* differ from client 0's .* the same parts"),
        (lambda x: {**x, "ids": x["ids"][:, :3]}, r"client 1: samples of shape \(3,\) differ from client 0's \(6,\)"),
        (lambda x: {**x, "ids": x["ids"][:3]}, r"client 1: x\['ids'\] of shape \(3, 6\), .* do not pair up"),
        (lambda x: {**x, "beside": x["beside"] / 0}, "client 1, sample 0: the data hold"),
        (lambda x: {"ids": "text"}, "client 1: tuple is not a pair of tensors"),
        (lambda x: {}, "client 1: tuple is not a pair of tensors"),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_are_refused_with_their_address(spoil: object, said: str) -> None:
    draws = torch.Generator().manual_seed(0)
    pairs = [some(n, draws) for n in SIZES]
    pairs[1] = (spoil(pairs[1][0]), pairs[1][1])
    with pytest.raises(ValueError, match=said):
        federation(pairs, test=pairs[0])


def test_a_model_that_does_not_take_the_parts_says_so_in_one_line() -> None:
    for kind, how in (("dict", "by these names"), ("tuple", "in this order")):
        with pytest.raises(ValueError, match=rf"samples of x\[.* do not fit the model .* take them {how}\.$") as caught:
            train(words(model=small_net(), data=data_of(kind)), 1)
        assert "\n" not in str(caught.value)


Both = namedtuple("Both", ["logits", "aux"])


@dataclass
class Output:
    hidden: Tensor
    logits: Tensor


class Returning(nn.Module):
    """A network that returns its logits in some form, like GoogLeNet another one in training mode."""

    def __init__(self, form: object, trains_alone: bool = False) -> None:
        super().__init__()
        self.net, self.form, self.trains_alone = small_net(norm=True), form, trains_alone

    def forward(self, x: Tensor) -> object:
        logits = self.net(x)
        return self.form(logits) if self.training or not self.trains_alone else logits


FORMS = {
    "a tuple": lambda logits: (logits, None),
    "a list": lambda logits: [logits],
    "a named tuple": lambda logits: Both(logits, logits * 2),
    "a dictionary": lambda logits: {"hidden": logits * 2, "logits": logits},
    "torchvision's": lambda logits: {"out": logits, "aux": logits * 2},
    "a dataclass": lambda logits: Output(logits * 2, logits),
}


@pytest.mark.parametrize("trains_alone", [False, True])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_model_may_return_its_logits_in_any_form(form: object, trains_alone: bool) -> None:
    plain = play(Simulation(Returning(lambda logits: logits), clients_of()), 1).server.params
    for way in ("one_by_one", "vectorised"):
        sim = Simulation(Returning(form, trains_alone), clients_of(), map=way)
        assert difference(play(sim, 1).server.params, plain) < 1e-9
        assert train(sim, 1).scores["server"].accuracy >= 0


@pytest.mark.parametrize("trains_alone", [False, True])
@pytest.mark.parametrize(
    ("form", "said"),
    [
        (
            lambda logits: {"a": 1},
            r"^the model returns dict without a tensor called logits. Let it return a tensor, a tuple",
        ),
        (lambda logits: {"features": logits, "prediction": logits}, r"^the model returns dict without a tensor called"),
        (lambda logits: None, r"^the model returns NoneType without a tensor"),
        (lambda logits: logits[:1], r"^the model returns \(1, 3\) for 2 samples. Let it return a row for each\.$"),
        (lambda logits: (logits[:, :2], logits), r"^the model returns \(2, 2\) for 2 images, but labels go up to 2"),
    ],
)
def test_what_no_objective_can_read_is_said_before_the_first_round(form: object, said: str, trains_alone: bool) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        train(Simulation(Returning(form, trains_alone), clients_of()), 1)
    assert "\n" not in str(caught.value)


def test_looking_at_outputs_changes_nothing_that_is_drawn() -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    train(small_simulation(failures=0.0), 1)
    assert torch.equal(before, torch.random.get_rng_state())


def test_an_objective_may_read_what_it_wants() -> None:
    """Here the sum of two outputs, as for auxiliary classifiers."""
    sim = Simulation(Returning(lambda logits: (logits / 2, logits / 2)), clients_of())
    sim = replace(sim, objective=sim.objective._replace(read=lambda returned: returned[0] + returned[1]))
    plain = play(Simulation(Returning(lambda logits: logits), clients_of()), 1).server.params
    assert difference(play(sim, 1).server.params, plain) < 1e-9
