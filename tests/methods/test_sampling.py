"""Who is asked in a round: drawn among those that are there, the same draw as from a list of them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.core.streams import Streams
from shoal.methods.contract.base import Federation, Method, Server


@pytest.mark.parametrize("clients", [1, 3, 10, 1000, 60_000])
@pytest.mark.parametrize("fraction", [0.001, 0.34, 1.0])
@pytest.mark.parametrize("away", [(), (0,), (2, 9), (0, 1, 2, 7, 8)])
def test_the_draw_is_that_from_a_list_of_those_that_are_there(
    clients: int, fraction: float, away: tuple[int, ...]
) -> None:
    quarantined = frozenset(client for client in away if client < clients)
    there = [client for client in range(clients) if client not in quarantined]
    spec: Any = None
    federation = Federation(spec, (1,) * clients, Streams(4), (), quarantined)
    method: Any = SimpleNamespace(context=SimpleNamespace(fraction=fraction))
    count = min(len(there), max(1, round(fraction * len(there))))
    rng = replace(federation.streams, round=6).numpy("participation")
    expected = there if count == len(there) else sorted(rng.choice(there, count, replace=False).tolist())
    assert Method.sample_clients(method, Server(round=5), federation) == expected
