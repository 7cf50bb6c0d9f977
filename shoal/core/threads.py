"""Work on many items by a few threads, whose results come in the order of the items."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(work: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """Yield what work makes of each item, in their order; an exception of it ends this.

    Args:
        work: threads call it, unless there is one alone.
        items: as many as there are threads are begun before their results are asked for.
        threads: how many.
    """
    if threads < 2:
        yield from map(work, items)
        return
    begun: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="in-order") as pool:
        try:
            for item in items:
                begun.append(pool.submit(work, item))
                if len(begun) > threads:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:  # who stops early waits for no more items
            for future in begun:
                future.cancel()
