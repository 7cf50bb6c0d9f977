"""Hosts that serve the work of runs (`shoal work`), and how a run knows them.

Prefect's server lists the task workers that are connected to it, with the keys of the tasks that each of them serves. A
host serves one task of its own, whose key says what a run asks of a host. So nothing else has to be registered, and a
host that is gone stands in no list.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

ROOMS = ("core", "data", "models", "methods", "engine")
"""What a host computes with."""
KIND = "shoal-work?"
"""What the keys of the hosts' tasks begin with."""


@dataclass(frozen=True)
class Host:
    """What a run asks of a host.

    Args:
        name: of the machine.
        slots: requests that it works on at once.
        device: where its slots compute, cpu or cuda.
        version: see `version_here`.
        id: tells it from any other.
    """

    name: str
    slots: int
    device: str
    version: str
    id: str

    @classmethod
    def here(cls, slots: int, device: str) -> Host:
        """A host of this machine."""
        return cls(os.uname().nodename, slots, device, version_here(), uuid.uuid4().hex[:12])

    @property
    def words(self) -> str:
        """All of it in one word without a dot: Prefect takes what follows a function's last dot for its name."""
        return KIND + urlencode(asdict(self)).replace(".", "%2E")

    @classmethod
    def of(cls, key: str) -> Host | None:
        """The host whose task has a key; None of a task that is not of a host."""
        if not key.startswith(KIND):
            return None
        found = dict(parse_qsl(key.removeprefix(KIND).rpartition("-")[0]))
        try:
            return cls(found["name"], int(found["slots"]), found["device"], found["version"], found["id"])
        except (KeyError, ValueError):  # of a version that says other things
            return None


@functools.cache
def version_here() -> str:
    """What decides the bits: versions of Shoal and torch, and a digest of the code that a host computes with."""
    digest = hashlib.sha256()
    for room in ROOMS:
        spec = importlib.util.find_spec(room)
        folders = map(Path, spec.submodule_search_locations or () if spec else ())
        for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
            digest.update(f"{room}/{path.name}\n".encode() + path.read_bytes())
    torch = metadata.version("torch").partition("+")[0]  # without the build: one for CPUs drives those for GPUs
    return f"shoal {metadata.version('shoal')} ({digest.hexdigest()[:8]}), torch {torch}"


def task_of(host: Host, carry_out: Callable[[], Any], results: Path) -> Any:
    """The Prefect task that a host serves.

    Args:
        host: the host.
        carry_out: does the request of the task run that it is called in.
        results: a folder of this host for what Prefect keeps of a background task run, which is nothing of ours.
    """
    from prefect import Task

    def work() -> Any:
        return carry_out()

    work.__qualname__ = host.words
    # Every run is of another request: by default Prefect takes two runs of one flow without parameters for the same.
    return Task(
        work,
        name="work on a host",
        retries=0,
        persist_result=True,
        result_storage=results,
        cache_key_fn=lambda context, _: str(context.task_run.id),
    )
