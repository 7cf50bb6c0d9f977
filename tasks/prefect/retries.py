"""When Prefect tries a task again."""

from __future__ import annotations

from typing import Any

from prefect.cache_policies import NO_CACHE

OF_A_ROUND: dict[str, Any] = {"retries": 0, "cache_policy": NO_CACHE, "persist_result": False}
"""Never: the engine itself asks again when a client fails or a worker is lost, and a second go would hide that.

Nothing of a round is cached, since the run's folder says what is done. And these tasks carry no tags: for each tag of a
task run Prefect asks its concurrency service, which takes up to two seconds.
"""


def worth_another_try(task: Any, run: Any, state: Any) -> bool:
    """Whether what failed may succeed in a moment: the network or a disk did not answer.

    A `ShoalError` says what is wrong with the settings or the data, and would say so again.
    """
    try:
        state.result()
    except OSError:
        return True
    except BaseException:
        return False
    return False


OF_A_RUN: dict[str, Any] = {
    "retries": 2,
    "retry_delay_seconds": [2, 20],
    "retry_condition_fn": worth_another_try,
    "cache_policy": NO_CACHE,
    "persist_result": False,
}
"""Twice where network or disk failed: what was made before is found in its folder, so that a second go is short."""
