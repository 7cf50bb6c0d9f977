"""A finished run is used again only where a new one would come to the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.engine.store import lineage as lineage_module
from shoal.engine.store.lineage import GitState
from shoal.engine.store.run_folder import LINEAGE, write_lineage
from shoal.lifecycle.equal_run import equal_run
from shoal.lifecycle.starting import new_run
from tests.runs import stopped, straight

Make = Callable[..., Any]


@pytest.fixture
def at_commit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the commit that the code is at."""

    def set_commit(commit: str | None, *, dirty: bool | None = False) -> None:
        monkeypatch.setattr(lineage_module, "git_state", lambda root: GitState(commit, dirty, None))

    set_commit("one")
    return set_commit


def test_a_finished_run_is_equal_where_settings_data_and_code_are(
    home: Path, small: Make, at_commit: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small(rounds=1, data={"limit": 80})
    assert equal_run(settings) is None
    run = straight(settings)
    found = equal_run(settings)
    assert found is not None
    assert found.path == run.path
    assert equal_run(small(rounds=1, data={"limit": 80}, tracking={"experiment": "another"})) is not None
    assert equal_run(small(rounds=1, data={"limit": 80}, seed=1)) is None
    at_commit("two")
    assert equal_run(settings) is None
    at_commit("one", dirty=True)
    assert equal_run(settings) is None, "changes that are in no commit"
    at_commit("one")
    with monkeypatch.context() as patch:
        patch.setattr(lineage_module, "versions", lambda: {"torch": "0.1"})
        assert equal_run(settings) is None
    newest = straight(settings)
    found = equal_run(settings)
    assert found is not None
    assert found.path == newest.path


def test_a_run_of_code_with_changes_or_of_other_data_is_never_equal(
    home: Path, small: Make, at_commit: Callable[..., None]
) -> None:
    settings = small(rounds=1, data={"limit": 80})
    at_commit("one", dirty=True)
    straight(settings)
    at_commit("one")
    assert equal_run(settings) is None
    run = straight(settings)
    assert equal_run(settings) is not None
    lineage = run.lineage()
    write_lineage(run.path / LINEAGE, replace(lineage, data=replace(lineage.data, digest="0" * 64)))
    assert equal_run(settings) is None


def test_an_unfinished_run_is_not_equal(home: Path, small: Make, at_commit: Callable[..., None]) -> None:
    settings = small(rounds=2, data={"limit": 80})
    stopped(settings, "round_finished", 1)
    assert equal_run(settings) is None


def test_without_git_the_installed_versions_decide(home: Path, small: Make, at_commit: Callable[..., None]) -> None:
    settings = small(rounds=1, data={"limit": 80})
    at_commit(None, dirty=None)
    straight(settings)
    assert equal_run(settings) is not None
    assert new_run(settings).path != equal_run(settings).path  # type: ignore[union-attr]
