"""A run is a folder: settings, lineage, status, events, and two tables; MLflow, Prefect and reports are views of it.

runs/20260131-120000_fedpnp_mnist_1a2b3c4d/
settings.yaml  lineage.json  status.json  events.jsonl
rounds.parquet  clients.parquet (while it runs, their newest rows beside them: rounds.new.jsonl  clients.new.jsonl)
clusters.parquet  clusters.json  centres.safetensors  features.safetensors (where samples have clusters)
rounds/0007/  memory/<thousand>/<client>/<round>.safetensors  work/  figures/  report.html
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from core.errors import ShoalError
from engine.addresses import masked
from engine.codec import (
    check_digest,
    disk_error,
    private_folder,
    read_json,
    read_sealed,
    write_atomic,
    write_json,
    write_sealed,
)
from engine.relocation import located
from engine.settings import Settings, make_settings
from engine.yaml_text import read_yaml_file

SETTINGS, LINEAGE = "settings.yaml", "lineage.json"
ORDER = ".order"
"""The file, among the runs, that says in which order they were started."""
WAITING_BYTES = 1 << 18
"""Rows beside a table that are put into it, at least; as JSON they take several times what they take in a table."""
WAITING_SHARE = 2.0
"""And as a multiple of the table's own size."""
RUNNING, FINISHED, INTERRUPTED, FAILED = "running", "finished", "interrupted", "failed"
STOPPED = "stopped"
"""By somebody who watched it, such as a search over settings; it can be resumed like an interrupted one."""


class RunError(ShoalError):
    """A run cannot be found, opened or gone on with."""


class RunStopped(RunError):
    """An observer ends the run by raising this, after the checkpoint of a round; the message says why.

    Args:
        why: one sentence, for the run's events and status.
        round: the last round that was done.
    """

    def __init__(self, why: str, round: int) -> None:
        super().__init__(why)
        self.round = round


class RunFolder:
    """The paths and small files of one run. The folder is made by `create` and found by `find`."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.name = self.path.name
        self.rounds = self.path / "rounds"
        self.memory = self.path / "memory"
        self.work = self.path / "work"
        self.figures = self.path / "figures"
        self._held = False

    @classmethod
    def create(cls, runs: Path, settings: Settings, lineage: dict[str, Any]) -> RunFolder:
        """A new folder under `runs`, with settings and lineage written."""
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        name = f"{stamp}_{settings.method.name}_{settings.data.name}_{settings.digest()[:8]}"
        for attempt in range(1000):
            run = cls(runs / (name if not attempt else f"{name}-{attempt + 1}"))
            try:
                run.path.mkdir(parents=True)
                break
            except FileExistsError:
                continue
            except OSError as error:
                raise disk_error(run.path, error) from error
        for folder in (run.rounds, run.figures):
            folder.mkdir()
        private_folder(run.memory)
        text = yaml.safe_dump(settings.plain(), sort_keys=False).encode()
        write_atomic(run.path / SETTINGS, text)
        about = {"id": uuid.uuid4().hex, "settings_file_sha256": hashlib.sha256(text).hexdigest()}
        write_sealed(run.path / LINEAGE, {**lineage, **about})
        add_to_order(runs, run.name)
        return run

    @classmethod
    def find(cls, text: str, runs: Path) -> RunFolder:
        """A run by its path, its name under `runs`, or the beginning of that name; `latest` was started last.

        Raises:
            RunError: none, or more than one.
        """
        for candidate in (Path(text), runs / text):
            if (candidate / "settings.yaml").is_file():
                return cls(candidate)
        names = [path.parent.name for path in in_order(runs)]
        if text == "latest" and names:
            return cls(runs / names[-1])
        matches = [name for name in names if name.startswith(text)]
        if len(matches) == 1:
            return cls(runs / matches[0])
        if matches:
            raise RunError(f"{text!r} names {len(matches)} runs: {', '.join(matches[:5])}; give more of the name")
        raise RunError(f"no run {text!r} in {runs} (there are {len(names)} runs; `ls {runs}` lists them)")

    def settings(self) -> Settings:
        """The settings the run was started with.

        Raises:
            StoreError: the file or the lineage has changed since.
            RunError: the file holds no settings, or settings that this version refuses.
        """
        check_digest(self.path / SETTINGS, self.lineage().get("settings_file_sha256"))
        raw = read_yaml_file(self.path / SETTINGS, "", RunError)
        if not isinstance(raw, dict):
            raise RunError(f"{self.path / SETTINGS} holds a {type(raw).__name__}, expected keys and values")
        try:
            return make_settings(raw)
        except ShoalError as error:
            raise RunError(f"{self.path / SETTINGS}: {error}") from None

    def lineage(self) -> dict[str, Any]:
        """Where the run's data, code and settings come from."""
        return read_sealed(self.path / LINEAGE)

    def folder_of(self, what: str) -> Path:
        """Where the data set (`data`) or the partition (`partition`) of the run lies, also in a home that was moved."""
        return located(self.lineage()[what], self.path)

    def set_lineage(self, **entries: Any) -> None:
        """Add to the lineage (the MLflow run id is only known later)."""
        write_sealed(self.path / LINEAGE, {**self.lineage(), **entries})

    def status(self) -> dict[str, Any]:
        """State, round and message."""
        path = self.path / "status.json"
        if not path.exists():
            return {"state": INTERRUPTED, "round": 0, "message": "never started"}
        found = read_json(path)
        if isinstance(found, dict) and isinstance(found.get("state"), str) and type(found.get("round")) is int:
            return found
        raise RunError(f"{path} is no status of a run: remove it, then go on with `shoal run --resume {self.name}`")

    def set_status(self, state: str, round: int, message: str = "", **more: Any) -> None:
        """Replace the status."""
        about = {"state": state, "round": round, "message": masked(message), "pid": os.getpid(), "updated": now()}
        write_json(self.path / "status.json", {**about, **more})

    def event(self, kind: str, **facts: Any) -> dict[str, Any]:
        """Append a line to the event log."""
        shown = {key: masked(fact) if isinstance(fact, str) else fact for key, fact in facts.items()}
        entry = {"time": now(), "event": kind, **shown}
        try:
            with (self.path / "events.jsonl").open("a") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise disk_error(self.path / "events.jsonl", error) from error
        return entry

    def events(self) -> list[dict[str, Any]]:
        """The event log; what is no event, such as a last line cut short by a crash, is left out."""
        path = self.path / "events.jsonl"
        entries = []
        for line in path.read_bytes().split(b"\n") if path.exists() else ():
            with contextlib.suppress(ValueError, RecursionError):
                entry = json.loads(line)
                if isinstance(entry, dict) and isinstance(entry.get("event"), str):
                    entries.append(entry)
        return entries

    def table(self, name: str) -> pd.DataFrame:
        """The table `rounds`, `clients` or `links` (bytes between clients); empty where there is nothing of it yet."""
        path = self.path / f"{name}.parquet"
        whole = pd.read_parquet(path) if path.exists() else pd.DataFrame()
        rows = self._waiting(name)
        if not rows:
            return whole
        if not len(whole):
            return pd.DataFrame(rows)
        # Where a crash came between writing the table and forgetting what waited, rows are in both.
        last = whole["round"].max()
        new = [row for row in rows if row["round"] > last]
        return pd.concat([whole, pd.DataFrame(new)], ignore_index=True) if new else whole

    def set_table(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Replace a table, and forget the rows that wait beside it."""
        self._waits(name).unlink(missing_ok=True)
        write_atomic(self.path / f"{name}.parquet", pd.DataFrame(rows).to_parquet(index=False), sync=False)

    def add_rows(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Add the rows of a round to a table: to a file beside it, at the cost of these rows alone.

        Whoever reads the table with `table` sees them. They are put into it when there are many.
        """
        path = self._waits(name)
        try:
            with path.open("a") as file:
                file.write("".join(json.dumps(row) + "\n" for row in rows))
            size = path.stat().st_size
        except OSError as error:
            raise disk_error(path, error) from error
        table = self.path / f"{name}.parquet"
        # So rare that each row is written anew a few times, however many there will be.
        if size > max(WAITING_BYTES, WAITING_SHARE * (table.stat().st_size if table.exists() else 0)):
            self.settle_table(name)

    def settle_table(self, name: str) -> None:
        """Put the rows that wait beside a table into it."""
        path = self._waits(name)
        if path.exists():
            content = self.table(name).to_parquet(index=False)
            write_atomic(self.path / f"{name}.parquet", content, sync=False)
            path.unlink()

    def _waits(self, name: str) -> Path:
        """The file of the rows that are not in a table yet."""
        return self.path / f"{name}.new.jsonl"

    def _waiting(self, name: str) -> list[dict[str, Any]]:
        """The rows of that file; a last line that a crash cut short is left out."""
        path, rows = self._waits(name), []
        for line in path.read_bytes().split(b"\n") if path.exists() else ():
            with contextlib.suppress(ValueError, RecursionError):
                row = json.loads(line)
                if isinstance(row, dict) and type(row.get("round")) is int:
                    rows.append(row)
        return rows

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run for this process; who holds it already goes on holding it.

        Raises:
            RunError: another process is working on it.
        """
        if self._held:
            yield
            return
        with (self.path / "lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                owner = file.read().strip() or "unknown"
                raise RunError(
                    f"run {self.name} is in use by another process (pid {owner}): wait for it, or stop it first"
                ) from None
            file.seek(0)
            file.truncate()
            file.write(str(os.getpid()))
            file.flush()
            self._held = True
            try:
                yield
            finally:
                self._held = False


def in_order(runs: Path, pattern: str = "*") -> list[Path]:
    """The settings files of the runs in a folder, in the order in which the runs were started there.

    Names begin with the time, and a clock that was set back makes smaller ones. The file `ORDER` has a line a run, in
    the order in which their folders were made. Runs that it does not name, which came from elsewhere or from version
    0.1.0, stand before the others, by name.

    Args:
        runs: the folder.
        pattern: of the names of the runs that are wanted.
    """
    there = {path.parent.name: path for path in runs.glob(f"{pattern}/settings.yaml")}
    try:
        listed = (runs / ORDER).read_bytes().decode("utf-8", "replace").splitlines()
    except OSError:
        listed = []
    place = {name: number for number, name in enumerate(listed)}
    return [there[name] for name in sorted(there, key=lambda name: (place.get(name, -1), name))]


def add_to_order(runs: Path, name: str) -> None:
    """Say that a run is the newest of its folder."""
    try:
        with (runs / ORDER).open("a") as file:
            file.write(f"{name}\n")  # so short a line is appended whole
    except OSError as error:
        raise disk_error(runs / ORDER, error) from error


def now() -> float:
    """Seconds since the epoch, to the millisecond."""
    return round(time.time(), 3)
