"""A task run and its runner share one piece of work, which runs once: the first of them to call it does it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import ShoalError
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.starting import new_run
from shoal.tasks.prefect import stages
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


@pytest.mark.parametrize("away", [True, False])
def test_a_run_goes_on_if_the_site_that_it_lost_is_back(
    away: bool, home: Path, small: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def drive(run: RunFolder, **others: object) -> int:
        tries.append(run)
        if away and len(tries) == 1:
            run.event("site_away", message="site north is not connected")
        if len(tries) < 3:
            raise ShoalError("the connection ended")
        return 3

    monkeypatch.setattr(stages, "drive", drive)
    monkeypatch.setattr(stages, "record_flow_run", lambda run: None)
    monkeypatch.setattr(stages, "get_run_logger", lambda: logging.getLogger("flow"))
    with pytest.raises(ShoalError, match="the connection ended"):
        stages.drive_as_task_runs(new_run(small()))
    assert len(tries) == 1 + away
