"""Who reads a run gets its last state whole, or an error that names it; only resuming passes over a damaged one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import ShoalError
from shoal.engine.store.checkpoint import load_round, newest_valid
from shoal.engine.store.codec import StoreError, server_digest
from shoal.engine.store.kept_state import read_state, read_state_if_any
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.engine.store.warm_start import WarmStart
from shoal.lifecycle.starting import new_run
from tests.engine.store.test_damage import edit, flip
from tests.evaluation import evaluate_state
from tests.runs import go_on, numbers, stopped, straight

Make = Callable[..., Any]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.fixture
def whole(home: Path, small: Make) -> RunFolder:
    return straight(small(rounds=3))


def test_the_last_state_is_read_whole_or_named(whole: RunFolder) -> None:
    state = read_state(whole)
    assert state.server.round == 3
    assert server_digest(state.server) == whole.status().weights_sha256
    flip(whole.rounds / "0003" / "server.safetensors")
    named = rf"run {whole.name}: .*0003/server\.safetensors .*; `shoal run --resume .*` computes round 3 again"
    with pytest.raises(StoreError, match=named):
        read_state(whole)
    newest = newest_valid(whole)
    assert newest is not None
    assert newest.server.round == 2, "resuming goes on from the round before"
    for read in (evaluate_state, WarmStart.from_run, read_state_if_any):
        with pytest.raises(StoreError, match=r"0003/server\.safetensors"):
            read(whole)


@pytest.mark.long
@pytest.mark.parametrize("name", ["manifest.json", "memories.safetensors", "server.safetensors", ""])
def test_what_is_missing_is_named(whole: RunFolder, name: str) -> None:
    path = whole.rounds / "0003" / name
    if name:
        path.unlink()
    else:
        shutil.rmtree(path)
    with pytest.raises(StoreError, match=r"run .*rounds/0003/.* is missing; `shoal run --resume"):
        read_state(whole)
    before = whole.status().weights_sha256
    go_on(whole)
    assert server_digest(read_state(whole).server) == before, "resuming computes it again, to the same bits"


def test_a_run_without_a_round_has_no_state(home: Path, small: Make) -> None:
    run = new_run(small())
    assert read_state_if_any(run) is None
    with pytest.raises(RunError, match="has no finished round yet"):
        read_state(run)


def test_a_stopped_run_is_read_at_its_newest_round_alone(home: Path, small: Make) -> None:
    run = stopped(small(rounds=4), "round_finished", 2)
    assert read_state(run).server.round == 2
    (run.rounds / "0002" / "manifest.json").unlink()
    with pytest.raises(StoreError, match=r"0002/manifest\.json is missing"):
        read_state(run)


@pytest.mark.long
def test_an_older_round_that_is_damaged_does_not_block_resuming(home: Path, small: Make) -> None:
    settings = small(rounds=4, checkpoint={"keep": 3})
    expected = numbers(straight(settings))
    run = stopped(settings, "round_finished", 3)
    flip(run.rounds / "0002" / "memories.safetensors")
    go_on(run)
    assert numbers(run) == expected
    said = [event.message for event in run.events() if event.kind == "checkpoint_unreadable"]
    assert len(said) == 1
    assert "the run cannot return to the state of round 2" in said[0]
    # Files of clients that later rounds name are all there.
    for round in (3, 4):
        load_round(run, round)


def test_a_table_that_changed_after_the_end_is_refused_and_written_again(whole: RunFolder) -> None:
    expected = whole.table("clients")
    for name in ("rounds", "clients"):
        path = whole.path / f"{name}.parquet"
        kept = path.read_bytes()
        for damage in (flip, cut, Path.unlink):
            damage(path)
            with pytest.raises(StoreError, match=rf"run {whole.name}: .*{name}\.parquet .*--resume .* writes it again"):
                whole.table(name)
            path.write_bytes(kept)
    flip(whole.path / "clients.parquet")
    go_on(whole)
    assert whole.table("clients").equals(expected)


def test_the_tables_of_a_stopped_run_come_from_its_manifests(home: Path, small: Make) -> None:
    settings = small(rounds=3)
    run = stopped(settings, "round_finished", 2)
    assert not list(run.path.glob("*.parquet"))
    assert list(run.table("rounds")["round"]) == [1, 2]
    assert len(run.table("clients")) == 6


def test_a_status_or_events_that_changed_are_refused(whole: RunFolder) -> None:
    kept = (whole.path / "status.json").read_bytes()
    edit(whole.path / "status.json", lambda about: about.update(round=2))
    with pytest.raises(ShoalError, match=r"status\.json cannot be trusted"):
        whole.status()
    (whole.path / "status.json").unlink()
    with pytest.raises(RunError, match=r"status\.json is missing; `shoal run --resume"):
        whole.status()
    (whole.path / "status.json").write_bytes(kept)
    events = whole.path / "events.jsonl"
    lines = events.read_bytes()
    assert whole.whole_events() == whole.events()
    events.write_bytes(lines.replace(b'"round": 2', b'"round": 3', 1))
    with pytest.raises(StoreError, match=r"events\.jsonl has lost lines or been changed since"):
        whole.whole_events()
    events.write_bytes(lines[:-200])
    with pytest.raises(StoreError, match="has lost lines or been changed since"):
        whole.whole_events()
