"""Cohorts on workers: begun in the order given, taken as they end, begun once more where one hangs.

A cohort that is trained twice leaves the same bits, so whichever copy ends first counts.
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
"""Between checks for overdue cohorts."""
WAITING_POLL_SECONDS = 0.1
"""Between calls of `while_waiting`."""
MIN_COHORT_SECONDS = 2.0
"""For which a cohort should train, where there are enough clients."""
MAX_COHORTS_PER_SLOT = 8
"""In a round."""


def even_cohorts(expected: Mapping[int, float], slots: int, *, measured: bool) -> list[list[int]]:
    """Divide clients into cohorts of about equal length, the longest first: no slot gets a long one at the end.

    A cohort has its price (a task run), so that short clients share one, as long as every slot has work.

    Args:
        expected: how long each client takes.
        slots: worked on at once.
        measured: whether `expected` is in seconds; else only its proportions count.
    """
    most = min(len(expected), MAX_COHORTS_PER_SLOT * slots)
    wanted = math.ceil(sum(expected.values()) / MIN_COHORT_SECONDS) if measured else most
    loads = [(0.0, number) for number in range(min(most, max(slots, wanted)))]
    found: list[list[int]] = [[] for _ in loads]
    for client in sorted(expected, key=lambda c: (-expected[c], c)):
        load, number = heapq.heappop(loads)
        found[number].append(client)
        heapq.heappush(loads, (load + expected[client], number))
    return sorted(found, key=lambda cohort: (-sum(expected[c] for c in cohort), cohort))


@dataclass
class Cohort:
    """Clients on their way to be trained together.

    Args:
        unit: the work.
        expected: how long it takes, in any unit that is the same for all cohorts.
    """

    unit: TrainCohort
    expected: float
    began: float | None = None
    copies: int = 0
    settled: bool = False


@dataclass
class Dispatch:
    """Cohorts of a round on their way.

    Args:
        runner: has units of work executed.
        slots: cohorts worked on at once.
        reissue: a cohort is begun again, on a free worker, when it takes so many times longer than the others of its
            round lead to expect; 0 for never.
        tell: told of every cohort that is begun again.
        while_waiting: called now and then, while nothing ends, with the clients of the cohorts under way.
    """

    runner: Runner
    slots: int
    reissue: float = 0.0
    tell: Callable[[Cohort], None] = lambda cohort: None
    while_waiting: Callable[[list[int]], None] | None = None
    _futures: dict[Future[Any], Cohort] = field(init=False, default_factory=dict)
    _rates: list[float] = field(init=False, default_factory=list)

    def run(self, cohorts: list[Cohort]) -> Iterator[tuple[Cohort, Trained | Failed | WorkerLost]]:
        """Yield each cohort with its answer, or with why there is none, as they end."""
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
            if self.reissue:
                self._begin_overdue()

    def _wait(self) -> set[Future[Any]]:
        """Return the futures that have ended, once one has, or none after a while in which there is else to do."""
        pause = None
        if self.while_waiting is not None:
            pause = WAITING_POLL_SECONDS
        elif self.reissue:
            pause = POLL_SECONDS
        ended, _ = wait(self._futures, pause, FIRST_COMPLETED)
        if self.while_waiting is not None and not ended:
            self.while_waiting(sorted({client for each in self._futures.values() for client in each.unit.clients}))
        return ended

    def _answer(self, cohort: Cohort, future: Future[Any]) -> Trained | Failed | WorkerLost | None:
        """Return what a copy of a cohort ended with; None where it failed and the other copy is still at work."""
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
        """Begin copies of overdue cohorts, where workers are free: nothing waits then, since cohorts begin in order."""
        free = self.slots - len(self._futures)
        if free <= 0 or not self._rates:
            return
        usual = statistics.median(self._rates)
        for cohort in list(self._futures.values()):
            if free and not cohort.settled and cohort.copies == 1 and cohort.began is not None:
                limit = max(self.reissue * usual * cohort.expected, POLL_SECONDS)
                if time.monotonic() - cohort.began > limit:
                    self.tell(cohort)
                    self._begin(cohort)
                    free -= 1
