"""What happens to each run of a sweep: its rounds, its report, and once it is complete nothing more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.status import FAILED
from shoal.lifecycle.driving import ROUNDS, drive
from shoal.lifecycle.starting import new_run
from shoal.sweeps.sweep import RunFailed, open_sweep, without_registration

Make = Callable[..., Any]


@pytest.mark.long
def test_a_run_that_was_cut_short_after_its_rounds_gets_its_report_and_is_left_alone_then(
    home: Path, small: Make
) -> None:
    settings = small(rounds=1)
    run = new_run(settings)
    drive(run, stages=[ROUNDS])
    assert run.is_finished()
    report = run.path / "report.html"
    assert not report.exists()
    labels: list[str] = []

    def watch(label: str, run: RunFolder) -> None:
        labels.append(label)

    with open_sweep(settings, watch) as sweep:
        sweep.complete(run, "first")
        assert report.exists()
        events = len(list(run.events()))
        report.unlink()
        sweep.complete(run, "second")
    assert not report.exists(), "a complete run stays as it is"
    assert len(list(run.events())) == events
    assert labels == ["first"]


def test_a_run_that_fails_by_itself_is_told_apart(home: Path, small: Make) -> None:
    settings = small(method={"name": "fedcc"}, local={"lr": 1e38}, rounds=2)
    run = new_run(settings)
    with open_sweep(settings) as sweep, pytest.raises(RunFailed, match="0 of 3 clients succeeded"):
        sweep.complete(run, "wild")
    assert run.status().state == FAILED


def test_models_of_a_sweep_are_no_new_versions_unless_the_settings_say_so() -> None:
    assert without_registration({"rounds": 3}) == {"rounds": 3, "tracking": {"register_as": "none"}}
    assert without_registration({"tracking": {"register_as": "mine"}}) == {"tracking": {"register_as": "mine"}}
