"""What a user reads where memory ran out, instead of a traceback."""

from __future__ import annotations

import errno
import re
import resource

from shoal.core.errors import short_text

_WORDS = re.compile(
    r"(can't|cannot|could not|unable to|failed to) (allocate|map segment|start new thread)|not enough memory|"
    r"out of memory|bad_alloc|malloc of size",
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that there was no memory for something; every library has its own words for it."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, MemoryError) or (isinstance(found, OSError) and found.errno == errno.ENOMEM):
            return True
        if isinstance(found, RuntimeError | ImportError | OSError) and _WORDS.search(str(found)):
            return True
        found = found.__cause__ or found.__context__
    return False


def out_of_memory(error: BaseException) -> str:
    """Return the sentence to show: what was refused, what the process may take, and what to do."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    allowed = ""
    if limit != resource.RLIM_INFINITY:
        allowed = f" (this process may take {limit / 1e6:,.0f} MB: ulimit -v)"
    return (
        f"out of memory: {short_text(error)}{allowed}; free memory or raise the limit, or work on fewer samples "
        "(data.limit), smaller images (--size) or fewer workers (workers.slots)"
    )
