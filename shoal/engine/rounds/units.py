"""The units of work of a round, small objects that can be sent to another host.

A unit names its run by its folder. The process that executes it finds the run active, or opens it
(`shoal.engine.rounds.active_run`). Executing a unit a second time leaves the same bits.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from shoal.engine.messages.wire import Evaluate, Evaluated, Failed, Train, Trained
from shoal.engine.rounds.active_run import ActiveRun, acting_for, active_run_at, registered_run
from shoal.engine.rounds.aggregation import aggregate
from shoal.engine.rounds.evaluation_parts import evaluate_in_parts, save_judged
from shoal.engine.store.memory_index import ClientFiles
from shoal.engine.store.round_paths import SERVER, RoundPaths, version


class Unit(Protocol):
    """A piece of work of a run."""

    @property
    def name(self) -> str:
        """Name among the units of its run, for people."""
        ...

    def execute(self) -> Any:
        """Do the work in this process."""
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
        """Have a worker train the clients.

        Raises:
            WorkerLost: the worker ended in the middle.
        """
        active_run = active_run_at(self.run)
        server, index = active_run.state(self.round - 1)
        begun_from = None
        if active_run.answer_schedule is not None:
            begun_from = active_run.begun_from(self.round, self.clients[0])
        paths = RoundPaths(self.run, self.round)
        stage = active_run.opened.method.stage(server)
        deadline = active_run.times.cohort(
            stage, self.groups, lambda c: version(paths.done(c)), lambda c: version(paths.failed(c))
        )
        clients = tuple(index.client(client) for client in self.clients)
        answer = active_run.call(Train(self.run, self.round, clients, self.groups, deadline, begun_from=begun_from))
        assert isinstance(answer, Trained | Failed)
        return answer


@dataclass(frozen=True)
class AggregateRound:
    """Make the next server state from the finished work of a round's clients, and open its checkpoint.

    Args:
        run: the run's folder.
        round: the round.
        clients: ids of the clients that are done.
        min_clients: with fewer accepted updates there is no next state.
    """

    run: Path
    round: int
    clients: tuple[int, ...]
    min_clients: int = 1

    @property
    def name(self) -> str:
        """The round."""
        return f"round {self.round}, aggregate"

    def execute(self) -> dict[int, Failed]:
        """Write the state to the checkpoint's scratch folder.

        Returns:
            The failures of the clients whose answers were rejected; see `aggregate`.

        Raises:
            RunError: the method's state has another round or is not finite, or the work of a client is missing.
        """
        return aggregate(active_run_at(self.run), self.round, self.clients, self.min_clients)


@dataclass(frozen=True)
class EvaluateRound:
    """Compute the metrics of the state in an open checkpoint, and keep the tensors that replace its own.

    Args:
        run: the run's folder.
        round: the round.
        final: also compute the metrics of the end of a run.
        workers: number of workers that may share the work.
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
        """Have one worker evaluate, or several do a part each.

        Raises:
            WorkerLost: a worker ended in the middle.
        """
        active_run = active_run_at(self.run)
        clients: tuple[ClientFiles, ...] = ()
        if active_run.opened.method.evaluation_reads_memory:
            clients = active_run.state(self.round)[1].clients()
        scratch = RoundPaths(self.run, self.round).scratch
        deadline = active_run.times.evaluation(self.round, final=self.final)
        request = Evaluate(self.run, self.round, scratch / SERVER, clients, self.final, deadline=deadline)
        answer = evaluate_in_parts(active_run, request, self.workers)
        assert isinstance(answer, Evaluated | Failed)
        if isinstance(answer, Evaluated) and not self.final:
            active_run.times.evaluated(answer.seconds)
        if isinstance(answer, Evaluated):
            save_judged(scratch, answer)
            return Evaluated(answer.metrics, answer.seconds)
        return answer


class Runner(Protocol):
    """Executes units of work, on threads of this process or as Prefect task runs (`shoal.tasks.prefect.runner`)."""

    def submit(self, unit: Unit) -> Future[Any]:
        """Execute a unit once, in the background; return a future with what `unit.execute` returns or raises."""
        ...


class ThreadRunner:
    """Executes units of work on threads of this process."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="shoal")

    def submit(self, unit: Unit) -> Future[Any]:
        """Execute a unit on a thread; see `Runner`."""
        return self._pool.submit(execute, unit, active_run_of(unit))

    def close(self) -> None:
        """Start no further work; running work continues."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def active_run_of(unit: Unit) -> ActiveRun | None:
    """Return the run of a unit as it is registered in this process; None if it is not."""
    path: Path | None = getattr(unit, "run", None)
    if path is None:
        return None
    return registered_run(path)


def execute(unit: Unit, active_run: ActiveRun | None = None) -> Any:
    """Execute a unit here for the run that submitted it.

    Args:
        unit: the work.
        active_run: the run as it was registered when the unit was submitted.
    """
    with acting_for(active_run):
        return unit.execute()
