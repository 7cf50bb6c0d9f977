"""The training of a round: clients in groups, groups in cohorts, cohorts on workers; failed ones are tried again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from shoal.core.errors import ShoalError
from shoal.engine.messages.inspection import Inspected, Inspection, MessageRefused
from shoal.engine.messages.prefetcher import LARGE
from shoal.engine.messages.wire import Failed
from shoal.engine.rounds.active_run import RunAtWork
from shoal.engine.rounds.dispatch import MOST, Cohort, Dispatch, even_cohorts
from shoal.engine.rounds.units import Runner, TrainCohort
from shoal.engine.store.finished_work import FinishedWork, finished_work, said_work
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.tables import RunTables
from shoal.engine.workers.worker_processes import WorkerLost

Item = TypeVar("Item")


class RoundFailed(ShoalError):
    """Too few clients came through; the run stops and can be resumed."""


@dataclass(frozen=True)
class NotBegun:
    """A client whose turn had not come when its worker was lost: no fault of its own."""

    lost: Failed


@dataclass
class Answers:
    """What came of the clients of a round.

    Attributes:
        asked: their ids; those that were drawn in place of refused ones come last.
        dropped: the ids of those that were drawn and, by simulated dropout, did not answer.
        done: the work of those that came through.
        failed: why others did not, by client; those whose messages a worker refused among them.
        refused: whose messages were refused, and why.
        groups: the ids in groups, as they were trained.
        trained: when the last of them was done, as `time.perf_counter` tells it.
    """

    asked: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    done: dict[int, FinishedWork] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    groups: list[list[int]] = field(default_factory=list)
    trained: float = 0.0

    @property
    def left_out(self) -> dict[int, str]:
        """Why each client that was asked and did not come through is left out of the round."""
        return self.failed | self.refused


@dataclass(frozen=True)
class Training:
    """Trains clients of a run.

    Args:
        held: the run.
        runner: has units of work carried out.
        slots: how many requests can be worked on at once.
        tables: tell how long clients took.
        tell: logs an event (its kind, and facts by name).
        ask: accounts the updates that clients are going to be asked for, where these are private.
    """

    held: RunAtWork
    runner: Runner
    slots: int
    tables: RunTables
    tell: Callable[..., None]
    ask: Callable[[list[int]], None] = lambda clients: None

    @property
    def opened(self) -> OpenedRun:
        """The run's settings, partition and method."""
        return self.held.opened

    def train(self, round: int, asked: list[int], answers: Answers) -> None:
        """Have clients trained; failed ones are tried again. What came of each is added to the answers.

        Args:
            round: the round.
            asked: their ids.
            answers: of the round so far.

        Raises:
            RoundFailed: a worker could not begin at all.
        """
        groups = self.groups(round, asked)
        answers.groups += groups
        self.train_groups(round, groups, answers)

    def train_groups(self, round: int, groups: list[list[int]], answers: Answers) -> None:
        """As `train`, of clients in groups that were trained before."""
        asked, summed = [client for group in groups for client in group], self.opened.settings.workers.summed > 1
        run, times = self.held.run, self.held.times
        done = {c: found for c in asked if (found := finished_work(run, round, c)) is not None}
        before = self.held.state(round - 1)[0]
        stage, sizes = self.opened.method.stage(before), self.opened.federation.sizes
        inspection = Inspection.of(self.opened, before)

        def inspected(work: FinishedWork) -> Inspected:
            return inspection.answer(run, work, sizes[work.client])

        def begin(work: FinishedWork) -> None:
            if not summed:
                self.held.early.begin(round, work, inspected)

        def look(clients: list[int]) -> None:
            for client in clients:
                if (work := said_work(run, round, client)) is not None:
                    begin(work)

        large = sum(tensor.nbytes for tensor in before.model.values()) > LARGE and not summed
        retries = self.opened.settings.participation.retries
        for work in done.values():
            times.trained(stage, work.client, work.seconds)
        failures: dict[int, Failed] = {}
        tries: Counter[int] = Counter()
        # A group is trained as a whole: the same bits, wherever a round was cut short.
        waiting = [group for group in groups if not done.keys() >= set(group)]
        in_vain = 0
        while waiting:
            spared: dict[int, Failed] = {}
            if summed:  # the sum of a group is made anew, with the messages of all its clients
                done = {c: work for c, work in done.items() if not any(c in group for group in waiting)}
            had = len(done)
            self.ask([client for group in waiting for client in group])
            cohorts = self.cohorts(round, waiting, tries)
            for client, result in self.train_cohorts(round, cohorts, look if large else None):
                if isinstance(result, NotBegun):
                    spared[client] = result.lost
                elif isinstance(result, Failed):
                    self.failed(round, client, result, tries, failures)
                else:
                    done[client] = result
                    begin(result)
                    times.trained(stage, client, result.seconds)
                    self.tell("client_finished", round=round, client=client, seconds=result.seconds)
            in_vain = in_vain + 1 if len(done) == had else 0
            if in_vain > 1:  # no worker gets anything done: nobody is spared, lest this go on for ever
                for client, lost in spared.items():
                    self.failed(round, client, lost, tries, failures)
            waiting = [
                group for group in waiting if not done.keys() >= set(group) and max(tries[c] for c in group) <= retries
            ]
        left_out = {client: failed for client, failed in failures.items() if client not in done}
        answers.done |= done
        answers.failed |= {client: failed.error for client, failed in left_out.items()}
        answers.refused |= {c: f.error for c, f in left_out.items() if f.kind == MessageRefused.__name__}

    def failed(self, round: int, client: int, why: Failed, tries: Counter[int], failures: dict[int, Failed]) -> None:
        """Count a client's failed try."""
        tries[client] += 1
        failures[client] = why
        self.tell("client_failed", round=round, client=client, attempt=tries[client], message=why.error)

    def groups(self, round: int, chosen: list[int]) -> list[list[int]]:
        """The clients of a round in groups that are trained in one computation, or summed; by default each alone."""
        workers, found = self.opened.settings.workers, []
        size = max(workers.batched, workers.summed)
        for alike in self.by_state(round, chosen, lambda client: client):
            found += [alike[start : start + size] for start in range(0, len(alike), size)]
        return found

    def by_state(self, round: int, items: list[Item], client: Callable[[Item], int]) -> list[list[Item]]:
        """What belongs to clients of a round, apart by the server states that their work begins from.

        Args:
            round: the round.
            items: what is taken apart, in order.
            client: one of the clients that an item belongs to.
        """
        found: dict[int, list[Item]] = {}
        for item in items:
            found.setdefault(self.held.begun_from(round, client(item)), []).append(item)
        return [found[state] for state in sorted(found)]

    def cohorts(self, round: int, groups: list[list[int]], tries: Counter[int]) -> list[list[list[int]]]:
        """The groups of a round in cohorts; one that failed before comes last and alone, lest others suffer by it."""
        expected = self.expected_seconds([client for group in groups for client in group])
        by_first = {group[0]: group for group in groups}
        seconds = {first: sum(expected[c] for c in group) for first, group in by_first.items()}
        failed = [first for first, group in by_first.items() if any(tries[c] for c in group)]
        alone = failed if len(failed) <= MOST * self.slots else []
        together = {first: seconds[first] for first in by_first if first not in alone}
        found = even_cohorts(together, self.slots, measured=bool(self.tables.seconds)) if together else []
        cohorts = [[by_first[first] for first in cohort] for cohort in (*found, *([first] for first in alone))]
        return [part for cohort in cohorts for part in self.by_state(round, cohort, lambda group: group[0])]

    def expected_seconds(self, clients: Iterable[int]) -> dict[int, float]:
        """How long each client's update takes: as it last did, else by its number of samples."""
        sizes, measured = self.opened.federation.sizes, self.tables.seconds
        rate = self.tables.measured_seconds / max(1, self.tables.measured_samples) if measured else 1.0
        known = ((client, measured.get(client)) for client in clients)
        return {client: rate * sizes[client] if took is None else took for client, took in known}

    def train_cohorts(
        self, round: int, cohorts: list[list[list[int]]], look: Callable[[list[int]], None] | None = None
    ) -> Iterator[tuple[int, FinishedWork | Failed | NotBegun]]:
        """(client, result) as cohorts of groups end; `look` is given the clients of those under way, now and then."""
        expected = self.expected_seconds([c for groups in cohorts for group in groups for c in group])
        wanted = []
        for groups in cohorts:
            unit = TrainCohort(self.held.run.path, round, tuple(map(tuple, groups)))
            wanted.append(Cohort(unit, sum(expected[c] for c in unit.clients)))
        dispatch = Dispatch(
            self.runner,
            self.slots,
            self.opened.settings.workers.reissue,
            lambda cohort: self.tell("cohort_reissued", round=round, message=f"{cohort.unit.name}: begun again"),
            look,
        )
        for cohort, answer in dispatch.run(wanted):
            if isinstance(answer, Failed):
                raise RoundFailed(f"round {round}: {answer.error}")
            if isinstance(answer, WorkerLost):
                self.tell("slot_lost", round=round, message=str(answer))
                yield from self.of_lost(cohort.unit, Failed(str(answer)))
            else:
                # An answer that leaves a client out would be asked for again without end.
                silent = Failed("its worker answered without a word of it")
                yield from ((client, answer.clients.get(client, silent)) for client in cohort.unit.clients)

    def of_lost(self, unit: TrainCohort, lost: Failed) -> Iterator[tuple[int, FinishedWork | Failed | NotBegun]]:
        """What became of the clients of a worker that was lost; a failure is that of the group that it worked on."""
        begun = False
        for group in unit.groups:
            # What the worker finished before it was lost is in its done-files.
            found = {client: finished_work(self.held.run, unit.round, client) for client in group}
            for client, done in found.items():
                yield client, done or (NotBegun(lost) if begun else lost)
            begun = begun or None in found.values()
