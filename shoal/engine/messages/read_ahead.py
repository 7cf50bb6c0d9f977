"""Read files ahead of their use: while one is processed, threads read and check the next ones."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

THREADS = max(2, min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2))
MIN_THREAD_BYTES = 1 << 18
"""Size of a file from which a thread for it saves more time than it costs."""
MAX_READ_AHEAD_BYTES = 1 << 30
"""Most bytes that are read ahead, which bounds the memory of a round with large messages."""

Item = TypeVar("Item")
Read = TypeVar("Read")


def read_ahead(read: Callable[[Item], Read], items: Sequence[Item], size: int) -> Iterator[Read]:
    """Yield the result of `read` for each item, in order; an exception of it ends the reading.

    Args:
        read: reads an item; for large items threads call it.
        items: the items to read.
        size: bytes of an item.
    """
    if size < MIN_THREAD_BYTES or len(items) < 2:
        yield from map(read, items)
        return
    max_ahead = max(2, min(THREADS + 2, MAX_READ_AHEAD_BYTES // size))
    with ThreadPoolExecutor(THREADS, thread_name_prefix="ahead") as threads:
        begun: deque[Future[Read]] = deque()
        try:
            for item in items:
                begun.append(threads.submit(read, item))
                if len(begun) == max_ahead:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:  # a reader that stops early waits for no more files
            for future in begun:
                future.cancel()
