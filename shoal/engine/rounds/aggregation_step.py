"""The step of the loop that aggregates a round, and repeats it without the answers that the server rejects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal.core.errors import FailureCause
from shoal.engine.messages.wire import Failed
from shoal.engine.rounds.active_run import ActiveRun
from shoal.engine.rounds.outcomes import RoundOutcomes
from shoal.engine.rounds.training import Training
from shoal.engine.rounds.units import AggregateRound, Runner


@dataclass(frozen=True)
class AggregationStep:
    """Aggregates the answers of a round.

    Args:
        active_run: the run.
        runner: executes units of work.
        training: retrains clients.
        tell: logs an event (its kind, and facts by name).
    """

    active_run: ActiveRun
    runner: Runner
    training: Training
    tell: Callable[..., None]

    def aggregate(self, round: int, outcomes: RoundOutcomes, needed: int) -> None:
        """Make the next server state, in an open checkpoint.

        A client whose message the server refuses is left out. A client whose stored answer was damaged is retrained, up
        to `retries` times.

        Args:
            round: the round.
            outcomes: of the round.
            needed: number of clients that must succeed; with fewer there is no next state.
        """
        outcomes.begin_aggregation()
        while len(outcomes.done) >= needed:
            rejected = self.execute(round, outcomes, needed)
            if all(failure.cause == FailureCause.MESSAGE_REFUSED for failure in rejected.values()):
                return
            groups = outcomes.groups_to_train_again()
            if groups:
                self.training.train_groups(round, groups, outcomes)

    def execute(self, round: int, outcomes: RoundOutcomes, needed: int) -> dict[int, Failed]:
        """Execute the unit of work once, and record the answers that the server rejected."""
        done = outcomes.done
        self.active_run.keep_done(round, done)
        unit = AggregateRound(self.active_run.run.path, round, tuple(sorted(done)), needed)
        rejected: dict[int, Failed] = self.runner.submit(unit).result()
        attempts = {client: outcomes.rejected(client, failure) for client, failure in rejected.items()}
        for client in sorted(rejected):
            failure = rejected[client]
            if failure.cause != FailureCause.MESSAGE_REFUSED:
                attempt = attempts[client]
                self.tell("client_failed", round=round, client=client, attempt=attempt, message=failure.error)
        return rejected
