"""A finished run is used again only where a new one would come to the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.engine.store import lineage as lineage_module
from shoal.engine.store.code_version import GitState
from shoal.engine.store.run_folder import LINEAGE, write_lineage
from shoal.lifecycle.claim import equal_run
from shoal.lifecycle.starting import new_run
from tests.runs import stopped, straight

Make = Callable[..., Any]


@pytest.fixture
def with_code(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets the digest of Shoal's files."""
    version = lineage_module.shoal_version()

    def set_code(sha256: str) -> None:
        monkeypatch.setattr(lineage_module, "shoal_version", lambda: replace(version, sha256=sha256))

    set_code("one")
    return set_code


def test_a_finished_run_is_equal_where_settings_data_and_code_are(
    home: Path, small: Make, with_code: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small(rounds=1, data={"limit": 80})
    assert equal_run(settings) is None
    run = straight(settings)
    found = equal_run(settings)
    assert found is not None
    assert found.path == run.path
    assert equal_run(small(rounds=1, data={"limit": 80}, tracking={"experiment": "another"})) is not None
    assert equal_run(small(rounds=1, data={"limit": 80}, seed=1)) is None
    with_code("two")
    assert equal_run(settings) is None
    with_code("one")
    with monkeypatch.context() as patch:
        patch.setattr(lineage_module, "versions", lambda: {"torch": "0.1"})
        assert equal_run(settings) is None
    newest = straight(settings)
    found = equal_run(settings)
    assert found is not None
    assert found.path == newest.path


def test_a_run_of_other_code_or_of_other_data_is_never_equal(home: Path, small: Make) -> None:
    run = straight(small(rounds=1, data={"limit": 80}))
    settings = run.settings()
    lineage = run.lineage()
    assert equal_run(settings) is not None
    write_lineage(run.path / LINEAGE, replace(lineage, shoal=replace(lineage.shoal, sha256="0" * 64)))
    assert equal_run(settings) is None, "another Shoal computed it"
    write_lineage(run.path / LINEAGE, replace(lineage, data=replace(lineage.data, digest="0" * 64)))
    assert equal_run(settings) is None


def test_an_unfinished_run_is_not_equal(home: Path, small: Make) -> None:
    settings = small(rounds=2, data={"limit": 80})
    stopped(settings, "round_finished", 1)
    assert equal_run(settings) is None


def test_the_state_of_the_project_does_not_matter(home: Path, small: Make) -> None:
    """Settings and data of a run have digests of their own, and none of its numbers comes from the project's code."""
    run = straight(small(rounds=1, data={"limit": 80}))
    run.set_lineage(git=GitState("0" * 40, dirty=True))
    assert equal_run(run.settings()) is not None
    assert new_run(run.settings()).path != run.path
