"""What a user reads where memory ran out, instead of a traceback."""

from __future__ import annotations

import errno
import re

from shoal.core.errors import short_text

_WORDS = re.compile(
    r"(can't|cannot|could not|unable to|failed to) (allocate|map segment|start new thread)|not enough memory|"
    r"out of memory|bad_alloc|malloc of size",
    re.IGNORECASE,
)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error says that there was no memory for something; every library has its own words for it."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, RuntimeError | ImportError | OSError) and bool(_WORDS.search(str(error)))


def out_of_memory(error: Exception) -> str:
    """Return the sentence to show: what was refused, and what to do."""
    return (
        f"out of memory: {short_text(error)}; free memory, or work on fewer samples (data.limit), smaller images "
        "(--size) or fewer workers (workers.slots)"
    )
