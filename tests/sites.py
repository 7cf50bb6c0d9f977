"""Sites of tests: processes with homes of their own, and what they hold in one place beside it."""

from __future__ import annotations

import shutil
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from shoal.data.intake.own_store import Batch, store_batch
from shoal.data.intake.own_writing import Part, write_by_client
from shoal.data.sets.prepare import own_folder
from shoal.data.sets.prepared import Manifest, PreparedSet
from shoal.engine.sites.sites_pool import SitesPool
from shoal.engine.sites.transport import SiteLost, Waits
from shoal.engine.workers.without_main import WORKER_NAME, start_without_main
from shoal.engine.workers.worker_processes import start_fork_server
from tests.pipe_site import serve

KINDS = ("vector", "image", "points")


@dataclass
class Pipes:
    """Sites over pipes; a site that was killed is started when it is asked again.

    Args:
        homes: by the name of the site.
    """

    homes: Mapping[str, Path]
    processes: dict[str, Any] = field(default_factory=dict)
    ends: dict[str, Connection] = field(default_factory=dict)
    """The lead's ends of the pipes."""
    asked: list[tuple[str, bytes, bytes]] = field(default_factory=list)
    """Site, request and answer of everything that was asked."""
    locks: dict[str, threading.Lock] = field(default_factory=dict)
    kill_at: dict[str, int] = field(default_factory=dict)
    """The number of a site's next request, counted from 0, whose answer is lost since the site is killed."""

    @property
    def sites(self) -> Sequence[str]:
        return list(self.homes)

    def start(self, site: str) -> Connection:
        """Start a site's process, unless it runs: forked from one that has imported what it needs."""
        if site in self.processes and self.processes[site].is_alive():
            return self.ends[site]
        context = start_fork_server()
        self.ends[site], inner = context.Pipe()
        self.processes[site] = context.Process(
            target=serve, args=(inner, site, self.homes[site]), daemon=True, name=f"{WORKER_NAME} at {site}"
        )
        start_without_main(self.processes[site])
        inner.close()
        return self.ends[site]

    def kill(self, site: str) -> None:
        if site in self.processes:
            self.processes[site].kill()
            self.processes[site].join()

    def ask(self, site: str, content: bytes, waits: Waits = warnings.warn) -> bytes:
        # A thread of a lead that was stopped may still wait for an answer.
        with self.locks.setdefault(site, threading.Lock()):
            return self.ask_alone(site, content, waits)

    def ask_alone(self, site: str, content: bytes, waits: Waits) -> bytes:
        pipe = self.start(site)
        try:
            pipe.send_bytes(content)
            answer = pipe.recv_bytes()
        except (EOFError, OSError):
            raise SiteLost(f"site {site} has ended") from None
        self.asked.append((site, content, answer))
        left = self.kill_at.pop(site, None)
        if left == 0:
            self.kill(site)
            waits(f"site {site} is away")
            raise SiteLost(f"site {site} was killed")
        if left is not None:
            self.kill_at[site] = left - 1
        return answer

    def close(self) -> None:
        for site in self.processes:
            self.kill(site)


def samples(kind: str, count: int, site: int) -> tuple[np.ndarray, list[str]]:
    """Some of scikit-learn's digits: as images, as vectors, or as three planted groups of vectors."""
    rows = slice(site * count, (site + 1) * count)
    x, y = load_digits(return_X_y=True)
    if kind == "points":
        rng = np.random.default_rng(site)
        y = rng.integers(0, 3, count)
        return (np.eye(3, 4)[y] * 6 + rng.normal(size=(count, 4))).astype(np.float32), [str(label) for label in y]
    labels = [str(label) for label in y[rows]]
    if kind == "vector":
        return x[rows].astype(np.float32), labels
    return (x[rows] * 15).astype(np.uint8).reshape(-1, 1, 8, 8), labels


def name_of(kind: str) -> str:
    """The name of the set of a kind, at every site."""
    return f"wards-{kind}"


def add_own_set(store: Path, kind: str, count: int, site: int, clients: int = 1, **changes: Any) -> PreparedSet:
    """Add a site's samples to its store; files and clients have names that are nobody else's business."""
    x, labels = samples(kind, count, site)
    names = [f"secret-ward-{site}-{row % clients}" for row in range(count)]
    entries: dict[str, Any] = {
        "kind": "image" if kind == "image" else "vector",
        "x": x,
        "label": labels,
        "client": names,
        "clients": sorted(set(names)),
        "file": [f"secret-patient-{site}-{row}.png" for row in range(count)],
        "source": "a test",
        "extra": {} if kind == "image" else {"features": [f"f{column}" for column in range(x.shape[1])]},
    }
    return store_batch(name_of(kind), store, Batch(**{**entries, **changes}), 0.2, 0)


def joined_set(store: Path, sets: Sequence[PreparedSet]) -> None:
    """The samples of all sites in one place, as if they could be pooled."""
    parts = {}
    names: list[str] = []
    owners: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    for prepared in sets:
        for part, found in owners.items():
            found.append(prepared.owners(part) + len(names))
        names += prepared.manifest.extra["clients"]
    for part, found in owners.items():
        owner = np.concatenate(found)
        order = np.argsort(owner, kind="stable")
        x, y = (np.concatenate([np.asarray(getattr(prepared, f"{part}_{what}")) for prepared in sets]) for what in "xy")
        parts[part] = Part(x[order], y[order], owner[order], [str(row) for row in order])
    first = sets[0].manifest
    extra = {**first.extra, "clients": names}
    sizes = {part: len(of_part.owner) for part, of_part in parts.items()}
    about = (first.name, first.kind, first.shape, first.classes, sizes["train"], sizes["test"], "a test", "none")
    write_by_client(own_folder(store, first.name), Manifest(*about, first.class_names, extra=extra), parts)


@dataclass
class Federation:
    """Sites of a test, and their samples in one place.

    Args:
        folder: of the homes.
        pipes: to the sites.
        sets: of the sites, in the order of their names, by kind.
    """

    folder: Path
    pipes: Pipes
    sets: dict[str, list[PreparedSet]]

    @property
    def pool(self) -> SitesPool:
        return SitesPool(self.pipes)


@contextmanager
def federation(
    kinds: Sequence[str] = KINDS, count: int = 60, clients: Sequence[int] = (1, 1, 1)
) -> Iterator[Federation]:
    """Three sites, of which none can open a file of another; they are named in another order than that of their names.

    Args:
        kinds: of their sets.
        count: samples of each site.
        clients: of each site.
    """
    folder = Path(tempfile.mkdtemp(prefix="shoal sites "))
    names = ("east", "north", "south")
    sets: dict[str, list[PreparedSet]] = {kind: [] for kind in kinds}
    for number, (name, of_site) in enumerate(zip(names, clients, strict=True)):
        for kind, of_kind in sets.items():
            of_kind.append(add_own_set(folder / name / "data" / "store", kind, count, number, of_site))
    pipes = Pipes({name: folder / name for name in ("south", "east", "north")})
    try:
        yield Federation(folder, pipes, sets)
    finally:
        pipes.close()
        shutil.rmtree(folder)
