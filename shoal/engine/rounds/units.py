"""The units of work of a round. Each says what is to be done in a few words that can be sent to another host.

A unit names its run by its folder. The process that executes it finds the run active, or opens it
(`shoal.engine.rounds.active_run`). Executing a unit a second time leaves the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from shoal.engine.messages.wire import ClientFiles, Evaluate, Evaluated, Failed, Train, Trained
from shoal.engine.rounds.active_run import ActiveRun, acting_for, active_run_at, registered_run
from shoal.engine.rounds.aggregation import aggregate
from shoal.engine.rounds.evaluation_parts import evaluate_in_parts, save_judged
from shoal.engine.store.memory_index import MemoryIndex
from shoal.engine.store.round_paths import SERVER, RoundPaths, version


class Unit(Protocol):
    """Some work of a run."""

    @property
    def name(self) -> str:
        """What it is called among the units of its run, for people."""
        ...

    def execute(self) -> Any:
        """Do it here, now."""
        ...


@dataclass(frozen=True)
class TrainCohort:
    """Train some clients of a round on one worker, all from the same server state.

    Args:
        run: the run's folder.
        round: the round.
        groups: the clients' ids in groups, each trained in one computation.
    """

    run: Path
    round: int
    groups: tuple[tuple[int, ...], ...]

    @property
    def clients(self) -> tuple[int, ...]:
        """All clients of the cohort."""
        return tuple(client for group in self.groups for client in group)

    @property
    def name(self) -> str:
        """Round and clients."""
        return f"round {self.round}, clients {', '.join(map(str, self.clients))}"

    def execute(self) -> Trained | Failed:
        """Have a worker train them.

        Raises:
            WorkerLost: it ended in the middle.
        """
        active_run = active_run_at(self.run)
        server, index = active_run.state(self.round - 1)
        begun_from = None if active_run.answer_schedule is None else active_run.begun_from(self.round, self.clients[0])
        paths = RoundPaths(self.run, self.round)
        stage = active_run.opened.method.stage(server)
        deadline = active_run.times.cohort(
            stage, self.groups, lambda c: version(paths.done(c)), lambda c: version(paths.failed(c))
        )
        clients = tuple(
            ClientFiles(c, index.memory.get(c), tuple(index.inbox.get(c, ())), index.of_client(c)) for c in self.clients
        )
        answer = active_run.call(Train(self.run, self.round, clients, self.groups, deadline, begun_from=begun_from))
        assert isinstance(answer, Trained | Failed)
        return answer


@dataclass(frozen=True)
class AggregateRound:
    """Make the next server state from the finished work of a round's clients, and begin its checkpoint.

    Args:
        run: the run's folder.
        round: the round.
        clients: the ids of those that came through.
        least: where the server refuses so many that fewer than this are left, there is no next state.
    """

    run: Path
    round: int
    clients: tuple[int, ...]
    least: int = 1

    @property
    def name(self) -> str:
        """The round."""
        return f"round {self.round}, aggregate"

    def execute(self) -> dict[int, Failed]:
        """The state is in the checkpoint's scratch folder after this.

        Returns:
            Whose answers were not taken, and why: see `aggregate`.

        Raises:
            RunError: the method's state is of another round or not finite, or the work of a client is not there.
        """
        return aggregate(active_run_at(self.run), self.round, self.clients, self.least)


@dataclass(frozen=True)
class EvaluateRound:
    """Have a worker compute the metrics of the state whose checkpoint has been begun; keep what it was judged with.

    Args:
        run: the run's folder.
        round: the round.
        final: also what is computed only at the end of a run.
        workers: how many may share the work.
    """

    run: Path
    round: int
    final: bool
    workers: int = 1

    @property
    def name(self) -> str:
        """The round."""
        return f"round {self.round}, evaluate"

    def execute(self) -> Evaluated | Failed:
        """Ask a worker, or several for a part each.

        Raises:
            WorkerLost: one of them ended in the middle.
        """
        active_run = active_run_at(self.run)
        _, memory_index = active_run.state(self.round)
        if not active_run.opened.method.evaluation_reads_memory:
            memory_index = MemoryIndex()  # of which nothing has to travel
        scratch = RoundPaths(self.run, self.round).scratch
        deadline = active_run.times.evaluation(self.round, final=self.final)
        wanted = Evaluate(self.run, self.round, scratch / SERVER, memory_index, self.final, deadline)
        answer = evaluate_in_parts(active_run, wanted, self.workers)
        assert isinstance(answer, Evaluated | Failed)
        if isinstance(answer, Evaluated) and not self.final:
            active_run.times.evaluated(answer.seconds)
        if isinstance(answer, Evaluated):
            save_judged(scratch, answer)
            return Evaluated(answer.metrics, answer.seconds)
        return answer


class Runner(Protocol):
    """Has units of work carried out, on plain threads here or as Prefect task runs (`shoal.tasks.prefect.runner`)."""

    def submit(self, unit: Unit, begun: Callable[[], None] | None = None) -> Future[Any]:
        """Have `unit` carried out once.

        Args:
            unit: the work.
            begun: called when it begins.

        Returns:
            A future with what `unit.execute` returns or raises.
        """
        ...


class ThreadRunner:
    """Units of work on plain threads."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="shoal")

    def submit(self, unit: Unit, begun: Callable[[], None] | None = None) -> Future[Any]:
        """As of `Runner`."""
        return self._pool.submit(execute, unit, begun, active_run_of(unit))

    def close(self) -> None:
        """Let running work end, start no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def active_run_of(unit: Unit) -> ActiveRun | None:
    """Return the run of a unit as it is registered in this process; None where it is not."""
    path: Path | None = getattr(unit, "run", None)
    return registered_run(path) if isinstance(path, Path) else None


def execute(unit: Unit, begun: Callable[[], None] | None = None, active_run: ActiveRun | None = None) -> Any:
    """Execute a unit here for the run that submitted it.

    Args:
        unit: the work.
        begun: called before.
        active_run: the run as it was registered when the unit was submitted.
    """
    if begun is not None:
        begun()
    with acting_for(active_run):
        return unit.execute()
