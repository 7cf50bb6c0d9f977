"""The round loop: sample clients, train, aggregate, account, evaluate, checkpoint; again until done.

`Engine.round` is the algorithm. The engine knows messages and files, and nothing of any method. Each unit of work goes
through a `Runner`, which decides where it is executed and shown: plain threads here, Prefect tasks in a flow.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from shoal.engine.rounds.active_run import ActiveRun, Call, activate
from shoal.engine.rounds.aggregation_step import AggregationStep
from shoal.engine.rounds.client_history import ClientHistory
from shoal.engine.rounds.client_sampling import ClientSampling
from shoal.engine.rounds.evaluation_step import EvaluationStep
from shoal.engine.rounds.outcomes import RoundOutcomes
from shoal.engine.rounds.private_run import PrivateRun
from shoal.engine.rounds.quarantine import Quarantine
from shoal.engine.rounds.round_checkpoints import RoundCheckpoints, newest_checkpoint
from shoal.engine.rounds.round_events import RoundEvents
from shoal.engine.rounds.round_record import RoundClock, make_record
from shoal.engine.rounds.run_ending import record_early_ending
from shoal.engine.rounds.simulated_time import simulated_time
from shoal.engine.rounds.training import Training
from shoal.engine.rounds.units import Runner
from shoal.engine.store.checkpoint import Checkpoint
from shoal.engine.store.codec import server_digest
from shoal.engine.store.manifest import RoundRecord
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.run_events import Observer, observing
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.status import RUNNING
from shoal.methods.contract.base import Server


@dataclass
class Engine:
    """The engine of one run, which does all rounds that are left.

    Args:
        run: its folder.
        call: has a worker do a request (`shoal.engine.cluster.pool_interface.Pool.call`).
        runner: executes units of work.
        slots: number of requests that are worked on at once.
        observers: called with every event when it is logged (a dictionary with at least `event`).
    """

    run: RunFolder
    call: Call
    runner: Runner
    slots: int = 1
    observers: Sequence[Observer] = ()
    writes_ledger: ClassVar[bool] = True
    """Whether private updates are entered in the ledger of their data set; a rehearsal sends none."""
    sampling_type: ClassVar[type[ClientSampling]] = ClientSampling
    """Class that draws the clients of rounds."""
    active_run: ActiveRun = field(init=False)
    history: ClientHistory = field(init=False)
    quarantine: Quarantine = field(init=False)
    events: RoundEvents = field(init=False)
    private: PrivateRun = field(init=False)
    sampling: ClientSampling = field(init=False)
    training: Training = field(init=False)
    aggregation: AggregationStep = field(init=False)
    evaluation: EvaluationStep = field(init=False)
    checkpoints: RoundCheckpoints = field(init=False)
    rounds_done: int = field(default=0, init=False)

    def run_to_end(self) -> Server:
        """Do all rounds that are left.

        Returns:
            The final server state.

        Raises:
            RunStopped: an observer ended the run. ShoalError: it failed. KeyboardInterrupt: it was interrupted. Each
                such run can be resumed.
        """
        observed = observing(self.run.path, self.observers)
        active = activate(ActiveRun(self.run, self.call))
        recorded = record_early_ending(self.run, lambda: self.rounds_done)
        with self.run.locked(), observed, active as self.active_run, recorded:
            server = self.start()
            self.rounds_done = server.round
            while not self.ended(server):
                server = self.round(server)
                self.rounds_done = server.round
            self.finish(server)
            return server

    def round(self, server: Server) -> Server:
        """Do one round.

        Args:
            server: the state before it.

        Returns:
            The state after it, whose checkpoint is closed.

        Raises:
            RoundFailed: too few clients succeeded.
        """
        round = server.round + 1
        clock = RoundClock()
        outcomes = RoundOutcomes(self.opened.settings.participation.retries)

        # 1. Sample the clients of the round; some may drop out.
        clients = self.sampling.draw(server, outcomes)
        needed = max(1, math.ceil(self.opened.settings.participation.minimum * len(clients)))
        self.events.started(round, len(clients), outcomes)
        while clients:
            # 2. Train them on the workers, in cohorts. A client that fails is tried again.
            self.training.train(round, clients, outcomes)
            clock.end_training()
            # 3. Aggregate their updates into the next state. A client whose message is refused is left out.
            self.aggregation.aggregate(round, outcomes, needed)
            # If refusals leave too few clients, draw others in their place.
            clients = []
            if len(outcomes.done) < needed:
                clients = self.sampling.draw_others(server, outcomes)
        self.events.left_out(round, outcomes)
        outcomes.check_enough(round, needed, self.quarantine.clients)

        # 4. Account for what the new state reveals of its clients, before it leaves the server.
        spent = self.private.account(round, outcomes.done)
        following = self.active_run.state(round)[0]
        clock.end_aggregation()

        # 5. Evaluate the new state.
        measured = self.evaluation.evaluate(following, final=self.ended(following))
        metrics = measured | spent | simulated_time(self.active_run, round, outcomes)
        seconds = clock.end_evaluation()

        # 6. Close the checkpoint: from now on the round is done.
        record = make_record(round, outcomes, metrics, seconds)
        self.checkpoint(following, replace(record, refusals=self.history.refused_by(record)))
        self.events.finished(round, outcomes, metrics, seconds.round)
        return following

    @property
    def opened(self) -> OpenedRun:
        """The run's settings, partition and method."""
        return self.active_run.opened

    def checkpoint(self, server: Server, record: RoundRecord) -> None:
        """Close the round's checkpoint."""
        self.checkpoints.close(server, record)

    # --- beginning and end ----------------------------------------------------------------------------------------

    def start(self) -> Server:
        """Return the state of the newest valid checkpoint, or the initial state, which is written as round 0."""
        checkpoint = newest_checkpoint(self.active_run)
        self.make_parts()
        if checkpoint is None:
            server = self.checkpoints.begin()
        else:
            server = self.resume(checkpoint)
        for kind, message in self.private.resume():
            self.tell(kind, round=server.round, message=message)
        self.checkpoints.begin_pruning()
        rounds = self.opened.settings.rounds
        self.run.set_status(RUNNING, server.round, rounds=rounds)
        self.tell("resumed" if server.round else "started", round=server.round, rounds=rounds)
        return server

    def make_parts(self) -> None:
        """Make the objects that do the steps of a round."""
        run = self.active_run
        self.history = ClientHistory()
        self.private = PrivateRun.from_opened(self.opened, kept=self.writes_ledger)
        self.quarantine = Quarantine(self.history)
        self.events = RoundEvents(self.quarantine, self.tell)
        self.sampling = self.sampling_type(run, self.quarantine)
        self.training = Training(run, self.runner, self.slots, self.history, self.tell, self.private.ask)
        self.aggregation = AggregationStep(run, self.runner, self.training, self.tell)
        self.evaluation = EvaluationStep(run, self.runner, self.slots, self.tell)
        self.checkpoints = RoundCheckpoints(run, self.history, self.quarantine, self.tell)

    def resume(self, checkpoint: Checkpoint) -> Server:
        """Return the state of a checkpoint, after restoring privacy from the closed rounds."""

        def count_lost(round: int) -> None:
            if round:  # its clients are unknown, so that an update of every client is accounted
                self.private.past.add_unknown()

        for record in self.checkpoints.resume(checkpoint, count_lost):
            self.private.read_back(record)
        return checkpoint.server

    def ended(self, server: Server) -> bool:
        """Return whether no round is left to do."""
        return server.finished or server.round >= self.opened.settings.rounds or self.budget_spent(server)

    def budget_spent(self, server: Server) -> bool:
        """Return whether one more round would exceed the budget `privacy.epsilon`."""
        if self.private.privacy.epsilon is None:
            return False
        return self.private.budget_spent(self.sampling.sample(server))

    def finish(self, server: Server) -> None:
        """Record the end."""
        shutil.rmtree(self.run.work, ignore_errors=True)  # files of a second copy of a cohort
        if server.round < self.opened.settings.rounds and not server.finished:
            self.tell("budget_spent", round=server.round, message=self.private.budget_message)
        self.checkpoints.write_tables(server.round)
        self.run.set_finished(server.round, server_digest(server), self.quarantine.clients)
        self.tell("finished", round=server.round)

    def tell(self, kind: str, **facts: Any) -> None:
        """Log an event, with which the observers are called."""
        self.run.event(kind, **facts)
