"""Where a search lies: its folder below results/searches, and in it the SQLite database with its settled trials.

The database is Optuna's own, so that its tools can read it. A trial is added when it is settled, in one transaction;
what a trial that is under way needs lies in its runs' folders.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.core.errors import brief
from shoal.engine.settings import places
from shoal.engine.store.codec import disk_error
from shoal.sweeps.definition import SearchDefinition, SearchError
from shoal.sweeps.proposals import optuna_here

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

DATABASE = "trials.db"
IDENTITY = "shoal.definition"
"""The attribute of Optuna's study that holds what the search was defined as."""


class SearchStore:
    """The settled trials of a search. Made by `open_store`."""

    def __init__(self, folder: Path, study: optuna.study.Study) -> None:
        self.folder = folder
        self._study = study

    def trials(self) -> list[FrozenTrial]:
        """All settled trials, by number."""
        return self._study.get_trials(deepcopy=False)

    def add(self, trial: FrozenTrial) -> None:
        """Keep a settled trial, as the next one."""
        self._study.add_trial(trial)


def folder_of(name: str) -> Path:
    """The folder of a search."""
    return places.searches() / name


@contextlib.contextmanager
def open_store(definition: SearchDefinition) -> Iterator[SearchStore]:
    """The store of a search, made where it is not there yet, held for this process until the end.

    Raises:
        SearchError: another process works on the search, it was defined otherwise, or its database is unreadable.
    """
    optuna = optuna_here()
    folder = folder_of(definition.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(folder, error) from error
    with held(folder, definition.name):
        path = folder / DATABASE
        storage: Any = None
        try:
            storage = optuna.storages.RDBStorage(f"sqlite:///{path}", skip_compatibility_check=False)
            study = optuna.create_study(
                study_name=definition.name,
                storage=storage,
                direction="maximize" if definition.maximises else "minimize",
                load_if_exists=True,
            )
            known = study.user_attrs.get(IDENTITY)
            if known is None:
                study.set_user_attr(IDENTITY, json.dumps(definition.identity()))
        except Exception as error:  # whatever the database's driver raises
            release(storage)
            raise SearchError(
                f"the database {path} of search {definition.name!r} cannot be used ({brief(error)}): put it back from "
                "a copy, or remove the folder to begin anew; its runs are used again"
            ) from error
        try:
            if known is not None:
                check_same(definition, json.loads(known), folder)
            yield SearchStore(folder, study)
        finally:
            release(storage)


def release(storage: Any) -> None:
    """Let go of the database's file."""
    if storage is not None:
        storage.remove_session()
        storage.engine.dispose()


def check_same(definition: SearchDefinition, known: dict[str, Any], folder: Path) -> None:
    """Refuse to go on with a search under another definition.

    Raises:
        SearchError: names the keys that differ.
    """
    now = json.loads(json.dumps(definition.identity()))
    differing = [key for key in {**now, **known} if now.get(key) != known.get(key)]
    if differing:
        raise SearchError(
            f"search {definition.name!r} is there with another definition, which differs in {', '.join(differing)}: "
            f"give this one another name, or remove {folder}"
        )


@contextlib.contextmanager
def held(folder: Path, name: str) -> Iterator[None]:
    """Hold a search for this process; a killed process holds nothing.

    Raises:
        SearchError: another process works on it.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SearchError(f"search {name!r} is in use by another process: wait for it, or stop it first") from None
        yield
    finally:
        os.close(handle)
