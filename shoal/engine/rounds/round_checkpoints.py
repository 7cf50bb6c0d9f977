"""The step of the loop that writes checkpoints: the initial state, and one after each round."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from shoal.engine.rounds.buffered_rounds import BufferedRounds
from shoal.engine.rounds.client_history import ClientHistory
from shoal.engine.rounds.round_state import RoundState
from shoal.engine.settings.one_thread import one_thread
from shoal.engine.store.checkpoint import (
    Pruning,
    close_round,
    manifests,
    open_round,
)
from shoal.engine.store.lineage import changes_since
from shoal.engine.store.manifest import RoundRecord
from shoal.engine.store.memory_index import MemoryIndex
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_facts import RunFacts
from shoal.engine.store.status import RUNNING
from shoal.engine.store.tables import make_tables
from shoal.engine.store.warm_start import initial_state


@dataclass
class RoundCheckpoints:
    """Reads and writes the checkpoints of a run, and with them its status, and at the end its tables.

    Args:
        facts: of the run.
        buffered: says how old the states are from which clients begin.
        history: gets every closed round.
        tell: logs an event (its kind, and facts by name).
        removal: removes the files of closed rounds; a run waits for it before it ends.
    """

    facts: RunFacts
    buffered: BufferedRounds
    history: ClientHistory
    tell: Callable[..., None]
    removal: ThreadPoolExecutor
    _pruning: Pruning = field(init=False)
    lost: set[int] = field(default_factory=set, init=False)
    """The closed rounds whose manifests are missing or damaged."""

    def begin(self) -> RoundState:
        """Write the initial state as round 0, and return it."""
        with one_thread():
            state = RoundState(initial_state(self.facts), MemoryIndex())
        open_round(self.facts.run, state.server, state.memory_index)
        close_round(self.facts.run, state.round, None)
        return state

    def resume(self, round: int) -> None:
        """Resume after the round of the newest valid checkpoint."""
        self._tell_changes(round)
        for manifest in manifests(self.facts.run, round, self._tell_lost):
            if manifest.record is not None:
                self.history.add(manifest.record)

    def begin_pruning(self) -> None:
        """Begin to remove old states, but for as many as the settings keep and those from which clients still train."""
        keep = self.facts.settings.checkpoint.keep + self.buffered.oldest
        self._pruning = Pruning(self.facts.run, keep)

    def close(self, after: RoundState, record: RoundRecord) -> None:
        """Close the checkpoint of a round, and update the status.

        This is no task run, which would cost more than the few milliseconds of the work itself.

        Args:
            after: the state after the round.
            record: what the round did.
        """
        run = self.facts.run
        close_round(run, after.round, record)
        self._pruning.closed(after.round, after.memory_index.replaced)
        # Many large files, while the next round trains.
        self.removal.submit(shutil.rmtree, RoundPaths(run.path, after.round).work, ignore_errors=True)
        self.history.add(record)
        run.set_status(
            RUNNING,
            after.round,
            rounds=self.facts.settings.rounds,
            quarantined=tuple(self.history.quarantined) or None,
        )

    def write_tables(self, round: int) -> None:
        """Write the tables of all rounds up to the last one."""
        self.facts.run.set_tables(make_tables(manifests(self.facts.run, round, self._tell_lost)))

    def _tell_lost(self, round: int, why: str) -> None:
        """Log, once, that the manifest of a round is missing or damaged."""
        if round not in self.lost:
            self.lost.add(round)
            self.tell("manifest_unreadable", round=round, message=f"round {round} is missing from the tables: {why}")

    def _tell_changes(self, round: int) -> None:
        """Log, before a run resumes, which code or packages have changed since its start."""
        changes = changes_since(self.facts.run.lineage())
        if changes:
            message = (
                f"resumes after round {round} with other software: {'; '.join(changes)}; numbers may differ in bits"
            )
            self.tell("software_changed", round=round, message=message)
