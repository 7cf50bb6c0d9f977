"""What a round costs depends on its clients: an index is one array, and pruning lists nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from shoal.engine.store import checkpoint
from shoal.engine.store.checkpoint import Pruning, load_round, rounds_done
from shoal.engine.store.memory_index import ClientFiles, MemoryIndex
from shoal.engine.store.round_paths import inbox_path, memory_path
from shoal.engine.store.run_folder import RunFolder
from tests.runs import go_on, numbers, stopped, straight

Make = Callable[..., Any]


def digest(number: int) -> str:
    return f"{number:064x}"


def test_an_index_says_what_a_round_brought_and_replaced() -> None:
    before = MemoryIndex().after(1, (0, 1), {0: digest(1), 1: digest(2)}, {(2, 0): digest(3), (5, 0): digest(4)})
    after = before.after(2, (1, 2), {1: digest(5), 3: digest(6)}, {(2, 1): digest(7), (2, 3): digest(8)})
    assert before.files() == {
        memory_path(0, 1): digest(1),
        memory_path(1, 1): digest(2),
        inbox_path(2, 0, 1): digest(3),
        inbox_path(5, 0, 1): digest(4),
    }, "the one before is not changed"
    assert set(after.replaced) == {memory_path(1, 1), inbox_path(2, 0, 1)}
    new = {memory_path(1, 2), memory_path(3, 2), inbox_path(2, 1, 2), inbox_path(2, 3, 2)}
    assert after.files().keys() == before.files().keys() - set(after.replaced) | new
    assert after.client(2).inbox == (inbox_path(2, 1, 2), inbox_path(2, 3, 2)), "in order of the senders"
    later = after.after(3, (), {}, {(2, 0): digest(9)})
    assert later.client(2).inbox[-1] == inbox_path(2, 0, 3), "and first of the rounds"
    again = MemoryIndex.from_tensors(after.tensors())
    assert again.files() == after.files()
    assert after.client(7) == ClientFiles(7)


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

    def counted(self: Pruning, round: int, replaced: Iterable[str]) -> None:
        before = len(listed)
        closed(self, round, replaced)
        assert len(listed) == before

    monkeypatch.setattr(checkpoint, "rounds_done", rounds)
    monkeypatch.setattr(Pruning, "closed", counted)
    straight(small(method={"name": "fedpnp"}, rounds=4))
    few = len(listed)
    straight(small(method={"name": "fedpnp"}, rounds=8, seed=1))
    assert len(listed) == 2 * few
