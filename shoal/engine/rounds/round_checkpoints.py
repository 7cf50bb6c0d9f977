"""The step of the loop that writes checkpoints: the initial state, and one after each round."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from shoal.engine.rounds.active_run import ActiveRun
from shoal.engine.rounds.client_history import ClientHistory
from shoal.engine.rounds.quarantine import Quarantine
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
from shoal.engine.store.status import RUNNING
from shoal.engine.store.tables import make_tables
from shoal.engine.store.warm_start import initial_state
from shoal.methods.contract.base import Server


def newest_checkpoint(active_run: ActiveRun) -> Checkpoint | None:
    """Return the newest valid checkpoint of a run; None without one. Remove the files of later rounds."""
    checkpoint = newest_valid(active_run.run)
    newest = -1
    if checkpoint is not None:
        newest = checkpoint.server.round
    drop_after(active_run.run, newest)
    return checkpoint


@dataclass
class RoundCheckpoints:
    """Reads and writes the checkpoints of a run, and with them its status, and at the end its tables.

    Args:
        active_run: the run.
        history: gets every closed round.
        quarantine: the clients that the status names.
        tell: logs an event (its kind, and facts by name).
    """

    active_run: ActiveRun
    history: ClientHistory
    quarantine: Quarantine
    tell: Callable[..., None]
    _pruning: Pruning = field(init=False)
    _lost: set[int] = field(default_factory=set, init=False)
    """The rounds whose manifests are missing or damaged."""

    def begin(self) -> Server:
        """Write the initial state as round 0, and return it."""
        with one_thread():
            server = initial_state(self.active_run.opened)
        self.active_run.keep_state(server, MemoryIndex())
        open_round(self.active_run.run, server, MemoryIndex())
        close_round(self.active_run.run, server.round, None)
        return server

    def resume(self, checkpoint: Checkpoint, lost: Callable[[int], None]) -> Iterator[RoundRecord]:
        """Resume from a checkpoint, and yield the record of every closed round.

        Args:
            checkpoint: the newest valid one.
            lost: called with each round whose manifest is unreadable.
        """
        round = checkpoint.server.round
        self._tell_changes(round)
        self.active_run.keep_state(checkpoint.server, checkpoint.memory_index)
        for manifest in manifests(self.active_run.run, round, self._tell_lost):
            if manifest.record is not None:
                self.history.add(manifest.record)
                yield manifest.record
        for number in sorted(self._lost):
            lost(number)

    def begin_pruning(self) -> None:
        """Begin to remove old states, but for as many as the settings keep and those from which clients still train."""
        settings = self.active_run.opened.settings
        schedule = self.active_run.answer_schedule
        older = 0
        if schedule is not None:
            older = schedule.oldest(settings.rounds)
        self._pruning = Pruning(self.active_run.run, settings.checkpoint.keep + older)

    def close(self, server: Server, record: RoundRecord) -> None:
        """Close the checkpoint of a round, and update the status.

        This is not a unit of work, which would cost more than the few milliseconds of the work itself.
        """
        run = self.active_run.run
        close_round(run, server.round, record)
        before = self.active_run.state(server.round - 1)[1]
        self._pruning.closed(server.round, before.replaced_by(self.active_run.state(server.round)[1]))
        shutil.rmtree(RoundPaths(run.path, server.round).work, ignore_errors=True)
        self.history.add(record)
        rounds = self.active_run.opened.settings.rounds
        run.set_status(RUNNING, server.round, rounds=rounds, quarantined=self.quarantine.clients)

    def write_tables(self, round: int) -> None:
        """Write the tables of all rounds up to the last one."""
        self.active_run.run.set_tables(make_tables(manifests(self.active_run.run, round, self._tell_lost)))

    def _tell_lost(self, round: int, why: str) -> None:
        """Log, once, that the manifest of a round is missing or damaged."""
        if round not in self._lost:
            self._lost.add(round)
            self.tell("manifest_unreadable", round=round, message=f"round {round} is missing from the tables: {why}")

    def _tell_changes(self, round: int) -> None:
        """Log, before a run resumes, which code or packages have changed since its start."""
        changes = changes_since(self.active_run.run.lineage())
        if changes:
            message = (
                f"resumes after round {round} with other software: {'; '.join(changes)}; numbers may differ in bits"
            )
            self.tell("software_changed", round=round, message=message)
