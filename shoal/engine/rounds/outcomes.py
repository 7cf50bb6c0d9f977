"""What became of each client of a round: a small state machine that training and aggregation report to.

waiting --finished--> done --rejected--> failed, refused, or waiting (its sum is made again)
|                    (a client whose answer is done stays done if its group is trained once more and fails)
+--failed-----> failed, or refused where its message was; tried again up to `retries` times
+--not_started--> waiting: its worker was lost before its turn, so nothing is counted against it
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
    """Too few clients came through; the run stops and can be resumed."""


class ClientState(StrEnum):
    """Where a client stands in a round."""

    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"
    DROPPED = "dropped"


@dataclass
class ClientOutcome:
    """One client of a round.

    Attributes:
        work: what it did, if it is done.
        failure: why it last failed.
        tries: how often it failed since its group was last given to training.
        damages: how often its stored answer was damaged since the aggregation began.
        dropped: whether it did not answer, by simulated dropout.
        by_server: whether the server gave that reason, when it inspected the answer.
    """

    work: FinishedWork | None = None
    failure: Failed | None = None
    tries: int = 0
    damages: int = 0
    dropped: bool = False
    by_server: bool = False

    @property
    def state(self) -> ClientState:
        """Where the client stands."""
        if self.work is not None:
            return ClientState.DONE
        if self.dropped:
            return ClientState.DROPPED
        if self.failure is None:
            return ClientState.WAITING
        refused = self.failure.cause == FailureCause.MESSAGE_REFUSED
        return ClientState.REFUSED if refused else ClientState.FAILED


@dataclass
class RoundOutcomes:
    """The outcomes of the clients of a round.

    Args:
        retries: how often a client that failed is tried again.

    Attributes:
        asked: ids of the clients that were asked; those drawn in place of refused ones come last.
        groups: their ids in groups, each trained as a whole.
    """

    retries: int
    asked: list[int] = field(default_factory=list)
    groups: list[list[int]] = field(default_factory=list)
    _clients: dict[int, ClientOutcome] = field(default_factory=dict)
    _failure_order: dict[int, None] = field(default_factory=dict)
    """The clients that have a failure, in order of their first."""
    _training: list[list[int]] = field(default_factory=list)
    """The groups that training was last given."""
    _not_started: dict[int, Failed] = field(default_factory=dict)
    """Of the pass under way."""
    _done_before: int = 0
    _passes_without_progress: int = 0

    # --- questions ------------------------------------------------------------------------------------------------

    @property
    def done(self) -> dict[int, FinishedWork]:
        """The work of the clients that came through."""
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
        """Why each client that was asked and did not come through is left out, as far as is known by now."""
        found = {}
        for client in sorted(self._failure_order, key=self._is_refused_by_server):  # these come last
            failure = self._clients[client].failure
            if failure is not None and self.state(client) != ClientState.DONE:
                found[client] = failure.error
        return found

    def state(self, client: int) -> ClientState:
        """Where a client stands."""
        return self._clients[client].state

    def tries(self, client: int) -> int:
        """How often a client failed since its group was last given to training."""
        return self._clients[client].tries

    def groups_to_train(self) -> list[list[int]]:
        """The groups to train now. A group is trained as a whole: the same bits, wherever a round was cut short."""
        return [group for group in self._training if not self._is_done(group) and self._may_try(group)]

    def groups_to_train_again(self) -> list[list[int]]:
        """The groups to train again after an aggregation rejected answers; without refused clients where sums are
        made again.
        """
        rejected = {client for client in self.asked if self._is_rejected(client)}
        summed_again = {client for client in rejected if self._cause(client) == FailureCause.SUM_AGAIN}
        damaged = {client for client in rejected - summed_again if self._clients[client].damages <= self.retries}
        groups = [group for group in self.groups if (summed_again | damaged) & set(group)]
        if not summed_again:
            return groups
        return [[client for client in group if self.state(client) != ClientState.REFUSED] for group in groups]

    def check_enough(self, round: int, needed: int, quarantined: Sequence[int]) -> None:
        """Stop the round where too few clients came through.

        Args:
            round: the round.
            needed: how many are needed.
            quarantined: the clients that were not asked, for the error.

        Raises:
            RoundFailed: fewer came through; it says how many, and why the first of the others did not.
        """
        done = len(self.done)
        if done >= needed:
            return
        why = [f"client {client}: {message}" for client, message in self.left_out.items()]
        away = f"; quarantined: {', '.join(map(str, quarantined))}" if quarantined else ""
        raise RoundFailed(
            f"round {round}: {done} of {len(self.asked)} clients came through, {needed} are needed "
            f"(participation.minimum). {'; '.join(why[:3])}{away}"
        )

    # --- named outcomes -------------------------------------------------------------------------------------------

    def drop(self, clients: Iterable[int]) -> None:
        """Note that clients were drawn and do not answer."""
        for client in clients:
            self._clients[client] = ClientOutcome(dropped=True)

    def ask(self, clients: Sequence[int]) -> None:
        """Note that clients are asked for an answer."""
        self.asked += clients
        for client in clients:
            self._clients[client] = ClientOutcome()

    def give_to_training(self, groups: list[list[int]], stored: Callable[[int], FinishedWork | None]) -> None:
        """Let groups be trained, with all their tries before them.

        Args:
            groups: the clients' ids.
            stored: finds the work that a client finished before the round was cut short.
        """
        self._training = groups
        self._passes_without_progress = 0
        for client in (client for group in groups for client in group):
            each = self._clients[client]
            if each.work is not None:
                self._forget_failure(client)
            each.work = stored(client)
            each.tries = 0

    def begin_pass(self, *, sums: bool) -> None:
        """Begin to train the groups that are to be trained now.

        Args:
            sums: the sum of a group is made again from the messages of all its clients, so none of them is done.
        """
        if sums:
            for client in (client for group in self.groups_to_train() for client in group):
                self._clients[client].work = None
        self._not_started = {}
        self._done_before = len(self.done)

    def finished(self, client: int, work: FinishedWork) -> None:
        """Note that a client is done."""
        self._clients[client].work = work

    def failed(self, client: int, failure: Failed) -> int:
        """Count a failed try of a client; one whose answer is done stays done.

        Returns:
            How often it failed.
        """
        each = self._clients[client]
        each.tries += 1
        self._set_failure(client, failure, by_server=False)
        return each.tries

    def not_started(self, client: int, lost: Failed) -> None:
        """Note that a client's worker was lost before its turn."""
        self._not_started[client] = lost

    def end_pass(self) -> dict[int, Failed]:
        """End a pass over the groups.

        Returns:
            The clients that did not start and are to count as failed, and why: after two passes without progress no
            worker gets anything done, and training would never end.
        """
        progress = len(self.done) != self._done_before
        self._passes_without_progress = 0 if progress else self._passes_without_progress + 1
        return self._not_started if self._passes_without_progress > 1 else {}

    def begin_aggregation(self) -> None:
        """Let answers be damaged `retries` times from here on."""
        for each in self._clients.values():
            each.damages = 0

    def rejected(self, client: int, failure: Failed) -> int:
        """Note that the server did not take a client's answer.

        Returns:
            How often the stored answer of the client was damaged.
        """
        each = self._clients[client]
        each.work = None
        if failure.cause not in (FailureCause.MESSAGE_REFUSED, FailureCause.SUM_AGAIN):
            each.damages += 1
        self._forget_failure(client)
        self._set_failure(client, failure, by_server=True)
        return each.damages

    # --- what these are made of -----------------------------------------------------------------------------------

    def _in_state(self, state: ClientState) -> list[int]:
        return [client for client, each in self._clients.items() if each.state == state]

    def _is_done(self, group: list[int]) -> bool:
        return all(self._clients[client].work is not None for client in group)

    def _may_try(self, group: list[int]) -> bool:
        return all(self._clients[client].tries <= self.retries for client in group)

    def _is_rejected(self, client: int) -> bool:
        """Whether the server did not take the client's answer, for another reason than a refused message."""
        each = self._clients[client]
        return each.state == ClientState.FAILED and each.by_server

    def _is_refused_by_server(self, client: int) -> bool:
        return self.state(client) == ClientState.REFUSED and self._clients[client].by_server

    def _cause(self, client: int) -> FailureCause | None:
        failure = self._clients[client].failure
        return None if failure is None else failure.cause

    def _set_failure(self, client: int, failure: Failed, *, by_server: bool) -> None:
        each = self._clients[client]
        each.failure = failure
        each.by_server = by_server
        self._failure_order.setdefault(client)

    def _forget_failure(self, client: int) -> None:
        self._clients[client].failure = None
        self._failure_order.pop(client, None)
