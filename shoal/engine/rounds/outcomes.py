"""The outcome of each client of a round: a small state machine, to which training and aggregation report.

waiting --finished--> done --rejected--> failed or refused
|                    (a client that is done stays done if its group is trained again and fails)
+--failed-----> failed, or refused if its message was refused; retrained up to `retries` times
+--not_started--> waiting: its worker was lost before its turn, which does not count as a failure
+--dropped----> dropped: simulated dropout
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from shoal.core.errors import FailureCause, ShoalError
from shoal.engine.messages.wire import Failed
from shoal.engine.store.finished_work import FinishedWork


class RoundFailed(ShoalError):
    """Too few clients succeeded; the run stops and can be resumed."""


class ClientState(StrEnum):
    """The state of a client in a round."""

    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"
    DROPPED = "dropped"


@dataclass
class ClientOutcome:
    """One client of a round.

    Attributes:
        work: its finished work; None: it is not done.
        failure: its last failure.
        tries: number of its failures since its group was last given to training.
        damages: how often its stored answer was damaged since the aggregation began.
        dropped: whether it did not answer, by simulated dropout.
        by_server: whether the failure comes from the server's inspection of the answer.
    """

    work: FinishedWork | None = None
    failure: Failed | None = None
    tries: int = 0
    damages: int = 0
    dropped: bool = False
    by_server: bool = False

    @property
    def state(self) -> ClientState:
        """The state of the client."""
        if self.work is not None:
            return ClientState.DONE
        if self.dropped:
            return ClientState.DROPPED
        if self.failure is None:
            return ClientState.WAITING
        if self.failure.cause == FailureCause.MESSAGE_REFUSED:
            return ClientState.REFUSED
        return ClientState.FAILED


@dataclass
class RoundOutcomes:
    """The outcomes of the clients of a round.

    Args:
        retries: how often to retrain a client that failed.

    Attributes:
        asked: ids of the clients that were asked to train; replacements of refused clients come last.
        groups: their ids in groups, each trained as a whole.
    """

    retries: int
    asked: list[int] = field(default_factory=list)
    groups: list[list[int]] = field(default_factory=list)
    _clients: dict[int, ClientOutcome] = field(default_factory=dict)
    _failure_order: dict[int, None] = field(default_factory=dict)
    """The clients with a failure, in order of their first failures."""
    _training: list[list[int]] = field(default_factory=list)
    """The groups that were last given to training."""
    _not_started: dict[int, Failed] = field(default_factory=dict)
    """Clients of the current pass whose worker was lost before their turn."""
    _done_before: int = 0
    _passes_without_progress: int = 0

    # --- questions ------------------------------------------------------------------------------------------------

    @property
    def done(self) -> dict[int, FinishedWork]:
        """The work of the clients that are done."""
        return {client: each.work for client, each in self._clients.items() if each.work is not None}

    @property
    def refused(self) -> list[int]:
        """The clients whose messages were refused."""
        return self._in_state(ClientState.REFUSED)

    @property
    def dropped(self) -> list[int]:
        """The clients that did not answer, by simulated dropout."""
        return self._in_state(ClientState.DROPPED)

    @property
    def known(self) -> set[int]:
        """All clients that were drawn."""
        return set(self._clients)

    @property
    def left_out(self) -> dict[int, str]:
        """Messages of the failures of the clients that were asked and are not done."""
        found = {}
        for client in sorted(self._failure_order, key=self._is_refused_by_server):  # the refused come last
            failure = self._clients[client].failure
            if failure is not None and self.state(client) != ClientState.DONE:
                found[client] = failure.error
        return found

    def state(self, client: int) -> ClientState:
        """Return the state of a client."""
        return self._clients[client].state

    def tries(self, client: int) -> int:
        """Return how often a client failed since its group was last given to training."""
        return self._clients[client].tries

    def groups_to_train(self) -> list[list[int]]:
        """Return the groups to train now, each as a whole: the same bits, even after an interruption of the round."""
        return [group for group in self._training if not self._is_done(group) and self._may_try(group)]

    def groups_to_train_again(self) -> list[list[int]]:
        """Return the groups to train again after an aggregation rejected answers."""
        rejected = [client for client in self.asked if self._is_rejected(client)]
        damaged = {client for client in rejected if self._clients[client].damages <= self.retries}
        return [group for group in self.groups if damaged & set(group)]

    def check_enough(self, round: int, needed: int, quarantined: Sequence[int]) -> None:
        """Stop the round if too few clients are done.

        Args:
            round: the round.
            needed: number of clients that must be done.
            quarantined: clients that could not be drawn, for the message.

        Raises:
            RoundFailed: fewer are done; it says how many, and why the first of the others are not.
        """
        done = len(self.done)
        if done >= needed:
            return
        reasons = [f"client {client}: {message}" for client, message in self.left_out.items()][:3]
        if quarantined:
            reasons.append(f"quarantined: {', '.join(map(str, quarantined))}")
        raise RoundFailed(
            f"round {round}: {done} of {len(self.asked)} clients succeeded, {needed} are needed "
            f"(participation.minimum). {'; '.join(reasons)}"
        )

    # --- reports --------------------------------------------------------------------------------------------------

    def drop(self, clients: Iterable[int]) -> None:
        """Record that clients were drawn and do not answer."""
        for client in clients:
            self._clients[client] = ClientOutcome(dropped=True)

    def ask(self, clients: Sequence[int]) -> None:
        """Record that clients are asked to train."""
        self.asked += clients
        for client in clients:
            self._clients[client] = ClientOutcome()

    def give_to_training(self, groups: list[list[int]], stored: Callable[[int], FinishedWork | None]) -> None:
        """Give groups to training, with all their retries.

        Args:
            groups: the clients' ids.
            stored: returns the work that a client finished before an interruption of the round.
        """
        self._training = groups
        self._passes_without_progress = 0
        for client in (client for group in groups for client in group):
            each = self._clients[client]
            if each.work is not None:
                self._forget_failure(client)
            each.work = stored(client)
            each.tries = 0

    def begin_pass(self) -> None:
        """Begin a pass over the groups to train."""
        self._not_started = {}
        self._done_before = len(self.done)

    def finished(self, client: int, work: FinishedWork) -> None:
        """Record that a client is done."""
        self._clients[client].work = work

    def failed(self, client: int, failure: Failed) -> int:
        """Record a failure of a client; a client that is done stays done.

        Returns:
            Number of its failures.
        """
        each = self._clients[client]
        each.tries += 1
        self._set_failure(client, failure, by_server=False)
        return each.tries

    def not_started(self, client: int, lost: Failed) -> None:
        """Record that a client's worker was lost before its turn."""
        self._not_started[client] = lost

    def end_pass(self) -> dict[int, Failed]:
        """End a pass over the groups.

        Returns:
            Failures of the clients that did not start, which now count: after two passes without progress training
            would never end.
        """
        self._passes_without_progress += 1
        if len(self.done) != self._done_before:
            self._passes_without_progress = 0
        if self._passes_without_progress < 2:
            return {}
        return self._not_started

    def begin_aggregation(self) -> None:
        """Count damaged answers from 0 again."""
        for each in self._clients.values():
            each.damages = 0

    def rejected(self, client: int, failure: Failed) -> int:
        """Record that the server rejected a client's answer.

        Returns:
            How often the stored answer of the client was damaged.
        """
        each = self._clients[client]
        each.work = None
        if failure.cause != FailureCause.MESSAGE_REFUSED:
            each.damages += 1
        self._forget_failure(client)
        self._set_failure(client, failure, by_server=True)
        return each.damages

    # --- parts of the methods above -------------------------------------------------------------------------------

    def _in_state(self, state: ClientState) -> list[int]:
        return [client for client, each in self._clients.items() if each.state == state]

    def _is_done(self, group: list[int]) -> bool:
        return all(self._clients[client].work is not None for client in group)

    def _may_try(self, group: list[int]) -> bool:
        return all(self._clients[client].tries <= self.retries for client in group)

    def _is_rejected(self, client: int) -> bool:
        """Return whether the server rejected the client's answer, for another reason than a refused message."""
        each = self._clients[client]
        return each.state == ClientState.FAILED and each.by_server

    def _is_refused_by_server(self, client: int) -> bool:
        return self.state(client) == ClientState.REFUSED and self._clients[client].by_server

    def _set_failure(self, client: int, failure: Failed, *, by_server: bool) -> None:
        each = self._clients[client]
        each.failure = failure
        each.by_server = by_server
        self._failure_order.setdefault(client)

    def _forget_failure(self, client: int) -> None:
        self._clients[client].failure = None
        self._failure_order.pop(client, None)
