"""Own data: what cannot be a federation is refused with the value, the rule and what to do."""

import numpy as np
import pytest
import torch
from torch import nn

from fedatoms.data.federations import check_rows, federation
from fedatoms.engine.loop import train
from fedatoms.engine.spec import Simulation

LABELS = torch.tensor([0, 1])
PIXELS = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)


def test_pixels_and_floats_do_not_mix_but_floats_of_all_widths_do() -> None:
    fine = (PIXELS, LABELS)
    for other in (PIXELS.float(), PIXELS.long(), PIXELS.bool()):
        words = rf"samples of type {other.dtype} differ from client 0's torch.uint8.*x.float\(\) / 255"
        with pytest.raises(ValueError, match=f"client 1: {words}"):
            federation([fine, (other, LABELS)], test=fine)
        with pytest.raises(ValueError, match=f"test: {words}"):
            federation([fine], test=(other, LABELS))
    assert federation([(PIXELS.float(), LABELS), (PIXELS.double(), LABELS)], (PIXELS.half(), LABELS)).x.dtype.itemsize
    assert federation([(PIXELS.int(), LABELS), (PIXELS.long(), LABELS)], (PIXELS.int(), LABELS)).x.dtype == torch.int64


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (PIXELS.to(torch.complex64), "samples of type torch.complex64 cannot be inputs"),
        (PIXELS.to(torch.uint16), "samples of type torch.uint16 cannot be inputs"),
        (np.zeros((2, 3), dtype=complex), "samples of type torch.complex128 cannot be inputs"),
        (np.array([["a"], ["b"]]), "an array of type <U1 is no tensor"),
        (np.array([[None], [None]]), "an array of type object is no tensor"),
        (np.zeros((2, 3))[::-1], "np.ascontiguousarray"),
        (torch.zeros(2, 3).to_sparse(), r"Use x.to_dense\(\)"),
        (torch.zeros(2, 3, device="meta"), "on meta has no rows"),
    ],
)
def test_what_cannot_be_an_input_is_said(x: torch.Tensor | np.ndarray, words: str) -> None:
    with pytest.raises(ValueError, match=rf"client 0: .*{words}"):
        federation([(x, LABELS)], test=(PIXELS, LABELS))


def test_labels_of_every_width_are_whole_numbers() -> None:
    for dtype in (torch.uint8, torch.int8, torch.uint16, torch.uint32, torch.uint64):
        assert federation([(PIXELS, LABELS.to(dtype))], (PIXELS, LABELS)).y.tolist() == [0, 1]
    with pytest.raises(ValueError, match="is negative"):
        federation([(PIXELS, np.array([0, 2**64 - 1], dtype=np.uint64))], (PIXELS, LABELS))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parts": []}, r"^data\.parts is empty: a federation needs at least one client\. Use data\.federation"),
        (
            {"parts": [torch.tensor([0, 2])]},
            r"^data\.parts names sample 2, but there are 2 samples, from 0 to 1\. Make",
        ),
        ({"parts": [torch.tensor([-1])]}, r"^data\.parts names sample -1"),
        ({"test_parts": [torch.tensor([9])]}, r"^data\.test_parts names sample 9"),
    ],
)
def test_parts_name_samples_that_are_there(changes: dict[str, list[torch.Tensor]], words: str) -> None:
    ours = federation([(PIXELS, LABELS)], test=(PIXELS, LABELS))
    with pytest.raises(ValueError, match=words):
        Simulation(nn.Flatten(), ours._replace(**changes))


def test_clients_without_samples_are_no_mistake_in_the_parts() -> None:
    check_rows(federation([(PIXELS, LABELS)], test=(PIXELS, LABELS))._replace(parts=[LABELS[:0]] * 2, test_parts=[]))


def some(n: int, start: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(start, start + n).float()[:, None], torch.arange(n) % 2


def test_each_client_may_have_a_test_set_of_its_own() -> None:
    ours = federation([some(3), some(4), some(2)], tests=[some(2, 10), None, some(3, 20)])
    assert ours.test_x[:, 0].tolist() == [10, 11, 20, 21, 22]
    assert [part.tolist() for part in ours.test_parts] == [[0, 1], [], [2, 3, 4]]
    numbers = [(x, x[:, 0] / 2) for x, _ in (some(3), some(4))]
    assert [part.tolist() for part in federation(numbers, tests=numbers).test_parts] == [[0, 1, 2], [3, 4, 5, 6]]
    model = nn.Linear(1, 2)
    scored = train(Simulation(model, ours, score=("server", "personal")), 1).scores
    assert scored["personal"].loss == pytest.approx(scored["server"].loss, rel=1e-6)  # all share one model


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, r"takes one of test=\(x, y\) and tests"),
        ({"test": some(2), "tests": [some(2)] * 2}, r"takes one of test=\(x, y\) and tests"),
        ({"tests": [some(2)]}, "tests has 1 sets for 2 clients. Give one for each"),
        ({"tests": [None, None]}, "tests has no set at all"),
        ({"tests": [None, (torch.zeros(2, 3), LABELS)]}, r"test of client 1: samples of shape \(3,\) differ"),
        ({"tests": [None, (torch.zeros(2, 1), LABELS[:1])]}, "test of client 1: x of shape .* do not pair up"),
    ],
)  # fmt: skip
def test_test_sets_that_do_not_fit_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        federation([some(3), some(4)], **changes)
