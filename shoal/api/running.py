"""Start runs and resume them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from shoal.api.opened import Run
from shoal.api.settings_source import SettingsSource, settings_of
from shoal.engine.settings import places
from shoal.engine.settings.private_home import private_files
from shoal.engine.store.run_events import Observer
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.workers.worker_processes import start_fork_server


@private_files()
def run(
    settings: SettingsSource = None,
    *,
    progress: bool = True,
    observers: Sequence[Observer] = (),
    stored_partition: str | Path | None = None,
    **changes: Any,
) -> Run:
    """Run one federation, from data to reviewed result.

    Args:
        settings: a settings file, a mapping, or settings; every one has a default (see `shoal run --help` and
            docs/running.md).
        progress: show bars: in a notebook below the cell, else on standard error.
        observers: called with every event (`shoal.engine.store.run_events.Event`).
        stored_partition: the folder of a partition to use instead of making one.
        changes: sections merged over `settings`: `rounds=3`, `method="fedcc"`, `data={"name": "digits", "limit": 500}`.

    Returns:
        The finished run.

    Raises:
        ShoalError: a wrong setting, before any work; or the run stopped and can be resumed.
        KeyboardInterrupt: it was interrupted, and `shoal.resume` continues it.

    >>> import shoal
    >>> shoal.run("params.yaml", rounds=3, seed=1).metrics  # doctest: +SKIP
    """
    from shoal.lifecycle.starting import new_run

    checked = settings_of(settings, changes)
    start_fork_server()
    partition = None if stored_partition is None else Path(stored_partition)
    return _to_its_end(new_run(checked, partition), progress, observers)


@private_files()
def resume(name: str | Path | Run = "latest", *, progress: bool = True, observers: Sequence[Observer] = ()) -> Run:
    """Resume a run where it stopped, with the settings that it was started with.

    Args:
        name: its folder, its name or the beginning of it, or latest, the one that was started last.
        progress, observers: as in `run`.

    Raises:
        ShoalError: no such run, or another process works on it.
    """
    if isinstance(name, Run):
        name = name.path
    return _to_its_end(RunFolder.find(str(name), places.runs()), progress, observers)


def _to_its_end(folder: RunFolder, progress: bool, observers: Sequence[Observer]) -> Run:
    from shoal.flows.execute import complete

    complete(folder, Console(stderr=True) if progress else None, observers)
    return Run(folder)
