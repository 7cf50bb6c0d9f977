"""Words of messages about many names."""

from __future__ import annotations

from collections.abc import Sequence


def first_of(names: Sequence[str], max_names: int = 10) -> str:
    """Return the first names of a list, and the number of the others.

    >>> first_of(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    text = ", ".join(names[:max_names])
    if len(names) > max_names:
        text += f" and {len(names) - max_names} more"
    return text
