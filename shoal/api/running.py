"""Start runs, resume them, and estimate what they would do."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from shoal.api.opened import Run
from shoal.api.settings_source import SettingsSource, settings_of
from shoal.engine.settings import places
from shoal.engine.settings.private_home import private_files
from shoal.engine.store.run_events import Event, Observer, is_warning, warning_lines
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.workers.worker_processes import start_fork_server
from shoal.lifecycle.rehearsal import Plan, rehearse
from shoal.review.results.result import RunResult

CHOICES = ("method_chosen", "clusters_chosen", "scale_of_columns")
"""Events that say what the settings of a run left open, and how it was chosen."""


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
    return _to_its_end(new_run(checked, _folder(stored_partition)), progress, observers)


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


@private_files()
def plan(settings: SettingsSource = None, *, stored_partition: str | Path | None = None, **changes: Any) -> Plan:
    """Estimate what a run would do, how many bytes it would send and how long it would take; nothing of it is kept.

    Args:
        settings, stored_partition, changes: as in `run`.

    Raises:
        ShoalError: a wrong setting.
    """
    return rehearse(settings_of(settings, changes), _folder(stored_partition))


def _folder(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


def _to_its_end(folder: RunFolder, progress: bool, observers: Sequence[Observer]) -> Run:
    complete(folder, Console(stderr=True) if progress else None, observers)
    return Run(folder)


def complete(folder: RunFolder, console: Console | None, observers: Sequence[Observer] = ()) -> RunResult:
    """Do what is still to do of a run; with a console show what was chosen for it, bars, and warnings."""
    from shoal.flows.execute import execute
    from shoal.lifecycle.progress import progress

    warned: list[Event] = []

    def collect(event: Event) -> None:
        if is_warning(event):
            warned.append(event)

    with contextlib.ExitStack() as shown:
        watching: Observer = collect
        if console is not None:
            for event in folder.events():
                if event.kind in CHOICES:
                    console.print(event.message, highlight=False, markup=False, soft_wrap=True)
            watching = shown.enter_context(progress(console))
        try:
            return execute(folder, [watching, *observers])
        except KeyboardInterrupt:
            print(f"interrupted: `shoal run --resume {folder.name}` continues the run", file=sys.stderr)
            raise
        finally:
            for line in warning_lines(warned):  # with a console they are shown when they happen
                warnings.warn(line, RuntimeWarning, stacklevel=4)
