"""Cohorts on workers: started in order, returned as they end, and started again if they are overdue.

A cohort that is trained twice leaves the same bits, so the copy that ends first counts.
"""

from __future__ import annotations

import heapq
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

from shoal.engine.messages.wire import Failed, Trained
from shoal.engine.rounds.units import Runner, TrainCohort
from shoal.engine.workers.worker_processes import WorkerLost

POLL_SECONDS = 0.5
"""Time between two checks for overdue cohorts."""
WAITING_POLL_SECONDS = 0.1
"""Time between two calls of `while_waiting`."""
MIN_COHORT_SECONDS = 2.0
"""Shortest training of a cohort, if there are enough clients."""
MAX_COHORTS_PER_SLOT = 8
"""Most cohorts for each slot in a round."""


def even_cohorts(expected: Mapping[int, float], slots: int, *, measured: bool) -> list[list[int]]:
    """Divide clients into cohorts of about equal length, the longest first, so that no slot begins a long one late.

    A cohort has a cost (a task run), so that short clients share one, as long as every slot has work.

    Args:
        expected: time of each client.
        slots: number of cohorts that are trained at once.
        measured: whether `expected` is in seconds; otherwise only its proportions count.
    """
    count = min(len(expected), MAX_COHORTS_PER_SLOT * slots)
    if measured:
        wanted = math.ceil(sum(expected.values()) / MIN_COHORT_SECONDS)
        count = min(count, max(slots, wanted))
    loads = [(0.0, number) for number in range(count)]
    found: list[list[int]] = [[] for _ in loads]
    for client in sorted(expected, key=lambda c: (-expected[c], c)):
        load, number = heapq.heappop(loads)
        found[number].append(client)
        heapq.heappush(loads, (load + expected[client], number))
    return sorted(found, key=lambda cohort: (-sum(expected[c] for c in cohort), cohort))


@dataclass
class Cohort:
    """Clients that are trained together.

    Args:
        unit: the work.
        expected: its time, in a unit that is the same for all cohorts.
    """

    unit: TrainCohort
    expected: float
    began: float | None = None
    copies: int = 0
    settled: bool = False


@dataclass
class Dispatch:
    """The cohorts of a round on their workers.

    Args:
        runner: executes units of work.
        slots: number of cohorts that are trained at once.
        straggler_factor: multiple of its expected time, by the other cohorts of the round, after which a cohort is also
            started on a free worker; 0: never.
        tell: called with every cohort that is started again.
        while_waiting: called repeatedly, while no cohort ends, with the clients of the running cohorts.
    """

    runner: Runner
    slots: int
    straggler_factor: float = 0.0
    tell: Callable[[Cohort], None] = lambda cohort: None
    while_waiting: Callable[[list[int]], None] | None = None
    _futures: dict[Future[Any], Cohort] = field(init=False, default_factory=dict)
    _rates: list[float] = field(init=False, default_factory=list)

    def run(self, cohorts: list[Cohort]) -> Iterator[tuple[Cohort, Trained | Failed | WorkerLost]]:
        """Yield each cohort with its answer, or the reason why there is none, as they end."""
        for cohort in cohorts:
            self._begin(cohort)
        left = len(cohorts)
        while left:
            for future in self._wait():
                cohort = self._futures.pop(future)
                cohort.copies -= 1
                answer = None if cohort.settled else self._answer(cohort, future)
                if answer is not None:
                    left -= 1
                    yield cohort, answer
            if self.straggler_factor:
                self._begin_overdue()

    def _wait(self) -> set[Future[Any]]:
        """Return the futures that have ended, once one has, or none after a pause if there is other work."""
        pause = None
        if self.while_waiting is not None:
            pause = WAITING_POLL_SECONDS
        elif self.straggler_factor:
            pause = POLL_SECONDS
        ended, _ = wait(self._futures, pause, FIRST_COMPLETED)
        if self.while_waiting is not None and not ended:
            self.while_waiting(sorted({client for each in self._futures.values() for client in each.unit.clients}))
        return ended

    def _answer(self, cohort: Cohort, future: Future[Any]) -> Trained | Failed | WorkerLost | None:
        """Return the answer of a copy of a cohort; None if it failed and the other copy still runs."""
        answer: Trained | Failed | WorkerLost
        try:
            answer = future.result()
        except WorkerLost as lost:
            answer = lost
        if cohort.copies and isinstance(answer, WorkerLost | Failed):
            return None
        cohort.settled = True
        if cohort.began is not None:
            self._rates.append((time.monotonic() - cohort.began) / max(cohort.expected, 1e-9))
        return answer

    def _begin(self, cohort: Cohort) -> None:
        def begun() -> None:
            cohort.began = cohort.began or time.monotonic()

        cohort.copies += 1
        self._futures[self.runner.submit(cohort.unit, begun)] = cohort

    def _begin_overdue(self) -> None:
        """Start copies of overdue cohorts on free workers; a worker is free only if no cohort waits."""
        free = self.slots - len(self._futures)
        if free <= 0 or not self._rates:
            return
        usual = statistics.median(self._rates)
        for cohort in list(self._futures.values()):
            if free and not cohort.settled and cohort.copies == 1 and cohort.began is not None:
                limit = max(self.straggler_factor * usual * cohort.expected, POLL_SECONDS)
                if time.monotonic() - cohort.began > limit:
                    self.tell(cohort)
                    self._begin(cohort)
                    free -= 1
