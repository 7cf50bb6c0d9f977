"""Running small runs in tests, and what of them must be equal."""

from __future__ import annotations

import json
from typing import Any

from engine.rounds import Engine
from engine.run_folder import RunFolder
from engine.units import ThreadRunner
from engine.worker import Worker
from tasks.starting import new_run


def straight(settings: Any, call: Any = None, observers: Any = (), slots: int = 1) -> RunFolder:
    """A run to its end in this process."""
    run = new_run(settings)
    go_on(run, call, observers, slots)
    return run


def go_on(run: RunFolder, call: Any = None, observers: Any = (), slots: int = 1) -> None:
    """What is left of a run."""
    runner = ThreadRunner(slots + 1)
    try:
        Engine(run, call or Worker().handle, runner, slots, observers).run_to_end()
    finally:
        runner.close()


def numbers(run: RunFolder) -> tuple[str, str]:
    """Digest of the weights, and all metrics without timings."""
    tables = []
    for name in ("rounds", "clients"):
        table = run.table(name)
        kept = [c for c in table.columns if not c.startswith("seconds") and c != "finished_at"]
        tables.append(table[kept].to_json())
    return run.status()["weights_sha256"], json.dumps(tables)
