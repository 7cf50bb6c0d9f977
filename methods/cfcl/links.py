"""Links of CF-CL's graph that carry nothing, for good or for some local steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from methods.base import MethodError


def check_failed(failed: Sequence[Sequence[int]]) -> None:
    """Refuse entries that are no failure of a link.

    Raises:
        MethodError: an entry is not (i, j), (i, j, from) or (i, j, from, to).
    """
    for link in failed:
        if not 2 <= len(link) <= 4:
            raise MethodError(f"method.failed names {list(link)}: expected [i, j], [i, j, from] or [i, j, from, to]")


def live_links(edges: Sequence[list[int]], failed: Sequence[Sequence[int]], step: int) -> list[list[int]]:
    """The links that carry something at a local step.

    Args:
        edges: the links [i, j] with i < j.
        failed: (i, j), (i, j, from local step), or (i, j, from, to) without the last.
        step: the local step.
    """
    dead = set()
    for i, j, *when in failed:
        start, end = when[0] if when else 0, when[1] if len(when) > 1 else math.inf
        if start <= step < end:
            dead.add((min(i, j), max(i, j)))
    return [edge for edge in edges if tuple(edge) not in dead]
