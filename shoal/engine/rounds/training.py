"""The step of the loop that trains the clients of a round: cohorts on workers, results as they come, failures again."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import as_completed
from dataclasses import dataclass, replace
from functools import partial

from shoal.core.durable import private_folder
from shoal.core.errors import FailureCause
from shoal.engine.messages.broadcasts import Broadcasts
from shoal.engine.messages.fixed_point import ATTEMPT
from shoal.engine.messages.inspection import RoundInspection
from shoal.engine.messages.wire import Answer, Call, Failure, SumPlan, Train, TrainAnswer
from shoal.engine.rounds.buffered_rounds import BufferedRounds
from shoal.engine.rounds.client_history import ClientHistory
from shoal.engine.rounds.outcomes import RoundFailed, RoundOutcomes
from shoal.engine.rounds.round_state import RoundState
from shoal.engine.rounds.runner import Runner
from shoal.engine.store.codec import read_sealed, server_digest, write_sealed
from shoal.engine.store.finished_work import FinishedWork, finished_work, load_update
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_facts import RunFacts
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.workers.worker_processes import WorkerLost

MIN_COHORT_SECONDS = 0.4
"""Shortest training of a cohort, if there are enough clients."""
MAX_COHORTS_PER_SLOT = 8
"""Most cohorts for each slot in a round."""
MAX_IDLE_PASSES = 2
"""Passes without a finished client after which also those count as failed that had no turn: else there is no end."""

Group = list[int]
"""Clients that are trained in one computation; by default a client alone."""


@dataclass(frozen=True)
class Training:
    """Trains clients of a run.

    Args:
        facts: of the run.
        buffered: says from which state each client begins.
        call: has a worker do a request.
        runner: executes the work of each cohort.
        slots: number of requests that are worked on at once.
        history: knows how long local work takes.
        tell: logs an event (its kind, and facts by name).
        ask: accounts for private updates before clients are asked for them.
    """

    facts: RunFacts
    buffered: BufferedRounds
    call: Call
    runner: Runner
    slots: int
    history: ClientHistory
    tell: Callable[..., None]
    ask: Callable[[list[int]], None]

    def train(
        self, before: RoundState, clients: list[int], outcomes: RoundOutcomes, inspection: RoundInspection
    ) -> None:
        """Train clients in the round after a state; retrain those that fail, up to `participation.retries` times.

        Args:
            before: the state.
            clients: their ids.
            outcomes: of the round; gets the outcome of each client.
            inspection: of their answers, which begins while others train.

        Raises:
            RoundFailed: a worker could not open the run.
        """
        round = before.round + 1
        plan = inspection.plan
        outcomes.asked += [client for client in clients if client not in outcomes.asked]
        for client in clients:
            stored = finished_work(self.facts.run, round, client)
            # From before an interruption of the round; of a sum, only from the same attempt.
            if stored is not None and answers(self.facts.run, round, stored, plan):
                outcomes.finish(client, stored)
        groups = self.groups(round, clients)
        broadcasts = Broadcasts(self.facts.run, round, self.facts.method)
        tries = Counter[int]()
        idle_passes = 0
        while groups := self.left(groups, outcomes, tries):
            self.account(before, clients_of(groups))
            done_before = len(outcomes.done)
            no_turn = self.train_once(before, broadcasts, groups, outcomes, tries, inspection)
            idle_passes += 1
            if len(outcomes.done) > done_before:
                idle_passes = 0
            if idle_passes >= MAX_IDLE_PASSES:
                for client in sorted(no_turn):
                    self.fail(round, client, Failure("its worker was lost before its turn"), outcomes, tries)

    def account(self, before: RoundState, clients: list[int]) -> None:
        """Account for private updates; that of a site counts once a round, since it sends the same bytes again."""
        if not self.facts.sites or self.facts.settings.privacy.clip is None:
            self.ask(clients)
            return
        path = RoundPaths(self.facts.run.path, before.round + 1).asked
        state = server_digest(before.server)
        asked: list[int] = []
        if path.exists() and (record := read_sealed(path))["state"] == state:
            asked = record["clients"]
        if new := sorted(set(clients) - set(asked)):
            self.ask(new)
            private_folder(path.parent.parent)
            private_folder(path.parent)
            write_sealed(path, {"state": state, "clients": [*asked, *new]})

    def left(self, groups: list[Group], outcomes: RoundOutcomes, tries: Counter[int]) -> list[Group]:
        """Return the groups to train, each as a whole: the same bits, even after an interruption of the round."""
        retries = self.facts.settings.participation.retries
        unfinished = [group for group in groups if not outcomes.done.keys() >= set(group)]
        return [group for group in unfinished if all(tries[client] <= retries for client in group)]

    def train_once(
        self,
        before: RoundState,
        broadcasts: Broadcasts,
        groups: list[Group],
        outcomes: RoundOutcomes,
        tries: Counter[int],
        inspection: RoundInspection,
    ) -> set[int]:
        """Train groups once, and record the outcome of each client.

        Returns:
            The clients whose workers were lost before their turn, which is no failure of theirs.
        """
        round = before.round + 1
        no_turn = set(clients_of(groups))
        for client, result in self.results(before, broadcasts, self.cohorts(groups, tries), inspection.plan):
            no_turn.discard(client)
            if isinstance(result, Failure):
                self.fail(round, client, result, outcomes, tries)
            else:
                outcomes.finish(client, result)
                inspection.begin(result)
                self.tell("client_finished", round=round, client=client, seconds=result.seconds)
        return no_turn

    def fail(self, round: int, client: int, failure: Failure, outcomes: RoundOutcomes, tries: Counter[int]) -> None:
        """Record a client's failure, and log it."""
        tries[client] += 1
        if failure.cause == FailureCause.SITE_REFUSES:
            tries[client] += self.facts.settings.participation.retries
        outcomes.fail(client, failure)
        self.tell("client_failed", round=round, client=client, attempt=tries[client], message=failure.error)

    # --- groups and cohorts ---------------------------------------------------------------------------------------

    def groups(self, round: int, clients: list[int]) -> list[Group]:
        """Divide clients into groups of `workers.batched`, each of one site, that begin from the same state."""
        size = self.facts.settings.workers.batched
        by_state: dict[tuple[int, str], list[int]] = {}
        for client in clients:
            place = self.buffered.begun_from(round, client), self.facts.sites.get(client, "")
            by_state.setdefault(place, []).append(client)
        return [
            same_state[start : start + size]
            for _, same_state in sorted(by_state.items())
            for start in range(0, len(same_state), size)
        ]

    def cohorts(self, groups: list[Group], tries: Counter[int]) -> list[list[Group]]:
        """Divide groups into cohorts, one for each request: those of one site are one.

        A group that failed before comes last and alone, so that another failure costs no other group its work.
        """
        failed = [group for group in groups if any(tries[client] for client in group)]
        if len(failed) > MAX_COHORTS_PER_SLOT * self.slots:
            failed = []
        if self.facts.sites:
            by_site: dict[str, list[Group]] = {}
            for group in groups:
                by_site.setdefault(self.facts.sites[group[0]], []).append(group)
            return list(by_site.values())
        by_first = {group[0]: group for group in groups if group not in failed}
        sizes = self.facts.federation.sizes
        rate = self.history.seconds_per_sample
        seconds = {first: (rate or 1.0) * sum(sizes[client] for client in group) for first, group in by_first.items()}
        cohorts = even_cohorts(seconds, self.slots, measured=rate is not None)
        return [*([by_first[first] for first in cohort] for cohort in cohorts), *([group] for group in failed)]

    # --- on the workers -------------------------------------------------------------------------------------------

    def results(
        self, before: RoundState, broadcasts: Broadcasts, cohorts: list[list[Group]], plan: SumPlan | None
    ) -> Iterator[tuple[int, FinishedWork | Failure]]:
        """Have workers train cohorts; yield each client that had its turn, and its result, as cohorts end."""
        round = before.round + 1
        running = {}
        for cohort in cohorts:
            name = f"round {round}, clients {', '.join(map(str, clients_of(cohort)))}"
            if self.facts.sites:
                name = f"round {round}, site {self.facts.sites[clients_of(cohort)[0]]}"
            work = partial(self.train_cohort, before, broadcasts, cohort, plan)
            running[self.runner.submit("train", name, work)] = cohort
        for future in as_completed(running):
            cohort = running[future]
            try:
                answer = future.result()
            except WorkerLost as lost:
                self.tell("slot_lost", round=round, message=str(lost))
                yield from self.results_of_lost_worker(round, cohort, Failure(str(lost)))
                continue
            if isinstance(answer, Failure):
                raise RoundFailed(f"round {round}: {answer.error}")
            assert isinstance(answer, TrainAnswer)
            # A client without any result must fail: else it would be trained again without end.
            missing = Failure("the answer of its worker does not contain it")
            yield from ((client, answer.clients.get(client, missing)) for client in clients_of(cohort))

    def train_cohort(
        self, before: RoundState, broadcasts: Broadcasts, cohort: list[Group], plan: SumPlan | None
    ) -> Answer:
        """Send the messages to the clients of a cohort, and have a worker train them.

        Raises:
            WorkerLost: the worker ended in the middle.
        """
        files = []
        for client in clients_of(cohort):
            message = broadcasts.write(self.buffered.state(before.server, client), client)
            known = before.memory_index.client(client)
            files.append(replace(known, message=tuple(message), sha256={**message, **known.sha256}))
        groups = tuple(map(tuple, cohort))
        return self.call(Train(self.facts.run.path, before.round + 1, tuple(files), groups, plan))

    def results_of_lost_worker(
        self, round: int, cohort: list[Group], lost: Failure
    ) -> Iterator[tuple[int, FinishedWork | Failure]]:
        """Yield the clients that a lost worker had finished, and the group that it was training, which failed."""
        for group in cohort:
            # Done-files show what the worker had finished.
            stored = {client: finished_work(self.facts.run, round, client) for client in group}
            for client, work in stored.items():
                yield client, work or lost
            if None in stored.values():
                return


def answers(run: RunFolder, round: int, work: FinishedWork, plan: SumPlan | None) -> bool:
    """Return whether finished work belongs to the attempt of a plan."""
    return plan is None or load_update(run, round, work).message.facts.get(ATTEMPT) == plan.attempt


def even_cohorts(expected: Mapping[int, float], slots: int, *, measured: bool) -> list[list[int]]:
    """Divide clients into cohorts of about equal length, the longest first, so that no slot begins a long one late.

    A cohort has a cost (a task run), so that short clients share one, as long as every slot has work. Answers of one
    are inspected while the next trains.

    Args:
        expected: time of each client.
        slots: number of cohorts that are trained at once.
        measured: whether `expected` is in seconds; otherwise only its proportions count.
    """
    count = min(len(expected), MAX_COHORTS_PER_SLOT * slots)
    if measured:
        enough = math.ceil(sum(expected.values()) / MIN_COHORT_SECONDS)
        count = min(count, max(slots, enough))
    loads = [(0.0, number) for number in range(count)]
    cohorts: list[list[int]] = [[] for _ in loads]
    for client in sorted(expected, key=lambda c: -expected[c]):
        load, number = heapq.heappop(loads)
        cohorts[number].append(client)
        heapq.heappush(loads, (load + expected[client], number))
    return sorted(cohorts, key=lambda cohort: -sum(expected[c] for c in cohort))


def clients_of(groups: Iterable[Iterable[int]]) -> list[int]:
    """Return the clients of all groups, in order."""
    return [client for group in groups for client in group]
