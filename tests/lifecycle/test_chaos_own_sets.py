"""The short version of `make chaos` for sets of the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.nights import KINDS as NIGHT_KINDS
from tests.chaos.nights import nights, planned_nights
from tests.chaos.own_sets import KINDS, own_sets, planned_sets

SHORT = ["data add --append killed", "data add --force killed", "a night's new files, killed"]


@pytest.mark.long
def test_a_set_that_is_killed_while_it_is_replaced_is_the_old_one_or_the_new_one(home: Path, tmp_path: Path) -> None:
    outcomes = list(own_sets(tmp_path / "tries", SHORT, seed=0))
    wrong = [outcome for outcome in outcomes if not outcome.same or outcome.traceback]
    assert not wrong, "\n".join(f"{each.event}: {each.note}" for each in wrong)


@pytest.mark.slow
def test_dvc_has_the_new_set_once_the_command_is_repeated(home: Path, tmp_path: Path) -> None:
    (outcome,) = own_sets(tmp_path / "tries", ["data add --append killed, in DVC"], seed=0)
    assert outcome.same, outcome.note
    assert not outcome.traceback


@pytest.mark.slow
def test_the_night_after_one_that_was_killed_comes_to_the_same(home: Path, tmp_path: Path) -> None:
    (outcome,) = nights(tmp_path / "nights", ["a whole night killed, in DVC"], seed=0)
    assert outcome.same, outcome.note
    assert not outcome.traceback


def test_the_long_version_has_every_kind() -> None:
    assert len(planned_sets(100, 0)) == 100
    assert len(planned_sets(230, 0)) == 230
    assert planned_sets(100, 0) == planned_sets(100, 0) != planned_sets(100, 1)
    assert set(planned_sets(100, 0)) == set(KINDS)
    assert len(planned_nights(40, 0)) == 40
    assert set(planned_nights(40, 0)) == set(NIGHT_KINDS)
