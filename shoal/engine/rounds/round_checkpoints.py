"""The step of the loop that writes checkpoints: the initial state, and one after each round."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from shoal.engine.rounds.buffered_rounds import BufferedRounds
from shoal.engine.rounds.quarantine import Quarantine
from shoal.engine.rounds.round_state import RoundState
from shoal.engine.settings.one_thread import one_thread
from shoal.engine.store.checkpoint import (
    Checkpoint,
    Pruning,
    close_round,
    drop_after,
    manifests,
    newest_valid,
    open_round,
)
from shoal.engine.store.lineage import changes_since
from shoal.engine.store.manifest import RoundRecord
from shoal.engine.store.memory_index import MemoryIndex
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_facts import RunFacts
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.status import RUNNING
from shoal.engine.store.tables import RunTables
from shoal.engine.store.warm_start import initial_state


def newest_checkpoint(run: RunFolder) -> Checkpoint | None:
    """Return the newest valid checkpoint of a run; None without one. Remove the files of later rounds."""
    checkpoint = newest_valid(run)
    newest = -1
    if checkpoint is not None:
        newest = checkpoint.server.round
    drop_after(run, newest)
    return checkpoint


@dataclass
class RoundCheckpoints:
    """Reads and writes the checkpoints of a run, with its tables and its status.

    Args:
        facts: of the run.
        buffered: says how old the states are from which clients begin.
        tables: of the run; they get every closed round.
        quarantine: the clients that the status names.
        tell: logs an event (its kind, and facts by name).
    """

    facts: RunFacts
    buffered: BufferedRounds
    tables: RunTables
    quarantine: Quarantine
    tell: Callable[..., None]
    _pruning: Pruning = field(init=False)

    def begin(self) -> RoundState:
        """Write the initial state as round 0, and return it."""
        with one_thread():
            state = RoundState(initial_state(self.facts), MemoryIndex())
        open_round(self.facts.run, state.server, state.memory_index)
        close_round(self.facts.run, state.server, state.memory_index, None)
        return state

    def resume(self, round: int, lost: Callable[[int], None]) -> Iterator[RoundRecord]:
        """Resume after a round, and yield the record of every closed round.

        Args:
            round: that of the newest valid checkpoint.
            lost: called with each round whose manifest is unreadable.
        """
        self._tell_changes(round)

        def tell_lost(number: int, why: str) -> None:
            message = f"round {number} is missing from the tables: {why}"
            self.tell("manifest_unreadable", round=number, message=message)
            lost(number)

        for manifest in manifests(self.facts.run, round, tell_lost):
            self.tables.add(manifest)
            if manifest.record is not None:
                yield manifest.record
        self.tables.begin()

    def begin_pruning(self) -> None:
        """Begin to remove old states, but for as many as the settings keep and those from which clients still train."""
        keep = self.facts.settings.checkpoint.keep + self.buffered.oldest
        self._pruning = Pruning(self.facts.run, keep)

    def close(self, state: RoundState, record: RoundRecord) -> None:
        """Close the checkpoint of a round, and update tables and status.

        This is no task run, which would cost more than the few milliseconds of the work itself.
        """
        run = self.facts.run
        manifest = close_round(run, state.server, state.memory_index, record)
        self._pruning.closed(state.round, state.memory_index)
        shutil.rmtree(RoundPaths(run.path, state.round).work, ignore_errors=True)
        self.tables.add(manifest)
        self.tables.write()
        rounds = self.facts.settings.rounds
        run.set_status(RUNNING, state.round, rounds=rounds, quarantined=self.quarantine.clients)

    def _tell_changes(self, round: int) -> None:
        """Log, before a run resumes, which code or packages have changed since its start."""
        changes = changes_since(self.facts.run.lineage())
        if changes:
            message = (
                f"resumes after round {round} with other software: {'; '.join(changes)}; numbers may differ in bits"
            )
            self.tell("software_changed", round=round, message=message)
