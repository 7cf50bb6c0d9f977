"""Worker slots on hosts that take their work from Prefect's server (`shoal work`, `tasks.serving`).

Which host gets a request is decided here. Prefect's own queue for all hosts would hand a busy one a second request
while another is idle: a task worker takes one more than it works on. Prefect does not act when a host is gone, but its
list of connected task workers tells: one whose process was killed stands there no more within two seconds, one whose
machine was cut off within forty, by the pings of its connection.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from core.errors import brief, shown
from engine import cluster_work
from engine.cluster_work import IN_FLIGHT, cluster_lost
from engine.process_clock import WallClock
from engine.settings import SettingsError, WorkersSection
from engine.wire import Answer, RemoteRequest, Request, Train, answer_of
from engine.wire_text import plain_of, text_of
from engine.worker_processes import WorkerLost
from tasks.hosts import Host, version_here
from tasks.prefect_environment import quiet

quiet()

from tasks.prefect_channel import LOST, UNREACHED, Channel, NoServer  # noqa: E402 (Prefect's environment comes first)

PATIENCE = 20.0
"""Seconds for a server that does not answer to come back."""
GONE = 8.0
"""Seconds for a host that is not connected to come back: a connection may break and be made anew."""
REST = 3.0
"""Seconds in which a host that lost a request gets no other: by then one that ends is not connected any more."""
HOSTS, STATES = 1.0, 2.0
"""Seconds between two questions for the hosts, and for the states of task runs."""
FIRST, LAST, SHARE = 0.05, 0.5, 0.05
"""Seconds between two questions for answers, at least and at most, and as a share of how long the newest takes."""
LEAVING = 10.0
"""Seconds that whoever waits has to take its request back when this is closed."""
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


@dataclass
class Given:
    """A request that a host was given.

    Args:
        key: of the host's task.
        host: the host.
        at: when, by the clock of the pool.
    """

    key: str
    host: Host
    at: float
    answer: tuple[str, str] | None = None
    """The artifact's id, and its text."""
    begun: WallClock | None = None
    lost: str | None = None
    """Why there will be no answer."""
    missed: float | None = None
    """Since when its host is not connected."""
    unheard: float | None = None
    """When the server was last out of reach, since it was given: a server that was started anew has no queue."""
    ended: int = 0
    """How often its task run was seen to have ended without an answer."""


@dataclass
class Seen:
    """What was heard of the server last, by the clock of the pool."""

    hosts: dict[str, Host] = field(default_factory=dict)
    others: dict[str, Host] = field(default_factory=dict)
    """Hosts that serve, and not for this run."""
    heard: float = 0.0
    emptied: float | None = 0.0
    """Since when no host serves this run; None while one does."""


class PrefectPool:
    """The slots of all hosts that serve a run, hosts that join later included.

    Args:
        channel: to the Prefect server.
        device: where slots are to compute, cpu or cuda.
        slots: requests at once, at most; None: as many as the hosts have slots.
        empty: seconds for which no host may serve.
    """

    def __init__(self, channel: Channel, device: str, slots: int | None, empty: float) -> None:
        self._channel, self._device, self._slots, self._empty = channel, device, slots, empty
        self._clock, self._seen = WallClock(), Seen()
        self._given: dict[UUID, Given] = {}
        self._taken: Counter[str] = Counter()
        self._resting: dict[str, float] = {}
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._watcher = threading.Thread(target=self._watch, daemon=True, name="shoal prefect")
        self._watcher.start()

    @property
    def count(self) -> int:
        """How many requests are worked on at once, by the hosts that serve now."""
        have = sum(host.slots for host in self._seen.hosts.values())
        return max(1, have if self._slots is None else min(have, self._slots))

    @property
    def most(self) -> int:
        """As of `engine.pools.Pool`: requests wait here for hosts that join."""
        return max(self.count, IN_FLIGHT) if self._slots is None else self._slots

    def wait_for_hosts(self) -> None:
        """Wait until a host serves, no longer than it may last: whoever asks for work then is told that none does."""
        with self._changed:
            while not self._seen.hosts and not self._why_not()[0]:
                self._changed.wait(cluster_work.LOOK)

    def close(self) -> None:
        """Have whoever waits for an answer stop waiting, and take its request back."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._taken.total() and not self._waiting, LEAVING)
        self._watcher.join(LEAVING)

    def call(self, request: Request | RemoteRequest) -> Answer:
        """As of `engine.pools.Pool`.

        Raises:
            WorkerLost: as of `Pool`. ClusterLost: the server does not answer any more, or no host serves.
        """
        key, host = self._take(request)
        try:
            return self._done_by(key, host, request)
        except WorkerLost:
            with self._changed:  # it may be ending, or its slot be started anew
                self._resting[key] = self._clock.spent + REST
            raise
        finally:
            with self._changed:
                self._taken[key] -= 1
                self._changed.notify_all()

    # --- slots

    def _take(self, request: Request | RemoteRequest) -> tuple[str, Host]:
        """A free slot of a host, in the order of asking: the longest work is asked for first."""
        me = object()
        with self._changed:
            self._waiting.append(me)
            try:
                while True:
                    self._check(request)
                    free = self._free() if self._waiting[0] is me else None
                    if free is not None:
                        self._taken[free] += 1
                        return free, self._seen.hosts[free]
                    self._changed.wait(cluster_work.LOOK)
            finally:
                self._waiting.remove(me)
                self._changed.notify_all()

    def _free(self) -> str | None:
        """The host with the most free slots; None where there is none, or enough is at work."""
        if self._slots is not None and self._taken.total() >= self._slots:
            return None
        now, resting = self._clock.spent, self._resting
        awake = {key: host for key, host in self._seen.hosts.items() if resting.get(key, 0.0) <= now}
        left = {key: host.slots - self._taken[key] for key, host in awake.items()}
        best = max(left, key=lambda key: left[key], default=None)
        return best if best is not None and left[best] > 0 else None

    # --- one request

    def _done_by(self, key: str, host: Host, request: Request | RemoteRequest) -> Answer:
        try:
            run, artifact = self._channel.submit(key, title(request, host), text_of(request.plain()))
        except UNREACHED as error:
            raise WorkerLost(f"Prefect's server took no request ({type(error).__name__})") from None
        given = Given(key, host, self._clock.spent)
        try:
            with self._changed:
                self._given[run] = given
                self._changed.notify_all()
                while given.answer is None:
                    self._check(request)
                    self._still(given, request)
                    self._changed.wait(cluster_work.LOOK)
            return answer_in(given.answer[1], request, host)
        finally:
            self._take_back(run, artifact, given)

    def _still(self, given: Given, request: Request | RemoteRequest) -> None:
        """Go on waiting only for an answer that may come.

        Raises:
            WorkerLost: it will not come, or takes too long.
        """
        if given.lost is not None:
            raise WorkerLost(f"host {given.host.name} {given.lost}")
        if given.begun is not None and request.deadline is not None:
            given.begun.look()
            why = request.deadline.why(given.begun.spent, 0.0)
            if why:
                raise WorkerLost(f"host {given.host.name} was given up at {why}")

    def _take_back(self, run: UUID, artifact: str, given: Given) -> None:
        """Remove what belongs to a request. A host that still works on it notices, and ends that work."""
        try:
            with contextlib.suppress(*UNREACHED, RuntimeError):  # a connection that was closed meanwhile
                self._channel.remove(artifact)
                if given.answer is not None:
                    self._channel.remove(given.answer[0])
                else:
                    self._channel.cancel(run)
        finally:
            with self._changed:
                self._given.pop(run, None)
                self._changed.notify_all()

    def _check(self, request: Request | RemoteRequest) -> None:
        """Go on only where the server answers and a host serves, or may yet.

        Raises:
            ClusterLost: neither comes back. WorkerLost: this pool is closed.
        """
        if self._closed:
            raise WorkerLost("the Prefect hosts of this run were let go")
        what, mend = self._why_not()
        if what:
            raise cluster_lost(what, mend, request)

    def _why_not(self) -> tuple[str, str]:
        """What has been missing for too long, and how to mend it; nothing of both otherwise."""
        self._clock.look()  # here too: the watch may be waiting for a server that is stopped
        now, seen, url = self._clock.spent, self._seen, self._channel.url
        if now - seen.heard > PATIENCE:
            what = f"the Prefect server at {url} has not answered for {now - seen.heard:.0f} s"
            return what, "start it again"
        if seen.emptied is None or now - seen.emptied <= self._empty:
            return "", ""
        here = version_here()
        told = [
            f"{host.name} has {host.device}" if host.version == here else f"{host.name} has {host.version}"
            for host in seen.others.values()
        ]
        other = f"; this run wants {self._device} and {here}, and {', '.join(sorted(set(told)))}" if told else ""
        return (
            f"no host has served this run at the Prefect server {url} for {now - seen.emptied:.0f} s{other}",
            f"start `PREFECT_API_URL={url} shoal work --device {self._device}` on at least one host",
        )

    # --- what the server says

    def _watch(self) -> None:
        asked_hosts = asked_states = -STATES
        while not self._closed:
            with self._changed:
                self._clock.look()
                now = self._clock.spent
            try:
                if now - asked_hosts >= HOSTS:
                    asked_hosts = now
                    self._see_hosts(self._channel.hosts())
                with self._changed:
                    runs = [run for run, given in self._given.items() if given.answer is None]
                answers = self._channel.answers(runs)
                states: dict[UUID, str] = {}
                if now - asked_states >= STATES:
                    asked_states = now
                    states = self._channel.states(runs)
                self._see_runs(answers, states)
            except Exception:  # whatever it says instead of an answer: nothing was heard of it
                with self._changed:
                    for given in self._given.values():
                        given.unheard = self._clock.spent
                    self._changed.notify_all()
            with self._changed:
                if not self._closed:
                    self._changed.wait(self._pause())

    def _pause(self) -> float:
        if not self._given:
            return LAST
        newest = self._clock.spent - max(given.at for given in self._given.values())
        return min(LAST, max(FIRST, SHARE * newest))

    def _see_hosts(self, connected: dict[str, Host]) -> None:
        here = version_here()
        fit = {key: host for key, host in connected.items() if (host.device, host.version) == (self._device, here)}
        with self._changed:
            self._clock.look()
            now, seen = self._clock.spent, self._seen
            seen.heard, seen.hosts = now, fit
            seen.others = {key: host for key, host in connected.items() if key not in fit}
            seen.emptied = None if fit else now if seen.emptied is None else seen.emptied
            for given in self._given.values():
                if given.key in connected:
                    given.missed = None
                elif given.missed is None:
                    given.missed = now
                elif now - given.missed > GONE:
                    given.lost = "was lost in the middle of its work: it is not connected to Prefect's server any more"
            self._changed.notify_all()

    def _see_runs(self, answers: dict[UUID, tuple[str, str]], states: dict[UUID, str]) -> None:
        with self._changed:
            for run, answer in answers.items():
                if run in self._given:
                    self._given[run].answer = answer
            for run, state in states.items():
                given = self._given.get(run)
                if given is None or given.answer is not None:
                    continue
                waits = self._clock.spent - (given.unheard or self._clock.spent)
                if state in ENDED:
                    given.ended += 1
                elif state != "SCHEDULED":
                    given.begun = given.begun or WallClock()
                elif waits > GONE:
                    given.lost = "was not told of a request: Prefect's server was started anew meanwhile"
                if given.ended > 1:
                    given.lost = f"ended its work as {state.lower()}, without an answer"
            self._changed.notify_all()


def answer_in(text: str, request: Request | RemoteRequest, host: Host) -> Answer:
    """The answer of a host to a request, from its text.

    Raises:
        WorkerLost: the host lost the slot that worked on it, or the text is no answer.
    """
    try:
        plain = plain_of(text)
        if LOST not in plain:
            return answer_of(request, plain)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise WorkerLost(f"host {host.name} gave an answer that cannot be read ({brief(error)})") from None
    raise WorkerLost(f"host {host.name}: {shown(plain[LOST], 300)}")


def title(request: Request | RemoteRequest, host: Host) -> str:
    """What a request's task run is called, for people."""
    asked = request.request if isinstance(request, RemoteRequest) else request
    what: Any = type(asked).__name__.lower()
    if isinstance(asked, Train):
        what = f"clients {', '.join(str(each.client) for each in asked.clients)}"
    return f"round {asked.round}, {what}, on {host.name}"[:200]


@contextlib.contextmanager
def prefect_pool(workers: WorkersSection, device: str) -> Iterator[PrefectPool]:
    """The hosts that serve at the Prefect server of PREFECT_API_URL.

    Args:
        workers: of the run's settings.
        device: where slots compute, cpu or cuda.

    Raises:
        SettingsError: no such server is named, or it does not answer.
    """
    with contextlib.closing(connected()) as channel:
        slots = None if workers.slots == "auto" else int(workers.slots)
        pool = PrefectPool(channel, device, slots, workers.empty)
        with contextlib.closing(pool):
            pool.wait_for_hosts()
            yield pool


def connected() -> Channel:
    """A connection to the Prefect server of PREFECT_API_URL.

    Raises:
        SettingsError: none is named, or it does not answer.
    """
    try:
        return Channel()
    except NoServer as error:
        raise SettingsError(f"workers.runner: prefect needs Prefect's server; {error}") from None
