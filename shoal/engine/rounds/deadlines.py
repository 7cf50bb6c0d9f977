"""When a worker is held to hang: from how long such work took in this run.

A worker that is stopped uses no core; one that loops works on without an end. Either is ended by its pool, and its
clients are done elsewhere. Nothing is compared with another run or machine, and only rounds of one kind
(`Method.stage`) with each other: an exchange of samples says nothing of the training that follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from shoal.engine.settings.sections import WorkersSection
from shoal.engine.store.by_client import ByClient

COMPILING = 1800.0
"""Further seconds for networks that are compiled: a fresh process may compile anew, for each shape of batch."""


@dataclass(frozen=True)
class Limits:
    """How long work may take.

    Args:
        factor: times what it took so far; 0: as long as it likes.
        least: seconds that it always has; after so long without use of a core a worker counts as stopped.
        first: seconds for work of a kind that was not measured yet, for each client.
    """

    factor: float
    least: float
    first: float

    @classmethod
    def from_settings(cls, workers: WorkersSection) -> Limits:
        """As the settings say."""
        more = COMPILING if workers.compile != "off" else 0.0
        return cls(workers.deadline, workers.min_deadline + more, workers.first_deadline + more)

    def seconds(self, longest: float | None, parts: int = 1) -> float:
        """How long work may take that took `longest` seconds so far (None: not measured), or so long `parts` times."""
        if longest is None:
            return max(self.least, self.first * parts)
        return max(self.least, self.factor * longest)

    def why(self, work: str, spent: float, idle: float, allowed: float) -> str | None:
        """Why a worker is held to hang; None where it is not.

        Args:
            work: what it works on, for people.
            spent: seconds that it has worked on it.
            idle: the newest seconds in which it used no core.
            allowed: seconds that the work may take.
        """
        if not self.factor:
            return None
        if idle > self.least:
            return f"{work}, since it is stopped or waits in vain: it used no core for {idle:.0f} s"
        if spent > allowed:
            return f"{work}, which took {spent:.0f} s, longer than the {allowed:.0f} s of its deadline"
        return None


@dataclass
class StageTimes:
    """What clients took in rounds of one kind, with what is asked of all of them kept at hand: they may be a million.

    Attributes:
        clients: the longest of each.
        max_update_ratio: of all.
        rate: the highest, in seconds a sample.
    """

    clients: ByClient = field(default_factory=ByClient)
    longest: float = 0.0
    rate: float = 0.0

    def took(self, client: int, seconds: float, samples: int) -> None:
        """Count in a client's work."""
        self.clients[client] = max(seconds, self.clients.get(client) or 0.0)
        self.longest = max(seconds, self.longest)
        self.rate = max(seconds / max(1, samples), self.rate)

    def expected(self, client: int, samples: int) -> float:
        """Seconds of a client: one that was not measured takes as long as the slowest, for each sample and in all."""
        measured = self.clients.get(client)
        return max(self.longest, self.rate * samples) if measured is None else measured


@dataclass
class WorkTimes:
    """What work took in this process, the longest counts, by kind of round.

    Args:
        limits: how long work may take.
        sizes: training samples of each client.
    """

    limits: Limits
    sizes: Sequence[int]
    _stages: dict[str, StageTimes] = field(default_factory=dict, init=False)
    _evaluation: float | None = field(default=None, init=False)

    def trained(self, stage: str, client: int, seconds: float) -> None:
        """Remember how long a client's work took in a round of a kind."""
        self._stages.setdefault(stage, StageTimes()).took(client, seconds, self.sizes[client])

    def evaluated(self, seconds: float) -> None:
        """Remember how long an evaluation took that was not the last."""
        self._evaluation = max(seconds, self._evaluation or 0.0)

    def allowed(self, stage: str, group: Sequence[int]) -> float:
        """Seconds for the work of clients that are trained in one computation."""
        known = self._stages.get(stage)
        if known is None:
            return self.limits.seconds(None, len(group))
        return self.limits.seconds(sum(known.expected(client, self.sizes[client]) for client in group))

    def cohort(
        self,
        stage: str,
        groups: Sequence[Sequence[int]],
        done: Callable[[int], Hashable],
        failed: Callable[[int], Hashable],
    ) -> CohortDeadline:
        """The deadline of a cohort that begins now.

        Args:
            stage: the kind of round.
            groups: its clients in groups, each trained in one computation, in order.
            done: given a client, what tells its done-file of now from that of any other time.
            failed: the same of the mark of its failure.
        """
        return CohortDeadline(self, stage, [list(group) for group in groups], done, failed)

    def evaluation(self, round: int, *, final: bool) -> Deadline:
        """The deadline of an evaluation; the last one computes more than those before it."""
        return Deadline(self.limits, f"evaluation of round {round}", None if final else self._evaluation)


@dataclass
class Deadline:
    """When a worker is held to hang that does one piece of work (as of `shoal.engine.messages.wire.Deadline`).

    Args:
        limits: how long work may take.
        work: what it works on, for people.
        max_update_ratio: seconds that such work took so far; None where it was not measured.
    """

    limits: Limits
    work: str
    longest: float | None = None

    def why(self, spent: float, idle: float) -> str | None:
        """Why the worker is held to hang; None where it is not."""
        return self.limits.why(self.work, spent, idle, self.limits.seconds(self.longest))


class CohortDeadline:
    """When a worker is held to hang that trains a cohort: each group of clients has its time.

    What other clients of the round took meanwhile counts, so that a first round is not waited for in vain. How long a
    client took that failed says nothing of the others.
    """

    def __init__(
        self,
        times: WorkTimes,
        stage: str,
        groups: list[list[int]],
        done: Callable[[int], Hashable],
        failed: Callable[[int], Hashable],
    ) -> None:
        self._times, self._stage, self._left = times, stage, groups
        self._done, self._failed = done, failed
        self._before = {client: (done(client), failed(client)) for group in groups for client in group}
        self._since = 0.0

    def why(self, spent: float, idle: float) -> str | None:
        """Why the worker is held to hang; None where it is not."""
        while self._left:
            group = self._left[0]
            done = [client for client in group if self._done(client) != self._before[client][0]]
            if any(self._failed(client) == self._before[client][1] for client in set(group) - set(done)):
                break
            self._left.pop(0)
            for client in done:
                self._times.trained(self._stage, client, (spent - self._since) / len(group))
            self._since = spent
        limits = self._times.limits
        if not self._left:
            return limits.why("the answer of a cohort", spent - self._since, idle, limits.least)
        group = self._left[0]
        work = f"client{'s' * (len(group) > 1)} {', '.join(map(str, group))}"
        return limits.why(work, spent - self._since, idle, self._times.allowed(self._stage, group))
