"""A run is a folder: settings, lineage, status, events, and two tables; MLflow, Prefect and reports are views of it.

runs/20260131-120000_fedpnp_mnist_1a2b3c4d/
settings.yaml  lineage.json  status.json  events.jsonl  rounds.parquet  clients.parquet
clusters.parquet  clusters.json  centres.safetensors (where samples have clusters: review.clusters)
rounds/0007/  memory/<client>/<round>.safetensors  work/  figures/  report.html
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from core.errors import ShoalError
from engine.codec import disk_error, read_json, write_atomic, write_json
from engine.settings import Settings, make_settings

RUNNING, FINISHED, INTERRUPTED, FAILED = "running", "finished", "interrupted", "failed"


class RunError(ShoalError):
    """A run cannot be found, opened or gone on with."""


class RunFolder:
    """The paths and small files of one run. The folder is made by `create` and found by `find`."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.name = self.path.name
        self.rounds = self.path / "rounds"
        self.memory = self.path / "memory"
        self.work = self.path / "work"
        self.figures = self.path / "figures"

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
        for folder in (run.rounds, run.memory, run.figures):
            folder.mkdir()
        write_atomic(run.path / "settings.yaml", yaml.safe_dump(settings.plain(), sort_keys=False).encode())
        write_json(run.path / "lineage.json", lineage)
        return run

    @classmethod
    def find(cls, text: str, runs: Path) -> RunFolder:
        """A run by its path, its name under `runs`, or the beginning of that name; `latest` is the newest.

        Raises:
            RunError: none, or more than one.
        """
        for candidate in (Path(text), runs / text):
            if (candidate / "settings.yaml").is_file():
                return cls(candidate)
        names = sorted(p.parent.name for p in runs.glob("*/settings.yaml"))
        if text == "latest" and names:
            return cls(runs / names[-1])
        matches = [name for name in names if name.startswith(text)]
        if len(matches) == 1:
            return cls(runs / matches[0])
        if matches:
            raise RunError(f"{text!r} names {len(matches)} runs: {', '.join(matches[:5])}; give more of the name")
        raise RunError(f"no run {text!r} in {runs} (there are {len(names)} runs; `ls {runs}` lists them)")

    def settings(self) -> Settings:
        """The settings the run was started with."""
        return make_settings(yaml.safe_load((self.path / "settings.yaml").read_text()))

    def lineage(self) -> dict[str, Any]:
        """Where the run's data, code and settings come from."""
        return read_json(self.path / "lineage.json")

    def set_lineage(self, **entries: Any) -> None:
        """Add to the lineage (the MLflow run id is only known later)."""
        write_json(self.path / "lineage.json", {**self.lineage(), **entries})

    def status(self) -> dict[str, Any]:
        """State, round and message."""
        path = self.path / "status.json"
        return read_json(path) if path.exists() else {"state": INTERRUPTED, "round": 0, "message": "never started"}

    def set_status(self, state: str, round: int, message: str = "", **more: Any) -> None:
        """Replace the status."""
        about = {"state": state, "round": round, "message": message, "pid": os.getpid(), "updated": now()}
        write_json(self.path / "status.json", {**about, **more})

    def event(self, kind: str, **facts: Any) -> dict[str, Any]:
        """Append a line to the event log."""
        entry = {"time": now(), "event": kind, **facts}
        try:
            with (self.path / "events.jsonl").open("a") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise disk_error(self.path / "events.jsonl", error) from error
        return entry

    def events(self) -> list[dict[str, Any]]:
        """The event log; a last line cut short by a crash is left out."""
        path = self.path / "events.jsonl"
        entries = []
        for line in path.read_text().splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError):
                entries.append(json.loads(line))
        return entries

    def table(self, name: str) -> pd.DataFrame:
        """The table `rounds`, `clients` or `links` (bytes between clients); empty where there is nothing of it yet."""
        path = self.path / f"{name}.parquet"
        return pd.read_parquet(path) if path.exists() else pd.DataFrame()

    def set_table(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Replace a table."""
        write_atomic(self.path / f"{name}.parquet", pd.DataFrame(rows).to_parquet(index=False), sync=False)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run for this process.

        Raises:
            RunError: another process is working on it.
        """
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
            yield


def now() -> float:
    """Seconds since the epoch, to the millisecond."""
    return round(time.time(), 3)
