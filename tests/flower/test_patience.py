"""Parts of a message that are not there yet are asked for again at once, and for two hours at most."""

import importlib
import inspect
import threading
import time

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, RecordDict
from flwr.supercore.constant import PULL_MAX_TIME
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError

from fedatoms.flower.patience import EAGER, OF_CLIENT, OF_SERVER, eagerly

CONTENT = RecordDict({"config": ConfigRecord({"a": 1})})
PARTS = {name: each.deflate() for name, each in get_all_nested_objects(CONTENT).items()}


class Late:
    """Has each part only when it is asked for it the third time."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, name: str) -> bytes:
        self.asked.append(name)
        if self.asked.count(name) < 3:
            raise ObjectUnavailableError(name)
        return PARTS[name]


def pull(place: tuple[str, str], late: Late) -> None:
    """Calls the function of a place as Flower itself does."""
    function = getattr(importlib.import_module(place[0]), place[1])
    if place == OF_SERVER:
        assert function(object_ids=[*PARTS], pull_object_fn=late) == PARTS
    else:
        found = function(get_object_tree(CONTENT), late, lambda name: None, return_type=RecordDict)
        assert found == CONTENT


@pytest.mark.parametrize("place", [OF_SERVER, OF_CLIENT])
def test_what_is_on_its_way_is_asked_for_again_without_flowers_seconds(
    place: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, wait = list[float](), threading.Event.wait

    def waiting(event: threading.Event, timeout: float | None = None) -> bool:
        if timeout is None:  # for threads, not for parts
            return wait(event)
        waits.append(timeout)
        return False

    monkeypatch.setattr("threading.Event.wait", waiting)
    with eagerly(place):
        pull(place, Late())
    assert len(waits) == 2 * len(PARTS) and max(waits) <= 2 * 1.2 * 0.05
    waits.clear()
    pull(place, Late())  # as it was
    assert min(waits) >= 0.8


@pytest.mark.parametrize("place", [OF_SERVER, OF_CLIENT])
def test_time_alone_is_the_limit_and_it_is_flowers_own(place: tuple[str, str]) -> None:
    function = getattr(importlib.import_module(place[0]), place[1])
    usual = {name: each.default for name, each in inspect.signature(function).parameters.items()}
    assert EAGER.keys() <= usual.keys() and usual["max_time"] == PULL_MAX_TIME
    assert EAGER["max_tries_per_object"] is None and "max_time" not in EAGER and PULL_MAX_TIME == 7200


def test_a_flower_without_such_a_function_or_module_is_left_as_it_is() -> None:
    with eagerly(("time", "there_is_none"), ("there_is_none", "either")):
        assert not hasattr(time, "there_is_none")
