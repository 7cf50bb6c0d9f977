"""What a round costs depends on its clients: rows wait beside tables, indices share, pruning lists nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from shoal.engine.rounds import round_checkpoints as rounds_module
from shoal.engine.store import checkpoint, memory_index, run_folder
from shoal.engine.store.checkpoint import Pruning, load_index, load_round, rounds_done
from shoal.engine.store.codec import StoreError, read_sealed, write_sealed
from shoal.engine.store.memory_index import IndexChange, MemoryIndex
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.contract.base import Server
from tests.runs import go_on, numbers, stopped, straight

Make = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def rows(*rounds: int) -> list[dict[str, Any]]:
    return [{"round": round, "client": client, "loss": round + client / 7} for round in rounds for client in (0, 1)]


def test_rows_that_wait_are_read_with_their_table(folder: RunFolder) -> None:
    folder.set_table("clients", rows(1))
    folder.add_rows("clients", rows(2))
    folder.add_rows("clients", [{**row, "acc": 0.5} for row in rows(3)])
    whole = pd.DataFrame([*rows(1, 2), *({**row, "acc": 0.5} for row in rows(3))])
    pd.testing.assert_frame_equal(folder.table("clients"), whole)
    folder.merge_new_rows("clients")
    assert not list(folder.path.glob("*.jsonl"))
    pd.testing.assert_frame_equal(folder.table("clients"), whole)


def test_a_crash_while_rows_are_written_loses_and_doubles_none(folder: RunFolder) -> None:
    folder.set_table("clients", rows(1))
    folder.add_rows("clients", rows(2))
    waiting = (folder.path / "clients.new.jsonl").read_bytes()
    folder.merge_new_rows("clients")
    (folder.path / "clients.new.jsonl").write_bytes(waiting)  # written into the table, and not forgotten yet
    pd.testing.assert_frame_equal(folder.table("clients"), pd.DataFrame(rows(1, 2)))
    (folder.path / "clients.new.jsonl").write_bytes(waiting + b'{"round": 3, "cli')
    pd.testing.assert_frame_equal(folder.table("clients"), pd.DataFrame(rows(1, 2)))
    folder.set_table("clients", rows(1))  # gone back to round 1
    pd.testing.assert_frame_equal(folder.table("clients"), pd.DataFrame(rows(1)))


def test_many_rows_are_put_into_the_table_now_and_then(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "MIN_MERGE_BYTES", 400)
    settled: list[int] = []
    settle = RunFolder.merge_new_rows

    def count_merges(self: RunFolder, name: str) -> None:
        settle(self, name)
        settled.append(len(pd.read_parquet(self.path / f"{name}.parquet")))

    monkeypatch.setattr(RunFolder, "merge_new_rows", count_merges)
    folder.set_table("clients", [])
    for round in range(1, 201):
        folder.add_rows("clients", rows(round))
        assert folder.table("clients")["round"].iloc[-1] == round
    assert len(settled) < 12
    assert sum(settled) < 400 * 6, "each row is written a few times"
    pd.testing.assert_frame_equal(folder.table("clients"), pd.DataFrame(rows(*range(1, 201))))


def test_an_index_says_what_a_round_brought_and_dropped() -> None:
    before = MemoryIndex().after(
        IndexChange((0, 1), {0: "memory/0/0001", 1: "memory/1/0001"}, {2: ("in/1-0",)}, {"in/1-0": "d"})
    )
    after = before.after(
        IndexChange((1, 2), {1: "memory/1/0002"}, {2: ("in/2-1",)}, {"memory/1/0002": "e", "in/2-1": "f"})
    )
    assert before.files() == {"memory/0/0001", "memory/1/0001", "in/1-0"}, "the one before is not changed"
    assert after.files() == {"memory/0/0001", "memory/1/0002", "in/2-1"}
    assert set(after.dropped) == {"memory/1/0001", "in/1-0"}
    assert set(after.new) == {"memory/1/0002", "in/2-1"}
    assert dict(after.sha256.items()) == {"memory/1/0002": "e", "in/2-1": "f"}
    assert MemoryIndex.from_json(after.to_json()) == after


@pytest.mark.long
@pytest.mark.parametrize("keep", [1, 2, 3])
@pytest.mark.parametrize("stop", [None, 4])
def test_only_what_kept_states_name_is_left(home: Path, small: Make, keep: int, stop: int | None) -> None:
    settings = small(method={"name": "fedpnp"}, rounds=7, checkpoint={"keep": keep}, participation={"fraction": 0.67})
    whole = straight(settings)
    run = whole
    if stop is not None:
        run = stopped(settings, "round_finished", stop)
        go_on(run)
        assert numbers(run) == numbers(whole)
    full = [round for round in rounds_done(run) if checkpoint.has_server(run, round)]
    assert full == list(range(8 - keep, 8))
    named = set().union(*(load_round(run, round).memory_index.files() for round in full))
    assert {str(path.relative_to(run.path)) for path in run.memory.rglob("*.safetensors")} == named


@pytest.mark.long
def test_a_round_does_not_look_through_what_is_there(home: Path, small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the rounds so far nor the memories of others are listed after the start."""
    listed: list[str] = []
    done, closed = checkpoint.rounds_done, Pruning.closed

    def rounds(run: RunFolder) -> list[int]:
        listed.append("rounds")
        return done(run)

    def counted(self: Pruning, round: int, index: MemoryIndex) -> None:
        before = len(listed)
        closed(self, round, index)
        assert len(listed) == before

    monkeypatch.setattr(checkpoint, "rounds_done", rounds)
    monkeypatch.setattr(Pruning, "closed", counted)
    straight(small(method={"name": "fedpnp"}, rounds=4))
    few = len(listed)
    straight(small(method={"name": "fedpnp"}, rounds=8, seed=1))
    assert len(listed) == 2 * few


@pytest.mark.long
def test_an_index_is_written_as_changes_and_now_and_then_whole(
    home: Path, small: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small(method={"name": "fedpnp"}, rounds=9, participation={"fraction": 0.34})
    reference = straight(settings)
    monkeypatch.setattr(memory_index, "MAX_WHOLE_ENTRIES", 0)
    kinds: dict[int, bool] = {}
    close = checkpoint.close_round

    def closed(run: RunFolder, server: Server, index: MemoryIndex, record: Any) -> Any:
        manifest = close(run, server, index, record)
        kinds[server.round] = "since" in read_sealed(RoundPaths(run.path, server.round).memory_index)
        assert load_round(run, server.round).memory_index == index
        return manifest

    monkeypatch.setattr(rounds_module, "close_round", closed)
    run = stopped(settings, "round_finished", 6)
    go_on(run)
    assert numbers(run) == numbers(reference)
    assert load_round(run, 9).memory_index == load_round(reference, 9).memory_index
    assert {True, False} == {kinds[round] for round in range(2, 10)}
    oldest_kept = 8
    base = max(round for round in kinds if not kinds[round] and round <= oldest_kept)
    left = sorted(int(path.parent.name) for path in run.rounds.glob("*/links.json"))
    assert left == list(range(base, 10))


def test_a_change_that_does_not_follow_is_refused(home: Path, small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_index, "MAX_WHOLE_ENTRIES", 0)
    settings = small(method={"name": "fedpnp"}, rounds=9, participation={"fraction": 0.34}, checkpoint={"keep": 9})
    run = straight(settings)
    changes = [r for r in range(1, 10) if "since" in read_sealed(RoundPaths(run.path, r).memory_index)]
    path = RoundPaths(run.path, changes[0]).memory_index
    write_sealed(path, {**read_sealed(path), "since": 7})
    with pytest.raises(StoreError, match=f"it follows round 7, expected {changes[0] - 1}"):
        load_index(run, changes[0])
