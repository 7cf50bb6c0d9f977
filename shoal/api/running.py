"""Start runs and resume them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console

from shoal.api.opened import Run
from shoal.engine.settings.merge import merge
from shoal.engine.settings.private_home import private_files
from shoal.engine.settings.run_settings import Settings, SettingsError, expand_names, load_settings, make_settings
from shoal.engine.store.run_events import Observer
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.workers.worker_processes import start_fork_server


@private_files()
def run(
    settings: SettingsSource = None,
    *,
    progress: bool = True,
    observers: Sequence[Observer] = (),
    **changes: Any,
) -> Run:
    """Run one federation, from data to reviewed result.

    Args:
        settings: a settings file, a mapping, or settings; every one has a default (see `shoal run --help` and
            docs/running.md).
        progress: show bars: in a notebook below the cell, else on standard error.
        observers: called with every event (`shoal.engine.store.run_events.Event`).
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
    return _to_its_end(new_run(checked), progress, observers)


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
    return _to_its_end(RunFolder.find(str(name)), progress, observers)


def _to_its_end(folder: RunFolder, progress: bool, observers: Sequence[Observer]) -> Run:
    from shoal.flows.execute import complete

    complete(folder, Console(stderr=True) if progress else None, observers)
    return Run(folder)


SettingsSource: TypeAlias = "Settings | Mapping[str, Any] | str | Path | None"


def settings_of(source: SettingsSource, changes: Mapping[str, Any]) -> Settings:
    """Return checked settings.

    Args:
        source: a settings file (YAML), a mapping of sections or of dotted paths such as {"data.name": "digits"},
            settings, or nothing: the defaults.
        changes: sections by name, merged over those of `source`, such as {"rounds": 3, "method": "fedcc"}.

    Raises:
        SettingsError: an unreadable file, or a wrong setting, by its path.
    """
    overrides = nested(changes)
    if isinstance(source, str | Path):
        return load_settings(Path(source), changes=overrides)
    if isinstance(source, Settings):
        base = source.to_json()
        if overrides.get("method", {}).get("name", source.method.name) != source.method.name:
            del base["local"]  # the other method has defaults of its own
        return make_settings(merge(base, overrides))
    return load_settings(changes=merge(nested(source or {}), overrides))


def nested(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted paths as nested dictionaries, and words as the sections that they stand for.

    >>> nested({"method": "fedcc", "data.name": "digits", "data": {"limit": 100}})
    {'method': {'name': 'fedcc'}, 'data': {'name': 'digits', 'limit': 100}}
    """
    settings_so_far: dict[str, Any] = {}
    for path, value in source.items():
        if not isinstance(path, str):
            raise SettingsError(f"{path!r} names no setting: expected a word such as rounds, or a path as data.name")
        for step in reversed(path.split(".")):
            value = {step: dict(value) if isinstance(value, Mapping) else value}
        settings_so_far = merge(settings_so_far, expand_names(value))
    return settings_so_far
