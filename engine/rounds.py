"""The round engine: broadcast, train in cohorts, aggregate, evaluate, checkpoint; again until done.

The engine knows messages and files, and nothing of any method. Each unit of work goes through a `Runner`, which decides
how it is carried out and shown: plain threads here, Prefect tasks in a flow.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.errors import ShoalError
from engine.checkpoint import (
    SERVER,
    MemoryIndex,
    adopt,
    close_round,
    drop_after,
    manifests,
    newest_valid,
    open_round,
)
from engine.codec import server_digest
from engine.dispatch import Cohort, Dispatch, Runner, even_cohorts
from engine.one_thread import one_thread
from engine.opened_run import OpenedRun
from engine.run_folder import FAILED, FINISHED, INTERRUPTED, RUNNING, RunError, RunFolder, now
from engine.worker import finished_work, load_update
from engine.worker_processes import WorkerLost
from methods.base import Server, Update

Call = Callable[[dict[str, Any]], dict[str, Any]]
Observer = Callable[[dict[str, Any]], None]


class ThreadRunner:
    """Units of work on plain threads."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="shoal")

    def submit(self, kind: str, name: str, work: Callable[[], Any]) -> Future[Any]:
        """Begin `work` on a thread."""
        return self._pool.submit(work)

    def close(self) -> None:
        """Let running work end, start no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class RoundFailed(ShoalError):
    """Too few clients came through; the run stops and can be resumed."""


@dataclass
class Engine:
    """One run, from wherever it stands to its end.

    Args:
        run: its folder.
        call: has a worker slot do a request (`engine.worker_processes.WorkerProcesses.call`).
        runner: carries out units of work.
        slots: how many requests can be worked on at once.
        observers: called with every event (a dictionary with at least `event`).
    """

    run: RunFolder
    call: Call
    runner: Runner
    slots: int = 1
    observers: Sequence[Observer] = ()
    opened: OpenedRun = field(init=False)
    memory_index: MemoryIndex = field(init=False, default_factory=MemoryIndex)
    round_rows: list[dict[str, Any]] = field(init=False, default_factory=list)
    client_rows: list[dict[str, Any]] = field(init=False, default_factory=list)
    link_rows: list[dict[str, Any]] = field(init=False, default_factory=list)
    seconds: dict[int, float] = field(init=False, default_factory=dict)
    """How long each client's newest update took."""

    def run_to_end(self) -> Server:
        """All rounds that are still to do.

        Returns:
            The final server state.

        Raises:
            ShoalError: the run stopped; it can be resumed. KeyboardInterrupt likewise.
        """
        with self.run.locked():
            round = 0
            try:
                self.opened = OpenedRun(self.run)
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

    def ended(self, server: Server) -> bool:
        """Whether no round is left to do."""
        return server.finished or server.round >= self.opened.settings.rounds

    def start(self) -> Server:
        """The newest valid checkpoint, or the initial state written as round 0."""
        checkpoint = newest_valid(self.run)
        drop_after(self.run, checkpoint.server.round if checkpoint else -1)
        self.round_rows, self.client_rows, self.link_rows = [], [], []
        if checkpoint is not None:
            server, self.memory_index = checkpoint.server, checkpoint.memory_index
            for manifest in manifests(self.run, server.round):
                self.keep_rows(manifest)
            self.write_tables()
        else:
            with one_thread():
                server = self.opened.method.init_server(self.opened.federation)
            self.memory_index = MemoryIndex()
            scratch = open_round(self.run, server)
            close_round(self.run, scratch, server, self.memory_index, {"finished_at": now()}, self.keep)
        self.run.set_status(RUNNING, server.round, rounds=self.opened.settings.rounds)
        self.tell("resumed" if server.round else "started", round=server.round, rounds=self.opened.settings.rounds)
        return server

    @property
    def keep(self) -> int:
        """How many server states are kept."""
        return self.opened.settings.checkpoint.keep

    def round(self, server: Server) -> Server:
        """One round after `server`: train, aggregate, evaluate, checkpoint."""
        began = time.perf_counter()
        round = server.round + 1
        chosen = self.opened.method.sample_clients(server, self.opened.federation)
        self.tell("round_started", round=round, clients=len(chosen))
        done = self.train(round, chosen)
        trained = time.perf_counter()
        following, scratch, memory_index = self.do(
            "aggregate", f"round {round}, aggregate", lambda: self.follow(server, round, done)
        )
        aggregated = time.perf_counter()
        metrics = self.evaluate(following, str(scratch / SERVER), memory_index)
        evaluated = time.perf_counter()
        manifest: dict[str, Any] = {
            "metrics": metrics,
            "clients": [client_row(round, done[client]) for client in sorted(done)],
            "links": [
                {"round": round, "from": client, "to": int(peer), "bytes": size}
                for client in sorted(done)
                for peer, size in done[client]["peers"].items()
            ],
            "left_out": sorted(set(chosen) - set(done)),
            "finished_at": now(),
            "seconds": {
                "train": trained - began,
                "aggregate": aggregated - trained,
                "evaluate": evaluated - aggregated,
                "round": evaluated - began,
            },
        }
        # No unit of work of its own: that would cost more than the few milliseconds this takes.
        close_round(self.run, scratch, following, memory_index, manifest, self.keep)
        self.memory_index = memory_index
        shutil.rmtree(self.run.work / f"{round:04d}", ignore_errors=True)
        self.keep_rows({**manifest, "round": round})
        self.write_tables()
        self.run.set_status(RUNNING, round, rounds=self.opened.settings.rounds)
        self.tell("round_finished", round=round, metrics=metrics, seconds=manifest["seconds"]["round"])
        return following

    def follow(self, server: Server, round: int, done: dict[int, dict[str, Any]]) -> tuple[Server, Path, MemoryIndex]:
        """The next server state, written under a temporary name, and the versions of memory and inbox after it."""
        following = self.aggregate(server, round, done)
        return following, open_round(self.run, following), self.next_memory_index(round, done)

    def do(self, kind: str, name: str, work: Callable[[], Any]) -> Any:
        """One unit of work, waited for."""
        return self.runner.submit(kind, name, work).result()

    # --- training -------------------------------------------------------------------------------------------------

    def train(self, round: int, chosen: list[int]) -> dict[int, dict[str, Any]]:
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
                if "error" in result:
                    failures[client] = result["error"]
                    self.tell("client_failed", round=round, client=client, attempt=attempt + 1, message=result["error"])
                else:
                    done[client] = result
                    self.tell("client_finished", round=round, client=client, seconds=result["seconds"])
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
        found = even_cohorts(seconds, self.slots, measured=bool(self.seconds))
        return [[by_first[first] for first in cohort] for cohort in found]

    def expected_seconds(self) -> list[float]:
        """How long each client's update takes: as it last did, else by its number of samples."""
        sizes = self.opened.federation.sizes
        rate = sum(self.seconds.values()) / max(1, sum(sizes[c] for c in self.seconds)) if self.seconds else 1.0
        return [self.seconds.get(client, rate * size) for client, size in enumerate(sizes)]

    def train_cohorts(self, round: int, cohorts: list[list[list[int]]]) -> Iterator[tuple[int, dict[str, Any]]]:
        """(client, result) as cohorts of groups end; the clients of a lost slot get an error each."""
        expected = self.expected_seconds()
        wanted = []
        for groups in cohorts:
            clients = [c for group in groups for c in group]
            entries = [
                {"client": c, "memory": self.memory_index.memory.get(c), "inbox": self.memory_index.inbox.get(c, [])}
                for c in clients
            ]
            request = {"do": "train", "run": str(self.run.path), "round": round, "clients": entries, "groups": groups}
            name = f"round {round}, clients {', '.join(map(str, clients))}"
            wanted.append(Cohort(name, clients, request, sum(expected[c] for c in clients)))
        dispatch = Dispatch(
            self.call,
            self.runner,
            self.slots,
            self.opened.settings.workers.reissue,
            lambda cohort: self.tell("cohort_reissued", round=round, message=f"{cohort.name}: begun again"),
        )
        for cohort, answer in dispatch.run(wanted):
            if isinstance(answer, WorkerLost):
                self.tell("slot_lost", round=round, message=str(answer))
                # What the slot finished before it was lost is in its done-files.
                answer = {
                    "clients": {c: finished_work(self.run, round, c) or {"error": str(answer)} for c in cohort.clients}
                }
            if "error" in answer:
                raise RoundFailed(f"round {round}: {answer['error']}")
            yield from answer["clients"].items()

    def aggregate(self, server: Server, round: int, done: dict[int, dict[str, Any]]) -> Server:
        """The method's aggregation over the updates in order of client id, read one at a time."""
        updates: Iterator[Update] = (load_update(self.run, round, done[client]) for client in sorted(done))
        with one_thread():
            following = self.opened.method.aggregate(server, updates)
        if following.round != round:
            raise RunError(f"method {self.opened.method.name!r} aggregated round {round} into {following.round}")
        return following

    def evaluate(self, server: Server, path: str, memory_index: MemoryIndex) -> dict[str, float]:
        """Metrics of the new state, by a worker slot; empty between evaluations."""
        final = self.ended(server)
        if not final and server.round % self.opened.settings.evaluate.every:
            return {}
        request = {
            "do": "evaluate",
            "run": str(self.run.path),
            "round": server.round,
            "server": path,
            "links": memory_index.plain(),
            "final": final,
        }
        name = f"round {server.round}, evaluate"
        for attempt in (1, 2):
            try:
                answer = self.do("evaluate", name, lambda: self.call(request))
                break
            except WorkerLost as lost:
                self.tell("slot_lost", round=server.round, message=str(lost))
                if attempt == 2:
                    raise
        if "error" in answer:
            raise RunError(f"round {server.round} could not be evaluated: {answer['error']}")
        return answer["metrics"]

    # --- records --------------------------------------------------------------------------------------------------

    def next_memory_index(self, round: int, done: dict[int, dict[str, Any]]) -> MemoryIndex:
        """Memory and inbox versions after the round; the files get their lasting names here."""
        work = self.run.work / f"{round:04d}"
        memory_index = MemoryIndex(
            dict(self.memory_index.memory), {c: list(paths) for c, paths in self.memory_index.inbox.items()}
        )
        for client in done:
            memory_index.inbox.pop(client, None)  # read in this round
        for client in sorted(done):
            files = done[client]["files"]
            if "memory" in files:
                target = f"memory/{client}/{round:04d}.safetensors"
                adopt(self.run, work / files["memory"], target)
                memory_index.memory[client] = target
            for peer in sorted(map(int, done[client]["peers"])):
                target = f"memory/{peer}/inbox/{round:04d}-{client}.safetensors"
                adopt(self.run, work / files[f"peer-{peer}"], target)
                memory_index.inbox.setdefault(peer, []).append(target)
        return memory_index

    def keep_rows(self, manifest: dict[str, Any]) -> None:
        """Add a round's manifest to the tables."""
        rows = manifest.get("clients")
        if rows is None:
            return  # round 0
        self.client_rows += [in_order(row) for row in rows]
        self.seconds |= {row["client"]: row["seconds"] for row in rows}
        self.link_rows += manifest.get("links", [])
        totals = {key: sum(row[key] for row in rows) for key in ("bytes_up", "bytes_down", "bytes_d2d")}
        seconds = {f"seconds_{key}": value for key, value in manifest["seconds"].items()}
        self.round_rows.append(
            {
                "round": manifest["round"],
                "clients": len(rows),
                "left_out": len(manifest["left_out"]),
                **totals,
                **seconds,
                "finished_at": manifest["finished_at"],
                **dict(sorted(manifest["metrics"].items())),
            }
        )

    def write_tables(self) -> None:
        """Write the tables; `links` where clients sent each other something."""
        self.run.set_table("rounds", self.round_rows)
        self.run.set_table("clients", self.client_rows)
        if self.link_rows:
            self.run.set_table("links", self.link_rows)

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


ROW = ("round", "client", "samples", "bytes_up", "bytes_down", "bytes_d2d", "seconds")


def client_row(round: int, done: dict[str, Any]) -> dict[str, Any]:
    """A row of the clients table: what was counted, then the client's own metrics."""
    return in_order({"round": round, **{key: done[key] for key in ROW[1:]}, **done["metrics"]})


def in_order(row: dict[str, Any]) -> dict[str, Any]:
    """The columns of a client row in one order, whether it comes from memory or from a file with sorted keys."""
    return {key: row[key] for key in ROW} | {key: row[key] for key in sorted(row.keys() - set(ROW))}
