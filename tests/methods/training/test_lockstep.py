"""Calls that meet: their order is always the same, and an error ends all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from shoal.methods.training.lockstep import Lockstep


def test_nobody_goes_on_before_the_last_has_come() -> None:
    said: list[str] = []
    lockstep = Lockstep(3)

    def call(name: str) -> Callable[[], None]:
        def work() -> None:
            for place in range(2):
                said.append(f"{name}{place}")
                lockstep.meet(lambda: said.append("all"))

        return work

    lockstep.run([call(name) for name in "abc"])
    assert said == ["a0", "b0", "c0", "all", "a1", "b1", "c1", "all"]


def test_those_that_have_ended_are_not_waited_for() -> None:
    said: list[str] = []
    lockstep = Lockstep(3)

    def call(places: int) -> Callable[[], None]:
        return lambda: [lockstep.meet(lambda: said.append(f"all {places}")) for _ in range(places)] and None

    lockstep.run([call(1), call(2), call(0)])
    assert said == ["all 1", "all 2"]


def test_an_error_ends_all_calls() -> None:
    lockstep = Lockstep(3)
    after: list[int] = []

    def fine() -> None:
        lockstep.meet(lambda: None)
        after.append(1)

    def wrong() -> None:
        raise ValueError("no batch")

    before = threading.active_count()
    with pytest.raises(ValueError, match="no batch"):
        lockstep.run([fine, wrong, fine])
    assert after == []
    assert threading.active_count() == before
