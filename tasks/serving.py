"""What `shoal work` does: a host takes the requests of runs from Prefect's server, and its slots carry them out.

The process that talks to Prefect computes nothing. Its slots are worker processes of the engine, one thread or one GPU
each, so that one that is killed or ended costs the request that it worked on and is started again.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

from engine.cluster_work import answered
from engine.wire import Answer, Request, request_of
from engine.wire_text import plain_of, text_of
from engine.worker import failure
from engine.worker_processes import WorkerLost, WorkerProcesses
from tasks.hosts import Host, task_of
from tasks.prefect_environment import quiet

quiet()
# What a task run logs here is of no use at the server, which would be asked for each of them.
os.environ.setdefault("PREFECT_LOGGING_TO_API_ENABLED", "false")

from tasks.prefect_channel import LOST, UNREACHED, Channel  # noqa: E402 (Prefect's environment comes first)

LOOK = 2.0
"""Seconds between looks at whether anybody waits for what is at work."""
LEAVING = 5.0
"""Seconds in which a host that is ended tells what became of its requests."""
PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each further try to give an answer to a server that does not take it."""


class Wanted:
    """When the work on a request is to end: as soon as nobody waits for it (as of `engine.wire.Deadline`)."""

    def __init__(self) -> None:
        self.in_vain = threading.Event()

    def why(self, spent: float, idle: float) -> str | None:
        """Why the slot that works on it is to be ended; None where it is not."""
        return "work that nobody waits for any more" if self.in_vain.is_set() else None


class Desk:
    """Takes requests from Prefect's server and gives each to a slot of this host.

    Args:
        channel: to the server.
        call: has a free slot do a request whose files are here.
    """

    def __init__(self, channel: Channel, call: Callable[[Request], Answer]) -> None:
        self._channel, self._call = channel, call
        self._at_work: dict[UUID, Wanted] = {}
        self._lock = threading.Condition()
        self._closed = threading.Event()
        threading.Thread(target=self._look, daemon=True, name="shoal wanted").start()

    def carry_out(self) -> Any:
        """Do the request of the task run that this is called in; what to show as its state, where it is in vain."""
        from prefect import runtime

        run = UUID(str(runtime.task_run.id))
        with self._watched(run) as wanted:
            text = self._channel.request(run)
            said = None if text is None else self._answer(text, wanted)
            if said is not None and not wanted.in_vain.is_set():
                self._tell(run, said)
                return None
        from prefect.states import Cancelled

        return Cancelled(message="nobody waits for it any more")

    def close(self) -> None:
        """Look at nothing any more; what is at work has some seconds to say how it ended."""
        self._closed.set()
        with self._lock:
            self._lock.wait_for(lambda: not self._at_work, LEAVING)

    def _answer(self, text: str, wanted: Wanted) -> str:
        def here(request: Request) -> Answer:
            return self._call(replace(request, deadline=wanted))

        try:
            return text_of(answered(request_of(plain_of(text)), here).plain())
        except WorkerLost as lost:
            return text_of({LOST: str(lost)})
        except Exception as error:  # a host must outlive any request
            return text_of(failure(error).plain())

    def _tell(self, run: UUID, said: str) -> None:
        for pause in (*PAUSES, None):
            try:
                self._channel.answer(run, said)
                return
            except UNREACHED:
                if pause is None:
                    raise
                time.sleep(pause)

    @contextlib.contextmanager
    def _watched(self, run: UUID) -> Iterator[Wanted]:
        wanted = Wanted()
        with self._lock:
            self._at_work[run] = wanted
        try:
            yield wanted
        finally:
            with self._lock:
                del self._at_work[run]
                self._lock.notify_all()

    def _look(self) -> None:
        while not self._closed.wait(LOOK):
            with self._lock:
                at_work = dict(self._at_work)
            for run, wanted in at_work.items():
                with contextlib.suppress(*UNREACHED):  # a server that does not answer says nothing of it
                    if not self._channel.wanted(run):
                        wanted.in_vain.set()


def serve(slots: int, device: str, tell: Callable[[str], None]) -> None:
    """Serve the requests of runs until Ctrl-C or SIGTERM; what is at work then is done elsewhere.

    Args:
        slots: requests at once.
        device: cpu or cuda; slots share the GPUs in turn.
        tell: told in words what happens.

    Raises:
        NoServer: PREFECT_API_URL names no Prefect server that answers.
    """
    from prefect.task_worker import serve as serve_tasks

    host = Host.here(slots, device)
    with contextlib.ExitStack() as stack:
        channel = stack.enter_context(contextlib.closing(Channel()))
        results = stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-work-"))
        processes = WorkerProcesses(slots, device)
        desk = stack.enter_context(contextlib.closing(Desk(channel, processes.call)))
        stack.enter_context(processes)  # which ends first: the desk then tells that its slots are lost
        work = task_of(host, desk.carry_out, Path(results))
        tell(f"{host.name} serves {slots} slot{'s' * (slots > 1)} on {device} at {channel.url}, with {host.version}")
        tell("Ctrl-C ends it")
        while True:
            try:
                serve_tasks(work, limit=slots)
            except Exception as error:  # the server was stopped, or the net was away: it is asked again
                tell(f"the connection to Prefect's server broke ({type(error).__name__}: {error}): it is made anew")
            time.sleep(LOOK)
