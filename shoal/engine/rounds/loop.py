"""The round engine: broadcast, train in cohorts, aggregate, evaluate, checkpoint; again until done.

The engine knows messages and files, and nothing of any method. Each unit of work goes through a `Runner`, which decides
where it is carried out and shown: plain threads here, Prefect tasks in a flow.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from shoal.core.errors import ShoalError
from shoal.engine.messages.inspection import MessageRefused
from shoal.engine.messages.summing import SUMMED_ANEW
from shoal.engine.messages.wire import Failed
from shoal.engine.rounds.active_run import Call, RunAtWork, hold
from shoal.engine.rounds.dropout import answering
from shoal.engine.rounds.private_run import BudgetSpent, PrivateRun
from shoal.engine.rounds.training import Answers, RoundFailed, Training
from shoal.engine.rounds.units import AggregateRound, EvaluateRound, Runner
from shoal.engine.settings.one_thread import one_thread
from shoal.engine.store.checkpoint import Pruning, close_round, drop_after, manifests, newest_valid, open_round
from shoal.engine.store.codec import server_digest
from shoal.engine.store.lineage import changes_since
from shoal.engine.store.manifest import ClientRow, PeerBytes, RoundRecord, RoundSeconds
from shoal.engine.store.memory_index import MemoryIndex
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_events import Listener, listening
from shoal.engine.store.run_folder import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    RUNNING,
    STOPPED,
    RunError,
    RunFolder,
    RunStopped,
)
from shoal.engine.store.tables import RunTables
from shoal.engine.store.warm_start import initial_state
from shoal.engine.workers.worker_processes import WorkerLost
from shoal.methods.contract.base import Server

Observer = Listener


@dataclass
class Engine:
    """One run, from wherever it stands to its end.

    Args:
        run: its folder.
        call: has a worker do a request (`shoal.engine.cluster.pools.Pool.call`).
        runner: has units of work carried out.
        slots: how many requests can be worked on at once.
        observers: called with every event, as it is logged (a dictionary with at least `event`).
    """

    run: RunFolder
    call: Call
    runner: Runner
    slots: int = 1
    observers: Sequence[Observer] = ()
    accounts: ClassVar[bool] = True
    """Whether what is told of clients is entered in the ledger of their data set; a rehearsal tells nothing."""
    held: RunAtWork = field(init=False)
    private: PrivateRun = field(init=False)
    tables: RunTables = field(init=False)
    pruning: Pruning = field(init=False)
    time: float = field(default=0.0, init=False)

    def run_to_end(self) -> Server:
        """All rounds that are still to do.

        Returns:
            The final server state.

        Raises:
            RunStopped: an observer ended it. ShoalError: it failed. KeyboardInterrupt. Each can be resumed.
        """
        heard = listening(self.run.path, self.observers)
        with self.run.locked(), heard, hold(RunAtWork(self.run, self.call)) as self.held:
            round = 0
            try:
                server = self.start()
                round = server.round
                while not self.ended(server):
                    server = self.round(server)
                    round = server.round
                self.finish(server)
                return server
            except RunStopped as stop:
                with contextlib.suppress(ShoalError):
                    self.tell("stopped", round=stop.round, message=str(stop))
                    self.run.set_status(STOPPED, stop.round, str(stop))
                raise
            except Exception as error:
                # A full disk may refuse these too; the error itself matters more.
                with contextlib.suppress(ShoalError):
                    self.tell("failed", round=round, message=str(error))
                    self.run.set_status(FAILED, round, str(error))
                raise
            except BaseException:  # Ctrl-C and what else asks a process to end, such as Prefect's own signal
                with contextlib.suppress(ShoalError):
                    self.tell("interrupted", round=round)
                    self.run.set_status(INTERRUPTED, round, f"interrupted; go on with --resume {self.run.name}")
                raise

    @property
    def opened(self) -> OpenedRun:
        """The run's settings, partition and method."""
        return self.held.opened

    def ended(self, server: Server) -> bool:
        """Whether no round is left to do."""
        return server.finished or server.round >= self.opened.settings.rounds or self.budget_spent(server)

    def start(self) -> Server:
        """The newest valid checkpoint, or the initial state written as round 0."""
        checkpoint = newest_valid(self.run)
        drop_after(self.run, checkpoint.server.round if checkpoint else -1)
        self.tables = RunTables(self.run)
        self.private = PrivateRun.of(self.opened, kept=self.accounts)
        if checkpoint is not None:
            self.tell_changes(checkpoint.server.round)
            server = checkpoint.server
            self.held.keep_state(server, checkpoint.memory_index)
            for manifest in manifests(self.run, server.round, self.lost_manifest):
                self.tables.add(manifest)
                if manifest.record is not None:
                    self.time = manifest.record.metrics.get("simulated_time", self.time)
                    self.private.read_back(manifest.record)
            self.tables.begin()
        else:
            with one_thread():
                server = initial_state(self.opened)
            self.held.keep_state(server, MemoryIndex())
            open_round(self.run, server, MemoryIndex())
            close_round(self.run, server, MemoryIndex(), None)
        for kind, message in self.private.take_up():
            self.tell(kind, round=server.round, message=message)
        self.pruning = Pruning(self.run, self.keep)
        rounds = self.opened.settings.rounds
        self.run.set_status(RUNNING, server.round, rounds=rounds)
        self.tell("resumed" if server.round else "started", round=server.round, rounds=rounds)
        return server

    def lost_manifest(self, round: int, why: str) -> None:
        """Say that a round is missing from the tables; who took part in it is not known, so that all are accounted."""
        self.tell("manifest_unreadable", round=round, message=f"round {round} is missing from the tables: {why}")
        if round:
            self.private.past.add_unknown()

    def tell_changes(self, round: int) -> None:
        """Say before a run goes on where code or packages are not those that it was started with."""
        changes = changes_since(self.run.lineage())
        if changes:
            said = f"goes on after round {round} with other software: {'; '.join(changes)}; numbers may differ in bits"
            self.tell("software_changed", round=round, message=said)

    @property
    def keep(self) -> int:
        """How many server states are kept: as many as the settings say, and those that clients are still at work on."""
        arrivals, settings = self.held.arrivals, self.opened.settings
        return settings.checkpoint.keep + (arrivals.oldest(settings.rounds) if arrivals is not None else 0)

    def round(self, server: Server) -> Server:
        """One round after `server`: broadcast and train, aggregate, evaluate, checkpoint."""
        began = time.perf_counter()
        round = server.round + 1
        answers = self.answers(server)
        spent = self.spent(round, answers)
        following, trained, aggregated = self.held.state(round)[0], answers.trained, time.perf_counter()
        metrics = self.evaluate(following) | spent | self.simulated(round, answers)
        evaluated = time.perf_counter()
        seconds = RoundSeconds(trained - began, aggregated - trained, evaluated - aggregated, evaluated - began)
        record = record_of(round, answers, metrics, seconds)
        self.checkpoint(following, replace(record, refusals=self.tables.refused_by(record)))
        self.tell_quarantined(round, answers.refused)
        self.tell("round_finished", round=round, metrics=metrics, seconds=seconds.round)
        return following

    # --- broadcast, train and aggregate ---------------------------------------------------------------------------

    def sample(self, server: Server, without: Iterable[int] = ()) -> list[int]:
        """Who is asked in the round after a state: nobody who is quarantined, nor those named."""
        away = frozenset(self.quarantined) | frozenset(without)
        if self.held.arrivals is not None:
            there = [c for c in self.held.arrivals.round(server.round + 1).begun_from if c not in away]
            if there:
                return there
        drawn = self.opened.method.sample_clients(server, replace(self.opened.federation, quarantined=away))
        return drawn[: self.opened.settings.participation.buffer]

    def answering(self, round: int, chosen: list[int], answers: Answers) -> list[int]:
        """Which of the clients that were drawn answer; simulated dropout takes the others."""
        settings = self.opened.settings
        if self.held.arrivals is not None:  # whom it tells of are those that answer
            return chosen
        asked = answering(chosen, round, settings.seed, settings.participation.dropout)
        answers.dropped += sorted(set(chosen) - set(asked))
        return asked

    def answers(self, server: Server) -> Answers:
        """Have clients trained and their answers aggregated; the next server state lies in an open checkpoint then.

        Where so many are refused that too few are left, clients are drawn once more without them.

        Raises:
            RoundFailed: fewer came through than `participation.minimum` asks for.
        """
        round, answers = server.round + 1, Answers()
        asked = self.answering(round, self.sample(server), answers)
        self.tell("round_started", round=round, clients=len(asked))
        if answers.dropped:
            self.tell("clients_dropped", round=round, clients=answers.dropped)
        training = Training(self.held, self.runner, self.slots, self.tables, self.tell, self.private.ask)
        needed = max(1, math.ceil(self.opened.settings.participation.minimum * len(asked)))
        while asked:
            answers.asked += asked
            training.train(round, asked, answers)
            answers.trained = time.perf_counter()
            if len(answers.done) >= needed:
                self.aggregate(training, round, answers, needed)
                if len(answers.done) >= needed:
                    break
            others = answers.refused and self.held.arrivals is None
            again = self.sample(server, answers.refused) if others else []
            known = {*answers.asked, *answers.dropped}
            again = [client for client in again if client not in known]
            asked = self.answering(round, again, answers) if again else []
        self.tell_left_out(round, answers)
        if len(answers.done) < needed:
            why = [f"client {client}: {message}" for client, message in answers.left_out.items()]
            away = f"; quarantined: {', '.join(map(str, self.quarantined))}" if self.quarantined else ""
            raise RoundFailed(
                f"round {round}: {len(answers.done)} of {len(answers.asked)} clients came through, {needed} are needed "
                f"(participation.minimum). {'; '.join(why[:3])}{away}"
            )
        return answers

    def aggregate(self, training: Training, round: int, answers: Answers, needed: int) -> None:
        """Make the next server state, in a checkpoint that is not closed yet; whom the server refuses is left out.

        Whose answer was damaged since it was written works anew, as often as a client that failed; whose message is in
        a sum with one that is refused does so too.
        """
        tries: Counter[int] = Counter()
        while len(answers.done) >= needed:
            self.held.keep_done(round, answers.done)
            unit = AggregateRound(self.run.path, round, tuple(sorted(answers.done)), needed)
            found: dict[int, Failed] = self.runner.submit(unit).result()
            anew = {client for client, failed in found.items() if failed.kind == SUMMED_ANEW}
            refused = {client for client, failed in found.items() if failed.kind == MessageRefused.__name__}
            damaged = sorted(found.keys() - anew - refused)
            for client, failed in found.items():
                del answers.done[client]
                (answers.refused if client in refused else answers.failed)[client] = failed.error
            if not damaged and not anew:
                return
            tries.update(damaged)
            for client in damaged:
                message = found[client].error
                self.tell("client_failed", round=round, client=client, attempt=tries[client], message=message)
            retries = self.opened.settings.participation.retries
            if again := anew | {client for client in damaged if tries[client] <= retries}:
                groups = [group for group in answers.groups if again & set(group)]
                if anew:
                    groups = [[client for client in group if client not in answers.refused] for group in groups]
                training.train_groups(round, groups, answers)
                answers.failed = {c: why for c, why in answers.failed.items() if c not in answers.done}

    @property
    def quarantined(self) -> list[int]:
        """The clients that were refused in as many rounds as `participation.refusals` says; by the manifests."""
        limit = self.opened.settings.participation.refusals
        return sorted(client for client, rounds in self.tables.refusals.items() if limit and rounds >= limit)

    def tell_quarantined(self, round: int, refused: Iterable[int]) -> None:
        """Say who was refused once too often in a round."""
        for client in sorted({*refused} & {*self.quarantined}):
            message = f"client {client} was refused in {self.tables.refusals[client]} rounds: it is not asked again"
            self.tell("client_quarantined", round=round, client=client, message=message)

    def tell_left_out(self, round: int, answers: Answers) -> None:
        """Say which of the clients that were asked a round goes on without, and why."""
        for client, message in answers.left_out.items():
            kind = "client_refused" if client in answers.refused else "client_left_out"
            self.tell(kind, round=round, client=client, message=message)

    # --- what may be told of clients ------------------------------------------------------------------------------

    def budget_spent(self, server: Server) -> bool:
        """Whether one more round would tell more of a client than `privacy.epsilon` allows."""
        if self.private.privacy.epsilon is None:
            return False
        return self.private.budget_spent(self.sample(server))

    def spent(self, round: int, answers: Answers) -> dict[str, float]:
        """Account a state that nobody has seen yet; epsilon so far, as metrics.

        Raises:
            RoundFailed: so few answered that it would tell more than the budget allows.
        """
        try:
            return self.private.spent(round, answers.done)
        except BudgetSpent as spent:
            raise RoundFailed(f"round {round}: {spent}, or when more clients can take part") from None

    def simulated(self, round: int, answers: Answers) -> dict[str, float]:
        """How far simulated time is after a round, and how old the states were that answers began from, as metrics."""
        participation, arrivals = self.opened.settings.participation, self.held.arrivals
        if arrivals is not None:
            ages = [round - 1 - self.held.begun_from(round, client) for client in answers.done]
            return {"simulated_time": arrivals.round(round).time, "staleness": statistics.fmean(ages)}
        if participation.slowness:
            self.time += max(self.held.speeds.time(client) for client in answers.asked)
            return {"simulated_time": self.time}
        return {}

    # --- evaluate, checkpoint -------------------------------------------------------------------------------------

    def evaluate(self, server: Server) -> dict[str, float]:
        """Metrics of the new state, by a worker; empty between evaluations.

        Raises:
            RunError: the evaluation failed. WorkerLost: twice.
        """
        final = self.ended(server)
        if not final and server.round % self.opened.settings.evaluate.every:
            return {}
        apart = self.opened.settings.workers.depot  # workers that do not see what others wrote
        unit = EvaluateRound(self.run.path, server.round, final, 1 if apart else self.slots)
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
        memory_index = self.held.state(server.round)[1]
        manifest = close_round(self.run, server, memory_index, record)
        self.pruning.closed(server.round, memory_index)
        shutil.rmtree(RoundPaths(self.run.path, server.round).work, ignore_errors=True)
        self.tables.add(manifest)
        self.tables.write()
        self.run.set_status(RUNNING, server.round, "", rounds=self.opened.settings.rounds, **self.away())

    def away(self) -> dict[str, Any]:
        """For the status: who is quarantined, where anybody is."""
        return {"quarantined": self.quarantined} if self.quarantined else {}

    def finish(self, server: Server) -> None:
        """Record the end."""
        shutil.rmtree(self.run.work, ignore_errors=True)  # what a second copy of a cohort may have left
        if server.round < self.opened.settings.rounds and not server.finished:
            limit, data = self.opened.settings.privacy.epsilon, self.private.ledger.name
            said = f"the budget of privacy.epsilon {limit} of data set {data!r} allows no round more"
            self.tell("budget_spent", round=server.round, message=said)
        self.tables.end()
        self.run.set_status(FINISHED, server.round, **self.run.final_facts(server_digest(server)), **self.away())
        self.tell("finished", round=server.round)

    def tell(self, kind: str, **facts: Any) -> None:
        """Log an event, which the observers hear."""
        self.run.event(kind, **facts)


def record_of(round: int, answers: Answers, metrics: dict[str, float], seconds: RoundSeconds) -> RoundRecord:
    """What is kept of a round, of those that were drawn and those that came through."""
    works = [answers.done[client] for client in sorted(answers.done)]
    return RoundRecord(
        metrics,
        tuple(ClientRow.of_work(round, work) for work in works),
        tuple(PeerBytes(round, work.client, peer, size) for work in works for peer, size in work.peers.items()),
        tuple(sorted({*answers.asked, *answers.dropped} - set(answers.done))),
        seconds,
        tuple(sorted(answers.refused)),
    )
