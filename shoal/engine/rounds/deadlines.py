"""Deadlines of workers, from how long such work took in this run.

A worker that is stopped uses no core; a worker in an endless loop never answers. The pool ends either of them, and
other workers do the work again. Times are compared only within a process, and only between rounds of one kind
(`Method.stage`): the time of an exchange of samples does not predict that of the training that follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from shoal.engine.settings.sections import WorkersSection

LONGEST_TIME_FACTOR = 10.0
"""Multiple of the longest measured time after which work is late."""
MIN_DEADLINE_SECONDS = 300.0
"""No work is late before; a worker that uses no core for so long counts as stopped."""
FIRST_DEADLINE_SECONDS = 21600.0
"""Seconds for each client before any work of its kind was measured, and for the last evaluation."""


@dataclass(frozen=True)
class Limits:
    """Time limits of work.

    Args:
        factor: multiple of the longest measured time; 0: no limits.
        min_seconds: lower bound of every limit; a worker that uses no core for so long counts as stopped.
        first_seconds: limit for each client while no work of its kind was measured.
    """

    factor: float
    min_seconds: float
    first_seconds: float

    @classmethod
    def from_settings(cls, workers: WorkersSection) -> Limits:
        """Return the limits of a run: the constants above, times `workers.timeout_factor`."""
        scale = workers.timeout_factor
        return cls(LONGEST_TIME_FACTOR * scale, MIN_DEADLINE_SECONDS * scale, FIRST_DEADLINE_SECONDS * scale)

    def seconds(self, max_seconds: float | None, clients: int = 1) -> float:
        """Return the limit of work whose longest measured time is `max_seconds`, or None: not yet measured."""
        if max_seconds is None:
            return max(self.min_seconds, self.first_seconds * clients)
        return max(self.min_seconds, self.factor * max_seconds)

    def reason(self, work: str, spent: float, idle: float, allowed: float) -> str | None:
        """Return why a worker counts as hung; None if it does not.

        Args:
            work: what it works on, for people.
            spent: seconds since it began.
            idle: the newest seconds in which it used no core.
            allowed: limit of the work, in seconds.
        """
        if not self.factor:
            return None
        if idle > self.min_seconds:
            return f"{work}: it is stopped or blocked, since it used no core for {idle:.0f} s"
        if spent > allowed:
            return f"{work}, which took {spent:.0f} s, longer than the {allowed:.0f} s of its deadline"
        return None


@dataclass
class StageTimes:
    """Times of clients in rounds of one kind; the maxima are kept beside them, since clients may be a million.

    Attributes:
        clients: the longest time of each client, in seconds.
        max_seconds: the longest of all.
        rate: the highest time for each sample, in seconds.
    """

    clients: dict[int, float] = field(default_factory=dict)
    max_seconds: float = 0.0
    rate: float = 0.0

    def add(self, client: int, seconds: float, samples: int) -> None:
        """Record the time of a client's work."""
        self.clients[client] = max(seconds, self.clients.get(client, 0.0))
        self.max_seconds = max(seconds, self.max_seconds)
        self.rate = max(seconds / max(1, samples), self.rate)

    def expected(self, client: int, samples: int) -> float:
        """Return the expected seconds of a client; without a measurement it counts as the slowest."""
        measured = self.clients.get(client)
        if measured is None:
            return max(self.max_seconds, self.rate * samples)
        return measured


@dataclass
class WorkTimes:
    """The longest times that work took in this process, by kind of round.

    Args:
        limits: time limits of work.
        sizes: training samples of each client.
    """

    limits: Limits
    sizes: Sequence[int]
    _stages: dict[str, StageTimes] = field(default_factory=dict, init=False)
    _evaluation: float | None = field(default=None, init=False)

    def trained(self, stage: str, client: int, seconds: float) -> None:
        """Record how long a client's work took in a round of a kind."""
        self._stages.setdefault(stage, StageTimes()).add(client, seconds, self.sizes[client])

    def evaluated(self, seconds: float) -> None:
        """Record how long an evaluation took; the last one of a run, which computes more, is not to be recorded."""
        self._evaluation = max(seconds, self._evaluation or 0.0)

    def allowed(self, stage: str, group: Sequence[int]) -> float:
        """Return the limit, in seconds, for a group of clients that are trained in one computation."""
        times = self._stages.get(stage)
        if times is None:
            return self.limits.seconds(None, len(group))
        return self.limits.seconds(sum(times.expected(client, self.sizes[client]) for client in group))

    def cohort(
        self,
        stage: str,
        groups: Sequence[Sequence[int]],
        done: Callable[[int], Hashable],
        failed: Callable[[int], Hashable],
    ) -> CohortDeadline:
        """Return the deadline of a cohort that begins now.

        Args:
            stage: the kind of round.
            groups: its clients in groups, each trained in one computation, in order.
            done: returns the present version of a client's done-file; a new file has another version.
            failed: returns the same of the mark of a client's failure.
        """
        return CohortDeadline(self, stage, [list(group) for group in groups], done, failed)

    def evaluation(self, round: int, *, final: bool) -> Deadline:
        """Return the deadline of an evaluation; the last one computes more than those before it."""
        max_seconds = None if final else self._evaluation
        return Deadline(self.limits, f"evaluation of round {round}", max_seconds)


@dataclass
class Deadline:
    """The deadline of one piece of work; implements `shoal.engine.messages.wire.Deadline`.

    Args:
        limits: time limits of work.
        work: what the worker works on, for people.
        max_seconds: longest measured time of such work, in seconds; None: not yet measured.
    """

    limits: Limits
    work: str
    max_seconds: float | None = None

    def reason(self, spent: float, idle: float) -> str | None:
        """Return why the worker counts as hung; None if it does not."""
        return self.limits.reason(self.work, spent, idle, self.limits.seconds(self.max_seconds))


class CohortDeadline:
    """The deadline of a cohort, which each group of clients in it has on its own.

    Times that other clients of the round take meanwhile count, so that a first round need not wait for the first limit.
    The time of a failed client does not count.
    """

    def __init__(
        self,
        times: WorkTimes,
        stage: str,
        groups: list[list[int]],
        done: Callable[[int], Hashable],
        failed: Callable[[int], Hashable],
    ) -> None:
        self._times = times
        self._stage = stage
        self._pending = groups
        self._done = done
        self._failed = failed
        self._done_before = {client: done(client) for group in groups for client in group}
        self._failed_before = {client: failed(client) for group in groups for client in group}
        self._group_began = 0.0

    def reason(self, spent: float, idle: float) -> str | None:
        """Return why the worker counts as hung; None if it does not."""
        while self._pending and self._is_complete(self._pending[0]):
            group = self._pending.pop(0)
            for client in self._finished(group):
                self._times.trained(self._stage, client, (spent - self._group_began) / len(group))
            self._group_began = spent
        limits = self._times.limits
        seconds = spent - self._group_began
        if not self._pending:
            return limits.reason("the answer of a cohort", seconds, idle, limits.min_seconds)
        group = self._pending[0]
        noun = "client" if len(group) == 1 else "clients"
        work = f"{noun} {', '.join(map(str, group))}"
        return limits.reason(work, seconds, idle, self._times.allowed(self._stage, group))

    def _finished(self, group: list[int]) -> list[int]:
        """Return the clients of a group that have a done-file since the cohort began."""
        return [client for client in group if self._done(client) != self._done_before[client]]

    def _is_complete(self, group: list[int]) -> bool:
        """Return whether every client of a group is done or has failed since the cohort began."""
        rest = set(group) - set(self._finished(group))
        return all(self._failed(client) != self._failed_before[client] for client in rest)
