"""A run is a folder: settings, lineage, status, events and tables; MLflow, Prefect and reports are views of it.

runs/20260131-120000_fedpnp_mnist_1a2b3c4d/
settings.yaml  lineage.json  status.json  events.jsonl
rounds.parquet  clients.parquet  links.parquet (bytes between clients, if there were any), written at the end
clusters.parquet  clusters.json  centres.safetensors  features.safetensors (of methods that cluster samples)
rounds/0007/  memory/<thousand>/<client>/<round>.safetensors  work/  figures/  report.html
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from shoal.core.digests import file_digest
from shoal.core.durable import lock_if_free, owner_of, private_folder
from shoal.core.errors import ShoalError
from shoal.core.records import BadRecord, record_from_json, record_to_json
from shoal.engine.settings import places
from shoal.engine.settings.addresses import masked
from shoal.engine.settings.run_settings import Settings, make_settings
from shoal.engine.settings.yaml_text import read_yaml_file
from shoal.engine.store.codec import StoreError, check_digest, read_sealed, write_atomic, write_sealed, writing
from shoal.engine.store.lineage import Lineage
from shoal.engine.store.manifest import read_manifest
from shoal.engine.store.relocation import located
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_events import WARNING, WARNINGS, Event, line_of, read_line, tell_observers
from shoal.engine.store.run_order import in_order
from shoal.engine.store.status import FINISHED, INTERRUPTED, Status
from shoal.engine.store.table_file import read_table
from shoal.engine.store.tables import TABLES, make_tables

SETTINGS = "settings.yaml"
LINEAGE = "lineage.json"
LATEST = "latest"
"""Stands for the run that was started last."""
STATUS = "status.json"
EVENTS = "events.jsonl"
LOCK_SECONDS = 3.0
"""So long a run in use is tried again: one that only looks whether it is in use has it for a moment, and so does a
process that another thread is just starting."""


_status_lock = threading.RLock()
"""The loop and the log to MLflow write the status from threads of their own."""


class RunError(ShoalError):
    """A run cannot be found, opened or resumed."""


class RunFolder:
    """The paths and small files of one run; `create` makes its folder, `find` finds it."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.name = self.path.name
        self.rounds = self.path / "rounds"
        self.memory = self.path / "memory"
        self.work = self.path / "work"
        self.figures = self.path / "figures"
        self._locked = False

    @classmethod
    def create(cls, runs: Path, settings: Settings, lineage: Lineage) -> RunFolder:
        """Make a new folder with settings and lineage under `runs`."""
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        name = f"{stamp}_{settings.method.name}_{settings.data.name}_{settings.digest()[:8]}"
        for attempt in range(1000):
            run = cls(runs / (name if not attempt else f"{name}-{attempt + 1}"))
            with writing(run.path), contextlib.suppress(FileExistsError):
                run.path.mkdir(parents=True)
                break
        for folder in (run.rounds, run.figures):
            folder.mkdir()
        private_folder(run.memory)
        text = yaml.safe_dump(settings.to_json(), sort_keys=False).encode()
        write_atomic(run.path / SETTINGS, text)
        whole_lineage = replace(lineage, id=uuid.uuid4().hex, settings_file_sha256=hashlib.sha256(text).hexdigest())
        write_lineage(run.path / LINEAGE, whole_lineage)
        return run

    @classmethod
    def find(cls, text: str, *, unfinished: bool = True) -> RunFolder:
        """Find a run.

        Args:
            text: path of the run, its name under runs/, the beginning of that name, or `latest`.
            unfinished: whether `latest` may be a run that is not finished.

        Raises:
            RunError: no run, or more than one, has this name.
        """
        runs = places.runs()
        for candidate in (Path(text), runs / text):
            if (candidate / "settings.yaml").is_file():
                return cls(candidate)
        if (runs / text).is_dir():
            raise RunError(f"{runs / text} has no settings.yaml: restore it from a backup, or remove the folder")
        names = [path.parent.name for path in in_order(runs)]
        if text == LATEST and names:
            return cls._latest(runs, names, unfinished)
        matches = [name for name in names if name.startswith(text)]
        if len(matches) == 1:
            return cls(runs / matches[0])
        if matches:
            raise RunError(
                f"{len(matches)} runs have names that begin with {text!r}: {', '.join(matches[:5])}; give more of the "
                "name"
            )
        raise RunError(f"no run {text!r} in {runs} (there are {len(names)} runs; `shoal runs` lists them)")

    @classmethod
    def _latest(cls, runs: Path, names: Sequence[str], unfinished: bool) -> RunFolder:
        """Return the last run, or the last finished one."""
        for name in reversed(names):
            run = cls(runs / name)
            if unfinished or run.is_finished():
                return run
        raise RunError(
            f"no run in {runs} is finished yet (there are {len(names)} runs, the last one is {names[-1]}): finish it "
            f"with `shoal run --resume {names[-1]}`, or name that run"
        )

    def settings(self) -> Settings:
        """Read the settings with which the run was started.

        Raises:
            StoreError: the file or the lineage has changed since.
            RunError: this version refuses the settings.
        """
        check_digest(self.path / SETTINGS, self.lineage().settings_file_sha256)
        raw = read_yaml_file(self.path / SETTINGS, "", RunError, "base")
        if not isinstance(raw, dict):
            raise RunError(f"{self.path / SETTINGS} holds a {type(raw).__name__}, expected keys and values")
        try:
            return make_settings(raw)
        except ShoalError as error:
            raise RunError(f"{self.path / SETTINGS}: {error}") from None

    def lineage(self) -> Lineage:
        """Return the origin of the run's data, code and settings; errors as of `read_lineage`."""
        return read_lineage(self.path / LINEAGE)

    def folder_of(self, what: str) -> Path:
        """Return the folder of the run's `data` or `partition`, also in a home that was moved."""
        lineage = self.lineage()
        folders = {"data": lineage.data.folder, "partition": lineage.partition.folder}
        return located(folders[what], self.path)

    def set_lineage(self, **entries: Any) -> None:
        """Replace attributes of the lineage of a run that has not begun yet."""
        write_lineage(self.path / LINEAGE, replace(self.lineage(), **entries))

    def status(self) -> Status:
        """Read the status of the run.

        Raises:
            RunError: it was changed or damaged, or is missing although rounds are done.
        """
        path = self.path / STATUS
        remedy = f"`shoal run --resume {self.name}` writes it again"
        if not path.exists():
            if any(self.round_folders()):
                raise RunError(f"run {self.name}: {path} is missing; {remedy}")
            return Status(INTERRUPTED, 0, "never started")
        try:
            return record_from_json(Status, read_sealed(path))
        except StoreError as error:
            raise RunError(f"run {self.name}: {error}; {remedy}") from error
        except BadRecord as error:
            raise RunError(f"run {self.name}: {path} is not the status of a run ({error}); {remedy}") from None

    def is_finished(self) -> bool:
        """Return whether the run is finished; False if its status cannot be read."""
        try:
            return self.status().is_finished
        except ShoalError:
            return False

    def round_folders(self) -> list[int]:
        """Return the rounds that have a folder, ascending, also those without a manifest."""
        if not self.rounds.is_dir():
            return []
        return sorted(int(path.name) for path in self.rounds.iterdir() if path.name.isdecimal())

    def set_status(self, state: str, round: int, message: str = "", **entries: Any) -> None:
        """Replace the status; where the run is shown stays as it is. Arguments as of `Status`."""
        status = Status(state, round, masked(message), pid=os.getpid(), updated=now(), **entries)
        with _status_lock:
            with contextlib.suppress(ShoalError):  # a damaged status is replaced
                status = replace(status, tracking=self.status().tracking)
            write_sealed(self.path / STATUS, record_to_json(status))

    def set_finished(self, round: int, weights_sha256: str, quarantined: Sequence[int] = ()) -> None:
        """Write the status of a finished run, with the digests of its tables, so that later damage is noticed.

        Args:
            round: the last round.
            weights_sha256: digest of the final server state.
            quarantined: as of `Status`.
        """
        paths = [self._table_path(name) for name in TABLES]
        self.set_status(
            FINISHED,
            round,
            quarantined=tuple(quarantined) or None,
            weights_sha256=weights_sha256,
            files={path.name: file_digest(path) for path in paths if path.exists()},
            events_bytes=size_of(self.path / EVENTS),
        )

    def add_to_status(self, **entries: Any) -> None:
        """Replace attributes of the status, but not the time of its last update."""
        with _status_lock:
            write_sealed(self.path / STATUS, record_to_json(replace(self.status(), **entries)))

    def set_tracking(self, **entries: Any) -> None:
        """Replace attributes of `Status.tracking`."""
        with _status_lock:
            self.add_to_status(tracking=replace(self.status().tracking, **entries))

    def event(self, kind: str, *, level: str | None = None, **facts: Any) -> Event:
        """Append an event to the log, and call the observers of the run (`shoal.engine.store.run_events.observing`).

        Args:
            kind: what happened.
            level: `WARNING` if a user must see it; events of the kinds in `WARNINGS` always have this level.
            facts: further entries, JSON values by name.
        """
        shown = {name: masked(fact) if isinstance(fact, str) else fact for name, fact in facts.items()}
        event = Event(kind, shown, now(), WARNING if kind in WARNINGS else level)
        with writing(self.path / EVENTS), (self.path / EVENTS).open("a") as file:
            file.write(line_of(event))
        tell_observers(self.path, event)
        return event

    def event_once(self, kind: str, message: str, *, level: str | None = None) -> None:
        """Append an event, unless the run has one with this message."""
        if all(event.message != message for event in self.events()):
            self.event(kind, level=level, message=message)

    def events(self) -> list[Event]:
        """Read the event log without lines that hold no event, such as one that a crash cut short."""
        return [event for line in self._event_lines() if (event := read_line(line)) is not None]

    def whole_events(self) -> list[Event]:
        """Read the event log, and refuse an incomplete one.

        Raises:
            StoreError: a line was changed or damaged, or lines of a finished run are missing.
        """
        lost = size_of(self.path / EVENTS) < (self.status().events_bytes or 0)
        events = [read_line(line) for line in self._event_lines()[:-1]]
        if lost or None in events:
            raise StoreError(
                f"run {self.name}: {self.path / EVENTS} has lost lines or been changed since it was written: restore "
                f"it, or remove the damaged lines and accept the loss with `shoal run --resume {self.name}`"
            )
        return [event for event in events if event is not None]

    def _event_lines(self) -> list[bytes]:
        """Return the lines of the event log; the last one is empty, or was cut short."""
        path = self.path / EVENTS
        if not path.exists():
            return []
        return path.read_bytes().split(b"\n")

    def table(self, name: str) -> pd.DataFrame:
        """Read the table `rounds` or `clients`; empty if it has no row.

        Until the run is finished it is made from the manifests, without those that are damaged.

        Raises:
            StoreError: the run is finished and the table is missing or changed.
        """
        status = self.status()
        if not status.is_finished:
            manifests = []
            for round in self.round_folders():
                with contextlib.suppress(StoreError):
                    manifests.append(read_manifest(RoundPaths(self.path, round).manifest, round))
            return make_tables(manifests)[name]
        path = self._table_path(name)
        sha256 = status.digest_of(path.name)
        if sha256 is None:
            return pd.DataFrame()
        try:
            return read_table(path, sha256)
        except StoreError as error:
            remedy = f"`shoal run --resume {self.name}` writes it again"
            raise StoreError(f"run {self.name}: {error}; {remedy}") from error

    def set_tables(self, tables: Mapping[str, pd.DataFrame]) -> None:
        """Write the tables that have rows."""
        for name, table in tables.items():
            self._table_path(name).unlink(missing_ok=True)
            if len(table):
                write_atomic(self._table_path(name), table.to_parquet(index=False), sync=False)

    def _table_path(self, name: str) -> Path:
        return self.path / f"{name}.parquet"

    @contextlib.contextmanager
    def locked(self, *, patience: float = LOCK_SECONDS) -> Iterator[None]:
        """Lock the run for this process within this context; a lock inside another one has no effect.

        Args:
            patience: seconds for which a run in use is tried again; 0 to look whether it is in use.

        Raises:
            RunError: another process has locked it.
        """
        if self._locked:
            yield
            return
        lock = self.path / "lock"
        with lock_if_free(lock, patience) as ours:
            if not ours:
                raise RunError(
                    f"run {self.name} is in use by another process (pid {owner_of(lock)}): wait for that process, or "
                    "stop it"
                )
            self._locked = True
            try:
                yield
            finally:
                self._locked = False


def read_lineage(path: Path) -> Lineage:
    """Read a lineage from its file.

    Raises:
        StoreError: the file is missing or damaged, or another version wrote it.
    """
    try:
        return record_from_json(Lineage, read_sealed(path))
    except BadRecord as error:
        raise StoreError(
            f"{path} is not the lineage of a run of this version ({error}): start the run again with "
            f"`shoal run {path.parent / SETTINGS}`"
        ) from None


def write_lineage(path: Path, lineage: Lineage) -> None:
    """Write a lineage to its file."""
    write_sealed(path, record_to_json(lineage))


def size_of(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it is missing."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def now() -> float:
    """Return the seconds since the epoch, to the millisecond."""
    return round(time.time(), 3)
