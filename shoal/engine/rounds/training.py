"""The step of the loop that trains: clients in groups, groups in cohorts, cohorts on workers, failed clients again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from shoal.engine.messages.wire import Failed
from shoal.engine.rounds.active_run import ActiveRun
from shoal.engine.rounds.client_history import ClientHistory
from shoal.engine.rounds.dispatch import MAX_COHORTS_PER_SLOT, Dispatch, even_cohorts
from shoal.engine.rounds.outcomes import RoundFailed, RoundOutcomes
from shoal.engine.rounds.prefetched_messages import PrefetchedMessages
from shoal.engine.rounds.units import Runner, TrainCohort
from shoal.engine.store.finished_work import FinishedWork, finished_work
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.workers.worker_processes import WorkerLost

Item = TypeVar("Item")


@dataclass(frozen=True)
class NotStarted:
    """A client whose worker was lost before its turn, which does not count as a failure."""

    lost: Failed


@dataclass(frozen=True)
class Training:
    """Trains clients of a run.

    Args:
        active_run: the run.
        runner: executes units of work.
        slots: number of requests that are worked on at once.
        history: the times of clients.
        tell: logs an event (its kind, and facts by name).
        ask: accounts for private updates before clients are asked for them.
    """

    active_run: ActiveRun
    runner: Runner
    slots: int
    history: ClientHistory
    tell: Callable[..., None]
    ask: Callable[[list[int]], None] = lambda clients: None

    @property
    def opened(self) -> OpenedRun:
        """The run's settings, partition and method."""
        return self.active_run.opened

    def train(self, round: int, clients: list[int], outcomes: RoundOutcomes) -> None:
        """Train clients; retrain those that fail, up to `retries` times.

        Args:
            round: the round.
            clients: their ids.
            outcomes: of the round; gets the outcome of each client.

        Raises:
            RoundFailed: a worker could not open the run.
        """
        groups = self.groups(round, clients)
        outcomes.ask(clients)
        outcomes.groups += groups
        self.train_groups(round, groups, outcomes)

    def train_groups(self, round: int, groups: list[list[int]], outcomes: RoundOutcomes) -> None:
        """Train groups of clients until each is done or has failed too often; see `train`."""
        run = self.active_run.run
        server = self.active_run.state(round - 1)[0]
        stage = self.opened.method.stage(server)
        outcomes.give_to_training(groups, lambda client: finished_work(run, round, client))
        messages = PrefetchedMessages(self.active_run, round, server)
        done = outcomes.done
        for client in clients_of(groups):
            if client in done:
                self.active_run.times.trained(stage, client, done[client].seconds)
        while outcomes.groups_to_train():
            self.train_once(round, stage, messages, outcomes)

    def train_once(self, round: int, stage: str, messages: PrefetchedMessages, outcomes: RoundOutcomes) -> None:
        """Train the groups that need it once, and record the outcome of each client."""
        groups = outcomes.groups_to_train()
        outcomes.begin_pass()
        self.ask(clients_of(groups))
        cohorts = self.cohorts(round, groups, outcomes)
        while_waiting = None
        if messages.worthwhile_while_training:
            while_waiting = messages.begin_finished
        for client, result in self.train_cohorts(round, cohorts, while_waiting):
            if isinstance(result, NotStarted):
                outcomes.not_started(client, result.lost)
            elif isinstance(result, Failed):
                self.record_failure(round, client, result, outcomes)
            else:
                outcomes.finished(client, result)
                messages.begin(result)
                self.active_run.times.trained(stage, client, result.seconds)
                self.tell("client_finished", round=round, client=client, seconds=result.seconds)
        for client, lost in outcomes.end_pass().items():
            self.record_failure(round, client, lost, outcomes)

    def record_failure(self, round: int, client: int, failure: Failed, outcomes: RoundOutcomes) -> None:
        """Record a client's failure, and log it."""
        attempt = outcomes.failed(client, failure)
        self.tell("client_failed", round=round, client=client, attempt=attempt, message=failure.error)

    def groups(self, round: int, clients: list[int]) -> list[list[int]]:
        """Divide clients into groups, each trained in one computation; by default one client each."""
        size = self.opened.settings.workers.batched
        found: list[list[int]] = []
        for same_state in self.by_state(round, clients, lambda client: client):
            found += [same_state[start : start + size] for start in range(0, len(same_state), size)]
        return found

    def by_state(self, round: int, items: list[Item], client: Callable[[Item], int]) -> list[list[Item]]:
        """Divide items that belong to clients of a round by the server states from which their work begins.

        Args:
            round: the round.
            items: in order.
            client: returns a client of an item.
        """
        found: dict[int, list[Item]] = {}
        for item in items:
            found.setdefault(self.active_run.begun_from(round, client(item)), []).append(item)
        return [found[state] for state in sorted(found)]

    def cohorts(self, round: int, groups: list[list[int]], outcomes: RoundOutcomes) -> list[list[list[int]]]:
        """Divide the groups of a round into cohorts.

        A group that failed before comes last and alone, so that another failure costs no other group its work.
        """
        expected = self.expected_seconds(clients_of(groups))
        by_first = {group[0]: group for group in groups}
        seconds = {first: sum(expected[client] for client in group) for first, group in by_first.items()}
        failed = [first for first, group in by_first.items() if any(outcomes.tries(client) for client in group)]
        single_groups: list[int] = []
        if len(failed) <= MAX_COHORTS_PER_SLOT * self.slots:
            single_groups = failed
        together = {first: seconds[first] for first in by_first if first not in single_groups}
        found: list[list[int]] = []
        if together:
            found = even_cohorts(together, self.slots, measured=bool(self.history.seconds))
        cohorts = [[by_first[first] for first in cohort] for cohort in (*found, *([first] for first in single_groups))]
        return [part for cohort in cohorts for part in self.by_state(round, cohort, lambda group: group[0])]

    def expected_seconds(self, clients: Iterable[int]) -> dict[int, float]:
        """Return the expected time of each client: its last time, or in proportion to its samples."""
        sizes = self.opened.federation.sizes
        measured = self.history.seconds
        rate = 1.0
        if measured:
            rate = self.history.measured_seconds / max(1, self.history.measured_samples)
        expected = {}
        for client in clients:
            seconds = measured.get(client)
            expected[client] = rate * sizes[client] if seconds is None else seconds
        return expected

    def train_cohorts(
        self, round: int, cohorts: list[list[list[int]]], while_waiting: Callable[[list[int]], None] | None = None
    ) -> Iterator[tuple[int, FinishedWork | Failed | NotStarted]]:
        """Yield each client and its result as cohorts of groups end.

        Args:
            round: the round.
            cohorts: each with its groups.
            while_waiting: called now and then, while no cohort ends, with the clients of those under way.
        """
        units = [TrainCohort(self.active_run.run.path, round, tuple(map(tuple, groups))) for groups in cohorts]
        dispatch = Dispatch(self.runner, while_waiting)
        for unit, answer in dispatch.run(units):
            if isinstance(answer, Failed):
                raise RoundFailed(f"round {round}: {answer.error}")
            if isinstance(answer, WorkerLost):
                self.tell("slot_lost", round=round, message=str(answer))
                yield from self.outcomes_of_lost_worker(unit, Failed(str(answer)))
            else:
                # A client without any result must fail: else it would be trained again without end.
                missing = Failed("the answer of its worker does not contain it")
                yield from ((client, answer.clients.get(client, missing)) for client in unit.clients)

    def outcomes_of_lost_worker(
        self, unit: TrainCohort, lost: Failed
    ) -> Iterator[tuple[int, FinishedWork | Failed | NotStarted]]:
        """Yield the clients of a lost worker and their results; only the group that it was training failed."""
        failure: Failed | NotStarted = lost
        for group in unit.groups:
            # Done-files show what the worker had finished.
            found = {client: finished_work(self.active_run.run, unit.round, client) for client in group}
            for client, done in found.items():
                yield client, done or failure
            if None in found.values():
                failure = NotStarted(lost)


def clients_of(groups: Iterable[Iterable[int]]) -> list[int]:
    """Return the clients of all groups, in order."""
    return [client for group in groups for client in group]
