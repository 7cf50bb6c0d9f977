"""Work by threads: in order, up to an error, at once, never far ahead, and no further than is asked for."""

from __future__ import annotations

import threading

import pytest

from shoal.core.threads import in_order


@pytest.mark.parametrize("threads", [1, 3])
def test_in_order_up_to_an_error(threads: int) -> None:
    def work(item: int) -> int:
        if item == 7:
            raise ValueError(f"bad {item}")
        return item * item

    squares: list[int] = []
    with pytest.raises(ValueError, match="bad 7"):
        squares.extend(in_order(work, range(10), threads))
    assert squares == [0, 1, 4, 9, 16, 25, 36]


def test_threads_work_at_once() -> None:
    met = threading.Barrier(2, timeout=60)

    def work(item: int) -> int:
        met.wait()
        return 10 * item

    assert list(in_order(work, range(6), 2)) == [0, 10, 20, 30, 40, 50]


def test_threads_are_so_many_ahead_and_no_more() -> None:
    began: list[int] = []
    reached = threading.Condition()

    def work(item: int) -> int:
        with reached:
            began.append(item)
            reached.notify_all()
        return item

    results = in_order(work, range(10), 2)
    assert next(results) == 0
    with reached:
        assert reached.wait_for(lambda: len(began) == 3, timeout=30)
    results.close()  # type: ignore[attr-defined]
    assert sorted(began) == [0, 1, 2]


def test_one_thread_works_when_it_is_asked() -> None:
    began: list[int] = []
    results = in_order(began.append, range(3), 1)
    assert began == []
    next(results)
    assert began == [0]
