"""Workers that train one client of a run and give its answer in the name of all others: to measure the driver."""

from __future__ import annotations

import hashlib
import os
import threading
from dataclasses import replace
from pathlib import Path

from shoal.core.durable import private_folder
from shoal.core.records import record_to_json
from shoal.engine.messages.wire import Answer, Failure, Request, Train, TrainAnswer
from shoal.engine.store.codec import write_sealed
from shoal.engine.store.finished_work import FinishedWork
from shoal.engine.store.round_paths import RoundPaths, memory_file, update_file
from shoal.engine.workers.worker import Worker


class InstantWorkers:
    """A pool for methods whose clients answer the server and keep a memory, and no more.

    See `shoal.engine.cluster.pool_interface.Pool`.

    A memory is a file of a few bytes: nobody reads it here, the driver looks at its name alone, and those of thousands
    of rounds would fill a disk.

    Args:
        count: how many requests are worked on at once.
    """

    def __init__(self, count: int) -> None:
        self.count = self.max_requests = count
        self._worker, self._lock = Worker(), threading.Lock()
        self._first: FinishedWork | None = None
        self._files: dict[str, Path] = {}

    def call(self, request: Request) -> Answer:
        """As of `Pool`: training is answered with copies, everything else is done."""
        if not isinstance(request, Train):
            return self._worker.handle(request)
        with self._lock:
            if self._first is None and (failed := self._train_one(request)):
                return failed
        return TrainAnswer({client: self._answer(request, client) for group in request.groups for client in group})

    def _train_one(self, request: Train) -> Failure | None:
        one = request.clients[0]
        answer = self._worker.handle(replace(request, clients=(one,), groups=((one.client,),)))
        done = answer.clients[one.client] if isinstance(answer, TrainAnswer) else answer
        if not isinstance(done, FinishedWork):
            return done if isinstance(done, Failure) else Failure(f"an answer of another kind: {type(done).__name__}")
        kept = request.run / "first"
        kept.mkdir(exist_ok=True)
        for name in done.names:
            part = name.partition("-")[0]
            self._files[part] = kept / name
            os.link(RoundPaths(request.run, request.round).work / name, kept / name)
        self._first = done
        return None

    def _answer(self, request: Train, client: int) -> FinishedWork:
        """The first client's work as another's, its files beside a done-file as a worker leaves them."""
        assert self._first is not None
        paths = RoundPaths(request.run, request.round)
        private_folder(paths.work)
        names = {"update": update_file(client), "memory": memory_file(client)}
        digests = {names["update"]: self._first.sha256[self._first.update]}
        for part in self._files:
            name = names[part]
            (paths.work / name).unlink(missing_ok=True)
            # Written like any other: a link would be one file that all clients share.
            kept = self._files[part].read_bytes() if part == "update" else f"memory of client {client}".encode()
            (paths.work / name).write_bytes(kept)
            digests[name] = hashlib.sha256(kept).hexdigest() if part != "update" else digests[name]
        done = replace(self._first, client=client, sha256=digests, seconds=0.0)
        write_sealed(paths.done(client), record_to_json(done), sync=False)
        return done
