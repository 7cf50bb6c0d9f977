"""Prefect tasks: one unit of work each, thin. They are handed the work as a callable and hash no argument.

They carry no tags: for each tag of a task run Prefect asks its concurrency service, which takes up to two seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE


def _unit(name: str) -> Any:
    @task(name=name, cache_policy=NO_CACHE, persist_result=False)
    def unit(work: Callable[[], Any]) -> Any:
        return work()

    return unit


UNITS = {kind: _unit(kind) for kind in ("train", "aggregate", "evaluate")}
"""A task for each kind of work that the engine submits."""
