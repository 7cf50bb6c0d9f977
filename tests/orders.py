"""Worker processes that misbehave where a test orders it; imported by the process that workers are forked from.

The folder in the environment variable SHOAL_TEST_ORDERS holds the orders: a file `once-3` makes the next work of client
3 loop for ever, `always-3` any work of it, `once-any` the next work of whichever client; `once-evaluate` and
`always-evaluate` evaluations, `once-assign` the last unit of a run. After `once-disk` a worker can write no file of
more than a few bytes, as if the disk were full.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

VARIABLE = "SHOAL_TEST_ORDERS"
ME = "tests.orders"


def ordered(what: object) -> bool:
    """Whether this work is to loop; an order for one time is used up."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return False
    with contextlib.suppress(FileNotFoundError):
        (Path(folder) / f"once-{what}").unlink()
        return True
    return (Path(folder) / f"always-{what}").exists()


def loop(what: object) -> None:
    """Never come back, where that was ordered."""
    if ordered(what):
        while True:
            pass


def install() -> None:
    """Make this process's workers obey."""
    from shoal.engine.workers.worker import Worker

    train_group = Worker.train_group
    evaluate = Worker.evaluate
    assign = Worker.assign

    def looping_group(self: Any, opened: Any, round: int, group: Any, *more: Any) -> Any:
        if ordered("disk"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        loop("any")
        for each in group:
            loop(each.client)
        return train_group(self, opened, round, group, *more)

    def looping_evaluate(self: Any, request: Any) -> Any:
        loop("evaluate")
        return evaluate(self, request)

    def looping_assign(self: Any, request: Any) -> Any:
        loop("assign")
        return assign(self, request)

    for name, new in (
        ("train_group", looping_group),
        ("evaluate", looping_evaluate),
        ("assign", looping_assign),
    ):
        setattr(Worker, name, new)


@contextlib.contextmanager
def obedient(folder: Path) -> Iterator[Path]:
    """Workers that are started inside obey the orders in a folder."""
    from multiprocessing import forkserver

    from shoal.engine.workers import worker_processes

    folder.mkdir(exist_ok=True)
    before = worker_processes.PRELOADED
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    worker_processes.PRELOADED = [*before, ME]
    # The parent of the workers passes over what it cannot import, and knows nothing of this process's sys.path.
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        with mock.patch.dict(os.environ, {VARIABLE: str(folder), "PYTHONPATH": path}):
            yield folder
    finally:
        worker_processes.PRELOADED = before
        forkserver._forkserver._stop()  # type: ignore[attr-defined]


if os.environ.get(VARIABLE):
    install()
