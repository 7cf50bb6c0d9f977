"""Cohorts on workers: started in order, and returned as they end."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

from shoal.engine.messages.wire import Failed, Trained
from shoal.engine.rounds.units import Runner, TrainCohort
from shoal.engine.workers.worker_processes import WorkerLost

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
class Dispatch:
    """The cohorts of a round on their workers.

    Args:
        runner: executes units of work.
        while_waiting: called repeatedly, while no cohort ends, with the clients of the running cohorts.
    """

    runner: Runner
    while_waiting: Callable[[list[int]], None] | None = None

    def run(self, cohorts: list[TrainCohort]) -> Iterator[tuple[TrainCohort, Trained | Failed | WorkerLost]]:
        """Yield each cohort with its answer, or the reason why there is none, as they end."""
        running = {self.runner.submit(cohort): cohort for cohort in cohorts}
        while running:
            for future in self._wait(running):
                cohort = running.pop(future)
                try:
                    yield cohort, future.result()
                except WorkerLost as lost:
                    yield cohort, lost

    def _wait(self, running: Mapping[Future[Any], TrainCohort]) -> set[Future[Any]]:
        """Return the futures that have ended, once one has, or none after a pause if there is other work."""
        if self.while_waiting is None:
            return wait(running, None, FIRST_COMPLETED).done
        ended = wait(running, WAITING_POLL_SECONDS, FIRST_COMPLETED).done
        if not ended:
            self.while_waiting(sorted({client for cohort in running.values() for client in cohort.clients}))
        return ended
