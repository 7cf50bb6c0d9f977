"""When Prefect retries a task."""

from __future__ import annotations

from typing import Any

from prefect.cache_policies import NO_CACHE

NO_RETRY: dict[str, Any] = {"retries": 0, "cache_policy": NO_CACHE, "persist_result": False}
"""Options of tasks that are never retried: the engine itself repeats the work of clients that fail and of workers that
are lost, and a retry of Prefect's would hide that.

Nothing is cached, since the run's folder says what is done. The tasks have no tags: for each tag of a task run Prefect
asks its concurrency service, which takes up to two seconds.
"""


def is_io_failure(task: Any, run: Any, state: Any) -> bool:
    """Return whether a task failed because the network or a disk did not answer: a retry may succeed.

    A `ShoalError` says what is wrong with the settings or the data, and a retry would end in the same error.
    """
    try:
        state.result()
    except OSError:
        return True
    except BaseException:
        return False
    return False


RETRY_ON_IO: dict[str, Any] = {
    "retries": 2,
    "retry_delay_seconds": [2, 20],
    "retry_condition_fn": is_io_failure,
    "cache_policy": NO_CACHE,
    "persist_result": False,
}
"""Options of tasks that are retried twice where network or disk failed: a retry finds finished work in its folder."""
