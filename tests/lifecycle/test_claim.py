"""Which run a night or a firing of the pipeline works on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.engine.store.run_folder import RunError
from shoal.engine.store.warm_start import WarmStart
from shoal.lifecycle.claim import BEGAN, claimed, claimed_nights, claimed_run
from shoal.lifecycle.nights import judged_champion
from shoal.review.served.judging import Decision, HeldOutScores
from shoal.review.served.promotion import decision_of, keep_decision
from tests.runs import straight

Make = Callable[..., Any]


def test_a_run_that_was_cut_short_is_resumed_only_from_the_same_state_and_data(home: Path, small: Make) -> None:
    origin = WarmStart.from_run(straight(small(rounds=1)))
    settings = small(rounds=2, seed=5)
    with pytest.raises(KeyboardInterrupt), claimed_run(settings, origin=origin) as cut:
        raise KeyboardInterrupt
    data = cut.lineage().data.digest

    def next_run(**given: Any) -> str:
        with claimed_run(settings, **given) as run:
            return run.name

    assert next_run() != cut.name
    assert next_run(origin=origin, data="of another version") != cut.name
    with claimed_run(settings, origin=origin, data=data) as run:
        assert run.lineage().origin.server_sha256 == origin.sha256


def test_two_nights_of_one_set_are_not_at_work_at_once(home: Path, small: Make) -> None:
    run = straight(small(rounds=1))
    with claimed_nights("photos"), claimed_nights("others"):
        with pytest.raises(RunError, match=r"another night works on 'photos'"), claimed_nights("photos"):
            pass
        with claimed(run), pytest.raises(RunError, match="in use by another process"), claimed(run):
            pass
    with claimed_nights("photos"):
        pass


def test_a_first_champion_whose_night_was_cut_short_is_none_yet(home: Path, small: Make) -> None:
    run = straight(small(rounds=1))
    assert judged_champion(None) is None
    assert judged_champion(run) is run
    run.event(BEGAN)
    assert judged_champion(run) is None
    first = Decision(True, "it is the first", "", 0.01, HeldOutScores(run.name, 50, {"neighbours": 0.5}), None)
    keep_decision(run, first, [])
    assert judged_champion(run) is run
    assert decision_of(run) == first
