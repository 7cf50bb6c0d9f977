"""The folder of a search below results/searches, and in it the SQLite database of its settled trials.

The database is Optuna's own, so that Optuna's tools can read it. A trial is added when it is settled, in one
transaction; until then its runs' folders hold all that resuming it needs.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.core.durable import lock_if_free
from shoal.core.errors import short_text
from shoal.engine.settings import places
from shoal.engine.store.codec import disk_error
from shoal.sweeps.search.definition import SearchDefinition, SearchError
from shoal.sweeps.search.proposals import import_optuna

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

DATABASE = "trials.db"
LOCK = ".lock"
IDENTITY = "shoal.definition"
"""The attribute of Optuna's study that holds the definition of the search."""


class SearchStore:
    """The settled trials of a search. Made by `open_store`."""

    def __init__(self, folder: Path, study: optuna.study.Study) -> None:
        self.folder = folder
        self.study = study

    def trials(self) -> list[FrozenTrial]:
        """Return all settled trials, by number."""
        return self.study.get_trials(deepcopy=False)

    def add(self, trial: FrozenTrial) -> None:
        """Add the next settled trial."""
        self.study.add_trial(trial)


@contextlib.contextmanager
def open_store(definition: SearchDefinition) -> Iterator[SearchStore]:
    """Open the store of a search, made where it is missing; until the end no other process can open it.

    Raises:
        SearchError: another process works on the search, the store has another definition of it, or its database is
            unreadable.
    """
    optuna = import_optuna()
    folder = places.searches() / definition.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(folder, error) from error
    with lock_if_free(folder / LOCK) as ours:
        if not ours:
            raise SearchError(f"search {definition.name!r} is in use by another process: wait for it, or stop it first")
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
            stored = study.user_attrs.get(IDENTITY)
            if stored is None:
                study.set_user_attr(IDENTITY, json.dumps(definition.identity()))
        except Exception as error:  # whatever the database's driver raises
            release(storage)
            raise SearchError(
                f"the database {path} of search {definition.name!r} cannot be used ({short_text(error)}): restore it "
                "from a copy, or remove the folder to start again, which uses the runs of the search again"
            ) from error
        try:
            if stored is not None:
                check_same(definition, json.loads(stored), folder)
            yield SearchStore(folder, study)
        finally:
            release(storage)


def release(storage: Any) -> None:
    """Close the file of the database."""
    if storage is not None:
        storage.remove_session()
        storage.engine.dispose()


def check_same(definition: SearchDefinition, stored: dict[str, Any], folder: Path) -> None:
    """Refuse to resume a search with another definition.

    Raises:
        SearchError: names the keys that differ.
    """
    now = json.loads(json.dumps(definition.identity()))
    differing = [key for key in {**now, **stored} if now.get(key) != stored.get(key)]
    if differing:
        raise SearchError(
            f"search {definition.name!r} exists with another definition, which differs in {', '.join(differing)}: "
            f"give this search another name, or remove {folder}"
        )
