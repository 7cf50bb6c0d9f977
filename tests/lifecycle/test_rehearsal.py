"""A plan of a run: its bytes are those of the run, and nothing of the plan stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from shoal.cli.run import plan_table, run
from shoal.core.errors import ShoalError
from shoal.engine.settings import places
from shoal.engine.store.run_order import in_order
from shoal.lifecycle import rehearsal
from shoal.lifecycle.rehearsal import rehearse
from tests.runs import straight

Make = Callable[..., Any]


@pytest.mark.long
@pytest.mark.parametrize("fraction", [1.0, 0.67])
def test_bytes_of_the_plan_are_those_of_the_run(home: Path, small: Make, fraction: float) -> None:
    settings = small(participation={"fraction": fraction}, evaluate={"every": 2})
    plan = rehearse(settings)
    assert not places.runs().exists()
    run = straight(settings)
    rounds = run.table("rounds")
    assert plan.bytes == {way: int(rounds[f"bytes_{way}"].sum()) for way in ("up", "down", "d2d")}
    assert (plan.clients, plan.a_round, plan.rounds) == (3, int(rounds["clients"].iloc[0]), 3)
    assert plan.samples == (80, 80, 80)
    assert plan.seconds is not None
    assert plan.seconds > 0


def test_a_round_that_does_not_wait_counts_its_answers(home: Path, small: Make) -> None:
    settings = small(rounds=3, method={"name": "fedcc"}, participation={"buffer": 2})
    plan = rehearse(settings)
    assert plan.bytes is not None
    run = straight(settings)
    assert plan.bytes["up"] == int(run.table("clients")["bytes_up"].sum())


def test_time_follows_samples_and_slots(home: Path, small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four clients of which the median one works: uneven ones take as long as their samples say."""
    measured = []

    def timed(method: Any, server: Any, basis: Any, table: Any, number: int) -> tuple[float, dict[str, int]]:
        measured.append(table.counts()[number])
        return 6.0, {"up": 1, "down": 1, "d2d": 0}

    monkeypatch.setattr(rehearsal, "second_round", timed)
    uneven = {"kind": "dirichlet", "beta": 0.5, "clients": 4, "minimum": 10}
    plan = rehearse(small(partition=uneven, workers={"slots": 2}))
    min_samples, _, max_samples = plan.samples
    (samples,) = measured
    assert min_samples <= samples <= max_samples
    assert plan.seconds == pytest.approx(3 * 6.0 / samples * 240 / 2)


def test_a_method_of_one_round_is_measured(home: Path, small: Make) -> None:
    kfed = rehearse(small(method={"name": "kfed"}, data={"name": "gaussian", "options": {"samples": 60}}))
    assert kfed.seconds is not None


def test_the_plan_is_shown_in_words(home: Path, small: Make) -> None:
    out = Console(width=120, record=True)
    out.print(plan_table(rehearse(small(rounds=1))))
    text = out.export_text()
    assert "3, of 80 to 80 training samples" in text
    assert "bytes to the server" in text
    with pytest.raises(ShoalError, match="give no --resume"):
        run(resume="latest", dry_run=True)
    assert not in_order(places.runs())
