"""Files read ahead of their use: while one is worked on, threads read and check the next ones."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from shoal.engine.store.codec import WORTHWHILE

THREADS = max(2, min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2))
HELD = 1 << 30
"""Bytes that are read before they are asked for, at most: what a round takes of memory, however large its messages."""

Item = TypeVar("Item")
Read = TypeVar("Read")


def read_ahead(
    read: Callable[[Item], Read], items: Sequence[Item], size: int, most: int = THREADS + 2
) -> Iterator[Callable[[], Read]]:
    """Yield for each item, in order, a call that returns what `read` made of it, or raises what `read` raised.

    Args:
        read: called with each item, by threads where that is worthwhile.
        items: what is to be read.
        size: bytes of an item.
        most: how many are read, at most, before they are asked for; of very large ones fewer (`HELD`).
    """
    if size < WORTHWHILE or len(items) < 2:
        yield from (partial(read, item) for item in items)
        return
    most = max(2, min(most, HELD // size))
    with ThreadPoolExecutor(THREADS, thread_name_prefix="ahead") as threads:
        begun: deque[Future[Read]] = deque()
        try:
            for item in items:
                begun.append(threads.submit(read, item))
                if len(begun) == most:
                    yield begun.popleft().result
            while begun:
                yield begun.popleft().result
        finally:  # a reader that stops early waits for no more files
            for future in begun:
                future.cancel()
