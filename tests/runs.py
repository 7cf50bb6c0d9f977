"""Running small runs in tests, and what of them must be equal."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from shoal.engine.rounds.loop import Engine
from shoal.engine.rounds.runner import ThreadRunner
from shoal.engine.store.run_events import Event
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.workers.worker import Worker
from shoal.lifecycle.starting import new_run
from shoal.methods.cfl.fedavg import FedAvg
from shoal.methods.contract.base import ClientError


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


def stopped(settings: Any, event: str, round: int, call: Any = None) -> RunFolder:
    """A run interrupted at an event of a round."""
    return stopped_where(settings, lambda entry, number: entry.kind == event and entry.round == round, call)


def stopped_at(settings: Any, count: int, call: Any = None) -> RunFolder:
    """A run interrupted at its event of that number, counted from 1."""
    return stopped_where(settings, lambda entry, number: number == count, call)


def stopped_where(settings: Any, stop: Callable[[dict[str, Any], int], bool], call: Any = None) -> RunFolder:
    """A run interrupted at the first event of which `stop(event, its number)` holds."""
    number = 0

    def watch(entry: Event) -> None:
        nonlocal number
        number += 1
        if stop(entry, number):
            raise KeyboardInterrupt

    run = new_run(settings)
    with pytest.raises(KeyboardInterrupt):
        go_on(run, call, [watch])
    return run


def unwell(monkeypatch: pytest.MonkeyPatch, ill: int) -> None:
    """Have one client of FedAvg fail whenever it is to train."""
    begin = FedAvg.local_steps

    def local_steps(self: Any, message: Any, client: Any) -> Any:
        if client.id == ill:
            raise ClientError(f"client {ill} is not well")
        return begin(self, message, client)

    monkeypatch.setattr(FedAvg, "local_steps", local_steps)


def numbers(run: RunFolder) -> tuple[str, str]:
    """Digest of the weights, and all metrics without timings."""
    tables = []
    for name in ("rounds", "clients"):
        table = run.table(name)
        kept = [c for c in table.columns if not c.startswith("seconds") and c != "finished_at"]
        tables.append(table[kept].to_json())
    return run.status().weights_sha256, json.dumps(tables)
