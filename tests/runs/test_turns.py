"""Turns: work in threads of its own that goes on only when it may, and ends where it is interrupted."""

import signal
import threading
import time

import pytest
from support.signals import interruptible

from fedatoms.runs.turns import Turns


def test_one_goes_on_at_a_time_and_from_where_it_was() -> None:
    seen: list[str] = []

    def work(name: str) -> Turns[str]:
        def steps() -> str:
            for step in range(3):
                seen.append(f"{name}{step}")
                each.give_back()
            return name

        each = Turns(steps)
        return each

    pair = [work("a"), work("b")]
    while any(not each.over for each in pair):
        for each in pair:
            if not each.over:
                each.go()
    assert seen == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert [each.result() for each in pair] == ["a", "b"]


def test_an_error_is_raised_where_the_result_is_asked_for() -> None:
    def fails() -> None:
        raise ValueError("mine")

    each = Turns(fails)
    each.go()
    assert each.over
    with pytest.raises(ValueError, match="mine"):
        each.result()


def test_what_is_stopped_is_interrupted_where_it_gave_its_turn_back() -> None:
    seen: list[str] = []

    def work() -> None:
        try:
            each.give_back()
        except KeyboardInterrupt:
            seen.append("saved")
            raise

    each = Turns(work)
    each.go()
    each.stop()
    assert seen == ["saved"] and each.over and isinstance(each.error, KeyboardInterrupt)
    each.stop()  # once more changes nothing
    never = Turns(work)
    never.stop()
    assert not never.over and seen == ["saved"]


def test_an_interruption_waits_until_the_turn_is_back() -> None:
    def work() -> None:
        signal.raise_signal(signal.SIGINT)  # Python hears it in the main thread, which waits
        time.sleep(0.2)
        seen.append("back")
        each.give_back()

    assert threading.current_thread() is threading.main_thread()
    seen: list[str] = []
    each = Turns(work)
    with interruptible(), pytest.raises(KeyboardInterrupt):
        each.go()
    assert seen == ["back"]
    each.stop()
    assert each.over
