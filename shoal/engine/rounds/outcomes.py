"""What became of each client of a round: it is done, it failed, its message was refused, or it dropped out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.core.errors import FailureCause, ShoalError
from shoal.engine.messages.wire import Failure
from shoal.engine.store.finished_work import FinishedWork


class RoundFailed(ShoalError):
    """Too few clients succeeded; the run stops and can be resumed."""


@dataclass
class RoundOutcomes:
    """The outcomes of the clients of a round.

    Attributes:
        asked: ids of the clients that were asked to train; replacements of refused clients come last.
        done: the finished work of those that are done.
        failures: the last failure of each of the others, in order of their first failures.
        dropped: ids of the clients that were drawn and do not answer, by simulated dropout.
    """

    asked: list[int] = field(default_factory=list)
    done: dict[int, FinishedWork] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)
    dropped: list[int] = field(default_factory=list)

    @property
    def refused(self) -> list[int]:
        """The clients whose messages were refused."""
        return [client for client, failure in self.failures.items() if failure.cause == FailureCause.MESSAGE_REFUSED]

    @property
    def drawn(self) -> set[int]:
        """All clients that were drawn."""
        return {*self.asked, *self.dropped}

    def finish(self, client: int, work: FinishedWork) -> None:
        """Record that a client is done."""
        self.done[client] = work
        self.failures.pop(client, None)

    def fail(self, client: int, failure: Failure) -> None:
        """Record a failure of a client; one that is done stays done if its group is trained again and fails."""
        if client not in self.done:
            self.failures[client] = failure

    def refuse(self, refused: dict[int, Failure]) -> None:
        """Record that the server refused the messages of some clients that were done."""
        for client, failure in refused.items():
            del self.done[client]
            self.failures[client] = failure

    def check_enough(self, round: int, needed: int, quarantined: Sequence[int]) -> None:
        """Stop the round if too few clients are done.

        Args:
            round: the round.
            needed: number of clients that must be done.
            quarantined: clients that could not be drawn, for the message.

        Raises:
            RoundFailed: fewer are done; it says how many, and why the first of the others are not.
        """
        if len(self.done) >= needed:
            return
        reasons = [f"client {client}: {failure.error}" for client, failure in self.failures.items()][:3]
        if quarantined:
            reasons.append(f"quarantined: {', '.join(map(str, quarantined))}")
        raise RoundFailed(
            f"round {round}: {len(self.done)} of {len(self.asked)} clients succeeded, {needed} are needed "
            f"(participation.minimum). {'; '.join(reasons)}"
        )
