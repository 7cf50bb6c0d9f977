"""The round engine: broadcast, train in cohorts, aggregate, evaluate, checkpoint; again until done.

The engine knows messages and files, and nothing of any method. Each unit of work goes through a `Runner`, which decides
where it is carried out and shown: plain threads here, Prefect tasks in a flow.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.errors import ShoalError
from engine.at_work import Call, RunAtWork, hold
from engine.checkpoint import close_round, drop_after, manifests, newest_valid, open_round
from engine.codec import server_digest
from engine.dispatch import Cohort, Dispatch, even_cohorts
from engine.finished_work import FinishedWork, finished_work
from engine.manifest import ClientRow, PeerBytes, RoundRecord, RoundSeconds
from engine.memory_index import MemoryIndex
from engine.one_thread import one_thread
from engine.opened_run import OpenedRun
from engine.round_paths import RoundPaths
from engine.run_folder import FAILED, FINISHED, INTERRUPTED, RUNNING, RunError, RunFolder
from engine.tables import RunTables
from engine.units import AggregateRound, EvaluateRound, Runner, TrainCohort
from engine.wire import Failed
from engine.worker_processes import WorkerLost
from methods.base import Server

Observer = Callable[[dict[str, Any]], None]


class RoundFailed(ShoalError):
    """Too few clients came through; the run stops and can be resumed."""


@dataclass
class Engine:
    """One run, from wherever it stands to its end.

    Args:
        run: its folder.
        call: has a worker do a request (`engine.pools.Pool.call`).
        runner: has units of work carried out.
        slots: how many requests can be worked on at once.
        observers: called with every event, as it is logged (a dictionary with at least `event`).
    """

    run: RunFolder
    call: Call
    runner: Runner
    slots: int = 1
    observers: Sequence[Observer] = ()
    held: RunAtWork = field(init=False)
    tables: RunTables = field(init=False)

    def run_to_end(self) -> Server:
        """All rounds that are still to do.

        Returns:
            The final server state.

        Raises:
            ShoalError: the run stopped; it can be resumed. KeyboardInterrupt likewise.
        """
        with self.run.locked(), hold(RunAtWork(self.run, self.call)) as self.held:
            round = 0
            try:
                server = self.start()
                round = server.round
                while not self.ended(server):
                    server = self.round(server)
                    round = server.round
                self.finish(server)
                return server
            except KeyboardInterrupt:
                self.tell("interrupted", round=round)
                self.run.set_status(INTERRUPTED, round, f"interrupted; go on with --resume {self.run.name}")
                raise
            except BaseException as error:
                # A full disk may refuse these too; the error itself matters more.
                with contextlib.suppress(ShoalError):
                    self.tell("failed", round=round, message=str(error))
                    self.run.set_status(FAILED, round, str(error))
                raise

    @property
    def opened(self) -> OpenedRun:
        """The run's settings, partition and method."""
        return self.held.opened

    def ended(self, server: Server) -> bool:
        """Whether no round is left to do."""
        return server.finished or server.round >= self.opened.settings.rounds

    def start(self) -> Server:
        """The newest valid checkpoint, or the initial state written as round 0."""
        checkpoint = newest_valid(self.run)
        drop_after(self.run, checkpoint.server.round if checkpoint else -1)
        self.tables = RunTables(self.run)
        if checkpoint is not None:
            server = checkpoint.server
            self.held.keep_state(server, checkpoint.memory_index)
            for manifest in manifests(self.run, server.round):
                self.tables.add(manifest)
            self.tables.write()
        else:
            with one_thread():
                server = self.opened.method.init_server(self.opened.federation)
            self.held.keep_state(server, MemoryIndex())
            open_round(self.run, server, MemoryIndex())
            close_round(self.run, server, MemoryIndex(), None, self.keep)
        rounds = self.opened.settings.rounds
        self.run.set_status(RUNNING, server.round, rounds=rounds)
        self.tell("resumed" if server.round else "started", round=server.round, rounds=rounds)
        return server

    @property
    def keep(self) -> int:
        """How many server states are kept."""
        return self.opened.settings.checkpoint.keep

    def round(self, server: Server) -> Server:
        """One round after `server`: broadcast and train, aggregate, evaluate, checkpoint."""
        began = time.perf_counter()
        round = server.round + 1
        chosen = self.opened.method.sample_clients(server, self.opened.federation)
        self.tell("round_started", round=round, clients=len(chosen))
        done = self.train(round, chosen)
        trained = time.perf_counter()
        following = self.aggregate(round, done)
        aggregated = time.perf_counter()
        metrics = self.evaluate(following)
        evaluated = time.perf_counter()
        seconds = RoundSeconds(trained - began, aggregated - trained, evaluated - aggregated, evaluated - began)
        self.checkpoint(following, record_of(round, chosen, done, metrics, seconds))
        self.tell("round_finished", round=round, metrics=metrics, seconds=seconds.round)
        return following

    # --- broadcast and train --------------------------------------------------------------------------------------

    def train(self, round: int, chosen: list[int]) -> dict[int, FinishedWork]:
        """Have every chosen client trained; failed ones are tried again, then left out.

        Raises:
            RoundFailed: fewer came through than `participation.minimum` asks for.
        """
        done = {c: found for c in chosen if (found := finished_work(self.run, round, c)) is not None}
        failures: dict[int, str] = {}
        # A group is trained as a whole: the same bits, wherever a round was cut short.
        waiting = [group for group in self.groups(chosen) if not done.keys() >= set(group)]
        for attempt in range(self.opened.settings.participation.retries + 1):
            failures = {}
            for client, result in self.train_cohorts(round, self.cohorts(waiting)):
                if isinstance(result, Failed):
                    failures[client] = result.error
                    self.tell("client_failed", round=round, client=client, attempt=attempt + 1, message=result.error)
                else:
                    done[client] = result
                    self.tell("client_finished", round=round, client=client, seconds=result.seconds)
            waiting = [group for group in waiting if failures.keys() & set(group)]
            if not waiting:
                break
        needed = max(1, math.ceil(self.opened.settings.participation.minimum * len(chosen)))
        if len(done) < needed:
            raise RoundFailed(
                f"round {round}: {len(done)} of {len(chosen)} clients came through, {needed} are needed "
                f"(participation.minimum). " + "; ".join(f"client {c}: {m}" for c, m in list(failures.items())[:3])
            )
        for client, message in failures.items():
            self.tell("client_left_out", round=round, client=client, message=message)
        return done

    def groups(self, chosen: list[int]) -> list[list[int]]:
        """The clients of a round in groups that are trained in one computation; by default each alone."""
        size = self.opened.settings.workers.batched
        return [chosen[start : start + size] for start in range(0, len(chosen), size)]

    def cohorts(self, groups: list[list[int]]) -> list[list[list[int]]]:
        """The groups of a round in cohorts."""
        expected = self.expected_seconds()
        by_first = {group[0]: group for group in groups}
        seconds = {first: sum(expected[c] for c in group) for first, group in by_first.items()}
        found = even_cohorts(seconds, self.slots, measured=bool(self.tables.seconds))
        return [[by_first[first] for first in cohort] for cohort in found]

    def expected_seconds(self) -> list[float]:
        """How long each client's update takes: as it last did, else by its number of samples."""
        sizes, measured = self.opened.federation.sizes, self.tables.seconds
        rate = sum(measured.values()) / max(1, sum(sizes[c] for c in measured)) if measured else 1.0
        return [measured.get(client, rate * size) for client, size in enumerate(sizes)]

    def train_cohorts(self, round: int, cohorts: list[list[list[int]]]) -> Iterator[tuple[int, FinishedWork | Failed]]:
        """(client, result) as cohorts of groups end; the clients of a lost worker get a failure each."""
        expected = self.expected_seconds()
        wanted = []
        for groups in cohorts:
            unit = TrainCohort(self.run.path, round, tuple(map(tuple, groups)))
            wanted.append(Cohort(unit, sum(expected[c] for c in unit.clients)))
        dispatch = Dispatch(
            self.runner,
            self.slots,
            self.opened.settings.workers.reissue,
            lambda cohort: self.tell("cohort_reissued", round=round, message=f"{cohort.unit.name}: begun again"),
        )
        for cohort, answer in dispatch.run(wanted):
            if isinstance(answer, Failed):
                raise RoundFailed(f"round {round}: {answer.error}")
            if isinstance(answer, WorkerLost):
                self.tell("slot_lost", round=round, message=str(answer))
                # What the worker finished before it was lost is in its done-files.
                for client in cohort.unit.clients:
                    yield client, finished_work(self.run, round, client) or Failed(str(answer))
            else:
                yield from answer.clients.items()

    # --- aggregate, evaluate, checkpoint --------------------------------------------------------------------------

    def aggregate(self, round: int, done: dict[int, FinishedWork]) -> Server:
        """The next server state, which lies in a checkpoint that is not closed yet."""
        self.held.keep_done(round, done)
        self.runner.submit(AggregateRound(self.run.path, round, tuple(sorted(done)))).result()
        return self.held.state(round)[0]

    def evaluate(self, server: Server) -> dict[str, float]:
        """Metrics of the new state, by a worker; empty between evaluations.

        Raises:
            RunError: the evaluation failed. WorkerLost: twice.
        """
        final = self.ended(server)
        if not final and server.round % self.opened.settings.evaluate.every:
            return {}
        unit = EvaluateRound(self.run.path, server.round, final)
        try:
            answer = self.runner.submit(unit).result()
        except WorkerLost as lost:
            self.tell("slot_lost", round=server.round, message=str(lost))
            answer = self.runner.submit(unit).result()
        if isinstance(answer, Failed):
            raise RunError(f"round {server.round} could not be evaluated: {answer.error}")
        return dict(answer.metrics)

    def checkpoint(self, server: Server, record: RoundRecord) -> None:
        """Close the round's checkpoint and bring tables and status up to it.

        No unit of work of its own: that would cost more than the few milliseconds this takes.
        """
        manifest = close_round(self.run, server, self.held.state(server.round)[1], record, self.keep)
        shutil.rmtree(RoundPaths(self.run.path, server.round).work, ignore_errors=True)
        self.tables.add(manifest)
        self.tables.write()
        self.run.set_status(RUNNING, server.round, rounds=self.opened.settings.rounds)

    def finish(self, server: Server) -> None:
        """Record the end."""
        shutil.rmtree(self.run.work, ignore_errors=True)  # what a second copy of a cohort may have left
        self.run.set_status(FINISHED, server.round, weights_sha256=server_digest(server))
        self.tell("finished", round=server.round)

    def tell(self, kind: str, **facts: Any) -> None:
        """Log an event and show it to the observers."""
        entry = self.run.event(kind, **facts)
        for observer in self.observers:
            observer(entry)


def record_of(
    round: int, chosen: list[int], done: dict[int, FinishedWork], metrics: dict[str, float], seconds: RoundSeconds
) -> RoundRecord:
    """What is kept of a round, of those that were chosen and those that came through."""
    works = [done[client] for client in sorted(done)]
    return RoundRecord(
        metrics,
        tuple(ClientRow.of_work(round, work) for work in works),
        tuple(PeerBytes(round, work.client, peer, size) for work in works for peer, size in work.peers.items()),
        tuple(sorted(set(chosen) - set(done))),
        seconds,
    )
