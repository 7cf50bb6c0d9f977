"""The round loop: sample clients, train, aggregate, account, evaluate, checkpoint; again until done.

`Engine.round` is the algorithm. The engine knows messages and files, and nothing of any method. The work of each step
goes through a `Runner`: threads of this process, or Prefect task runs in a flow.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from shoal.engine.messages.inspection import RoundInspection
from shoal.engine.messages.wire import Call, SumPlan
from shoal.engine.rounds.aggregation import Aggregation
from shoal.engine.rounds.buffered_rounds import BufferedRounds
from shoal.engine.rounds.client_history import ClientHistory
from shoal.engine.rounds.client_sampling import ClientSampling
from shoal.engine.rounds.evaluation import EvaluationStep
from shoal.engine.rounds.outcomes import RoundOutcomes
from shoal.engine.rounds.private_run import PrivateRun
from shoal.engine.rounds.round_checkpoints import RoundCheckpoints
from shoal.engine.rounds.round_record import make_record
from shoal.engine.rounds.round_state import RoundState
from shoal.engine.rounds.run_ending import record_early_ending
from shoal.engine.rounds.runner import Runner
from shoal.engine.rounds.summed_rounds import SummedRounds
from shoal.engine.rounds.training import Training
from shoal.engine.store.checkpoint import drop_after, newest_valid
from shoal.engine.store.codec import server_digest
from shoal.engine.store.manifest import RoundSeconds
from shoal.engine.store.run_events import Observer, observing
from shoal.engine.store.run_facts import RunFacts
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.status import RUNNING
from shoal.methods.contract.base import Server


@dataclass
class Engine:
    """The engine of one run, which does all rounds that are left.

    Args:
        run: its folder.
        call: has a worker do a request (`shoal.engine.cluster.pool_interface.Pool.call`).
        runner: executes the work of the steps.
        slots: number of requests that are worked on at once.
        observers: called with every event when it is logged (a dictionary with at least `event`).
    """

    run: RunFolder
    call: Call
    runner: Runner
    slots: int = 1
    observers: Sequence[Observer] = ()
    facts: RunFacts = field(init=False)
    buffered: BufferedRounds = field(init=False)
    history: ClientHistory = field(init=False)
    private: PrivateRun = field(init=False)
    sampling: ClientSampling = field(init=False)
    sums: SummedRounds = field(init=False)
    training: Training = field(init=False)
    aggregation: Aggregation = field(init=False)
    evaluation: EvaluationStep = field(init=False)
    checkpoints: RoundCheckpoints = field(init=False)
    removal: ThreadPoolExecutor = field(default_factory=ThreadPoolExecutor, init=False)

    def run_to_end(self) -> Server:
        """Do all rounds that are left.

        Returns:
            The final server state.

        Raises:
            ShoalError: the run failed. KeyboardInterrupt: it was interrupted. Each such run can be resumed.
        """
        observed = observing(self.run.path, self.observers)
        with self.run.locked(), self.removal, observed, record_early_ending(self.run):
            state = self.start()
            while not self.ended(state.server):
                state = self.round(state)
            self.finish(state.server)
            return state.server

    def round(self, before: RoundState) -> RoundState:
        """Do one round.

        Args:
            before: the state before it.

        Returns:
            The state after it, whose checkpoint is closed.

        Raises:
            RoundFailed: too few clients succeeded.
        """
        round = before.round + 1
        began = time.perf_counter()
        outcomes = RoundOutcomes()
        after = None

        # 1. Sample the clients of the round; some may drop out.
        clients = self.sampling.draw(before.server, outcomes)
        needed = max(1, math.ceil(self.facts.settings.participation.minimum * len(clients)))
        self.tell("round_started", round=round, clients=len(clients))
        if outcomes.dropped:
            self.tell("clients_dropped", round=round, clients=outcomes.dropped)
        while clients:
            # 2. Train them on the workers, in cohorts. A client that fails is tried again.
            plan = self.sums.plan(round, clients)
            inspection = RoundInspection(self.facts, before.server, plan)
            self.training.train(before, clients, outcomes, inspection)
            trained = time.perf_counter()
            # 3. Aggregate their updates into the next state. A client whose message is refused is left out.
            after = self.aggregation.aggregate(before, outcomes, needed, inspection)
            # If refusals leave too few clients, draw others in their place. A sum starts again without lost clients.
            clients = []
            if after is None:
                clients = self.others(before, outcomes, plan, needed)
        self.tell_left_out(round, outcomes)
        outcomes.check_enough(round, needed, self.history.quarantined)
        assert after is not None

        # 4. Account for what the new state reveals of its clients, before it leaves the server.
        spent = self.private.account(round, outcomes.done)
        aggregated = time.perf_counter()

        # 5. Evaluate the new state.
        measured = self.evaluation.evaluate(after, final=self.ended(after.server))
        metrics = measured | spent | self.buffered.simulated_time(round, outcomes.done)
        ended = time.perf_counter()
        seconds = RoundSeconds(trained - began, aggregated - trained, ended - aggregated, ended - began)

        # 6. Close the checkpoint: from now on the round is done.
        refusals = self.history.refusals_with(outcomes.refused)
        self.checkpoints.close(after, make_record(round, outcomes, metrics, seconds, refusals))
        self.tell_quarantined(round, outcomes)
        self.tell("round_finished", round=round, metrics=metrics, seconds=seconds.round)
        return after

    def others(self, before: RoundState, outcomes: RoundOutcomes, plan: SumPlan | None, needed: int) -> list[int]:
        """Return the clients to train next: in place of refused ones, or what is left of a sum; none where none are."""
        if plan is None:
            return self.sampling.draw_others(before.server, outcomes)
        return self.sums.without_lost(before.round + 1, plan, outcomes, needed)

    # --- beginning and end ----------------------------------------------------------------------------------------

    def start(self) -> RoundState:
        """Return the state of the newest valid checkpoint, or the initial state, which is written as round 0."""
        checkpoint = newest_valid(self.run)
        self.make_parts()
        if checkpoint is None:
            drop_after(self.run, -1)
            state = self.checkpoints.begin()
        else:
            state = RoundState(checkpoint.server, checkpoint.memory_index)
            drop_after(self.run, state.round)
            self.checkpoints.resume(state.round)
        self.private.resume()
        self.sums.resume()
        self.checkpoints.begin_pruning()
        rounds = self.facts.settings.rounds
        self.run.set_status(RUNNING, state.round, rounds=rounds)
        self.tell("resumed" if state.round else "started", round=state.round, rounds=rounds)
        return state

    def make_parts(self) -> None:
        """Make the objects that do the steps of a round."""
        self.facts = facts = RunFacts(self.run)
        self.buffered = BufferedRounds(facts)
        self.history = ClientHistory()
        self.private = PrivateRun(facts)
        self.sampling = ClientSampling(facts, self.buffered, self.history)
        self.training = Training(
            facts, self.buffered, self.call, self.runner, self.slots, self.history, self.tell, self.private.ask
        )
        self.sums = SummedRounds(facts, self.call, self.history)
        self.aggregation = Aggregation(facts, self.buffered, self.runner)
        self.evaluation = EvaluationStep(facts, self.call, self.runner, self.slots, self.tell)
        self.checkpoints = RoundCheckpoints(facts, self.buffered, self.history, self.tell, self.removal)

    def ended(self, server: Server) -> bool:
        """Return whether no round is left to do."""
        return server.finished or server.round >= self.facts.settings.rounds or self.budget_spent(server)

    def budget_spent(self, server: Server) -> bool:
        """Return whether one more round would exceed the budget `privacy.epsilon`."""
        if self.private.privacy.epsilon is None:
            return False
        return self.private.budget_spent(self.sampling.sample(server))

    def finish(self, server: Server) -> None:
        """Record the end."""
        shutil.rmtree(self.run.work, ignore_errors=True)
        if server.round < self.facts.settings.rounds and not server.finished:
            self.tell("budget_spent", round=server.round, message=self.private.budget_message)
        self.checkpoints.write_tables(server.round)
        self.tell_bytes()
        self.run.set_finished(server.round, server_digest(server), self.history.quarantined)
        self.tell("finished", round=server.round)

    # --- events ---------------------------------------------------------------------------------------------------

    def tell_left_out(self, round: int, outcomes: RoundOutcomes) -> None:
        """Log which clients the round continues without, and why."""
        refused = set(outcomes.refused)
        for client, failure in outcomes.failures.items():
            kind = "client_refused" if client in refused else "client_left_out"
            self.tell(kind, round=round, client=client, message=failure.error)

    def tell_bytes(self) -> None:
        """Log where a method that trains no network had its clients send more than their samples are."""
        held = int(self.facts.partition.counts().sum()) * self.facts.spec.sample_bytes
        sent = sum(record["bytes_up"] for record in self.run.table("rounds").to_dict("records"))
        if sent > held and not self.facts.method.trains:
            message = f"clients sent {sent / 1e6:,.2f} MB in all, more than their samples are ({held / 1e6:,.2f} MB)"
            self.tell("messages_exceed_data", message=message)

    def tell_quarantined(self, round: int, outcomes: RoundOutcomes) -> None:
        """Log which of the refused clients are now quarantined."""
        for client in sorted(set(outcomes.refused) & set(self.history.quarantined)):
            message = f"client {client} was refused in {self.history.refusals[client]} rounds: it is not asked again"
            self.tell("client_quarantined", round=round, client=client, message=message)

    def tell(self, kind: str, **facts: Any) -> None:
        """Log an event, with which the observers are called."""
        self.run.event(kind, **facts)
