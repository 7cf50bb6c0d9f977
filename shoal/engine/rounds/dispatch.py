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

POLL = 0.5
"""Seconds between looks at whether a cohort is overdue."""

LOOK = 0.1
"""Seconds between looks at what clients of cohorts under way have finished."""
COHORT = 2.0
"""Seconds that a cohort should take at least, where there are clients enough."""
MOST = 8
"""Cohorts of a round, at most so many for each slot."""


def even_cohorts(expected: Mapping[int, float], slots: int, *, measured: bool) -> list[list[int]]:
    """Clients in cohorts of about equal length, the longest first: no slot is left with a long one at the end.

    A cohort has its price (a task run), so that short clients share one, as long as every slot has work.

    Args:
        expected: how long each client takes.
        slots: worked on at once.
        measured: whether `expected` is in seconds; else only its proportions count.
    """
    most = min(len(expected), MOST * slots)
    wanted = math.ceil(sum(expected.values()) / COHORT) if measured else most
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
        runner: has units of work carried out.
        slots: cohorts worked on at once.
        reissue: a cohort is begun again, on a free worker, when it takes so many times longer than the others of its
            round lead to expect; 0 for never.
        tell: told of every cohort that is begun again.
        look: called now and then, while nothing ends, with the clients of the cohorts under way.
    """

    runner: Runner
    slots: int
    reissue: float = 0.0
    tell: Callable[[Cohort], None] = lambda cohort: None
    look: Callable[[list[int]], None] | None = None
    _futures: dict[Future[Any], Cohort] = field(init=False, default_factory=dict)
    _rates: list[float] = field(init=False, default_factory=list)

    def run(self, cohorts: list[Cohort]) -> Iterator[tuple[Cohort, Trained | Failed | WorkerLost]]:
        """Each cohort with its answer, or with why there is none, as they end."""
        for cohort in cohorts:
            self._begin(cohort)
        left = len(cohorts)
        while left:
            pause = LOOK if self.look else POLL if self.reissue else None
            done, _ = wait(self._futures, pause, FIRST_COMPLETED)
            if self.look and not done:
                self.look(sorted({client for cohort in self._futures.values() for client in cohort.unit.clients}))
            for future in done:
                cohort = self._futures.pop(future)
                cohort.copies -= 1
                if cohort.settled:
                    continue
                try:
                    answer: Trained | Failed | WorkerLost = future.result()
                except WorkerLost as lost:
                    answer = lost
                if cohort.copies and isinstance(answer, WorkerLost | Failed):
                    continue  # its other copy is still at work
                cohort.settled = True
                left -= 1
                if cohort.began is not None:
                    self._rates.append((time.monotonic() - cohort.began) / max(cohort.expected, 1e-9))
                yield cohort, answer
            if self.reissue:
                self._begin_overdue()

    def _begin(self, cohort: Cohort) -> None:
        def begun() -> None:
            cohort.began = cohort.began or time.monotonic()

        cohort.copies += 1
        self._futures[self.runner.submit(cohort.unit, begun)] = cohort

    def _begin_overdue(self) -> None:
        """Copies of overdue cohorts, where workers are free: nothing waits then, since cohorts begin in order."""
        free = self.slots - len(self._futures)
        if free <= 0 or not self._rates:
            return
        usual = statistics.median(self._rates)
        for cohort in list(self._futures.values()):
            if free and not cohort.settled and cohort.copies == 1 and cohort.began is not None:
                limit = max(self.reissue * usual * cohort.expected, POLL)
                if time.monotonic() - cohort.began > limit:
                    self.tell(cohort)
                    self._begin(cohort)
                    free -= 1
