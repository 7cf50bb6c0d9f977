"""Reading ahead: in order, up to an error, never far ahead, and no further than is asked for."""

from __future__ import annotations

import threading

import pytest

from shoal.engine.messages import read_ahead as module
from shoal.engine.messages.read_ahead import MAX_READ_AHEAD_BYTES, MIN_THREAD_BYTES, read_ahead


@pytest.mark.parametrize("size", [0, MIN_THREAD_BYTES])
def test_in_order_up_to_an_error(size: int) -> None:
    def read(item: int) -> int:
        if item == 7:
            raise ValueError(f"bad {item}")
        return item * item

    squares: list[int] = []
    with pytest.raises(ValueError, match="bad 7"):
        squares.extend(read_ahead(read, range(10), size))
    assert squares == [0, 1, 4, 9, 16, 25, 36]


def test_threads_read_so_many_ahead_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[int] = []
    reached = threading.Condition()

    def read(item: int) -> int:
        with reached:
            began.append(item)
            reached.notify_all()
        return item

    monkeypatch.setattr(module, "THREADS", 4)
    read_items = read_ahead(read, range(10), MAX_READ_AHEAD_BYTES // 3)
    assert next(read_items) == 0
    with reached:
        assert reached.wait_for(lambda: len(began) == 3, timeout=30)
    assert sorted(began) == [0, 1, 2]
    read_items.close()  # type: ignore[attr-defined]
    assert sorted(began) == [0, 1, 2]


def test_small_files_are_read_when_they_are_asked_for() -> None:
    began: list[int] = []
    read_items = read_ahead(began.append, range(3), MIN_THREAD_BYTES - 1)
    assert began == []
    next(read_items)
    assert began == [0]
