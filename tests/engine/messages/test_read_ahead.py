"""Reading ahead: in order, with each one's own error, never far ahead, and no further than is asked for."""

from __future__ import annotations

import threading

import pytest

from shoal.engine.messages.read_ahead import MIN_THREAD_BYTES, read_ahead


@pytest.mark.parametrize("size", [0, MIN_THREAD_BYTES])
def test_in_order_with_the_errors_in_their_places(size: int) -> None:
    def read(item: int) -> int:
        if item % 4 == 3:
            raise ValueError(f"bad {item}")
        return item * item

    found: list[object] = []
    for call in read_ahead(read, range(10), size):
        try:
            found.append(call())
        except ValueError as error:
            found.append(str(error))
    assert found == [0, 1, 4, "bad 3", 16, 25, 36, "bad 7", 64, 81]


def test_threads_read_so_many_ahead_and_no_more() -> None:
    began: list[int] = []
    reached = threading.Condition()

    def read(item: int) -> int:
        with reached:
            began.append(item)
            reached.notify_all()
        return item

    calls = read_ahead(read, range(10), MIN_THREAD_BYTES, max_ahead=3)
    assert next(calls)() == 0
    with reached:
        assert reached.wait_for(lambda: len(began) == 3, timeout=30)
    assert sorted(began) == [0, 1, 2]
    calls.close()  # type: ignore[attr-defined]
    assert sorted(began) == [0, 1, 2]


def test_small_files_are_read_when_they_are_asked_for() -> None:
    began: list[int] = []
    calls = list(read_ahead(began.append, range(3), MIN_THREAD_BYTES - 1))
    assert began == []
    calls[1]()
    assert began == [1]
