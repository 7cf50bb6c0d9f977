"""A task run and its runner share one piece of work, which runs once: the first of them to call it does it."""

from __future__ import annotations

import pytest

from shoal.tasks.prefect.once import SingleExecution


def test_work_is_done_once_by_the_first_caller() -> None:
    times: list[int] = []

    def work() -> int:
        times.append(1)
        return len(times)

    execution = SingleExecution(work)
    execution()
    execution()  # a task run that Prefect begins late, or the runner that had lost sight of it
    assert (execution.outcome.result(), len(times)) == (1, 1)


def test_what_the_work_raised_is_its_outcome() -> None:
    def work() -> None:
        raise ValueError("odd")

    execution = SingleExecution(work)
    with pytest.raises(ValueError, match="odd"):
        execution()
    with pytest.raises(ValueError, match="odd"):
        execution.outcome.result()
