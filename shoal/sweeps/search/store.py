"""The folder of a search below results/searches, and in it the SQLite database of its settled trials.

The database is Optuna's own, so that Optuna's tools can read it. A trial is added when it is settled, in one
transaction; until then its runs' folders hold all that resuming it needs.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.core.durable import lock_if_free
from shoal.core.errors import short_text
from shoal.engine.settings import places
from shoal.engine.store.codec import writing
from shoal.sweeps.search.definition import SearchDefinition, SearchError
from shoal.sweeps.search.proposals import import_optuna

if TYPE_CHECKING:
    import optuna

DATABASE = "trials.db"
LOCK = ".lock"
IDENTITY = "shoal.definition"
"""The attribute of Optuna's study that holds the definition of the search."""


def folder_of(definition: SearchDefinition) -> Path:
    """Return the folder of a search."""
    return places.searches() / definition.name


@contextlib.contextmanager
def open_study(definition: SearchDefinition, data: str) -> Iterator[optuna.study.Study]:
    """Open the settled trials of a search, made where it is missing; until the end no other process can open it.

    Args:
        definition: of the search.
        data: digest of the data set that its runs are started on.

    Raises:
        SearchError: another process works on the search, the store has another definition of it or trials on another
            version of the data, or its database is unreadable.
    """
    optuna = import_optuna()
    folder = folder_of(definition)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with lock_if_free(folder / LOCK) as ours, contextlib.ExitStack() as opened:
        if not ours:
            raise SearchError(f"search {definition.name!r} is in use by another process: wait for it, or stop it first")
        path = folder / DATABASE
        identity = json.dumps({**definition.identity(), "data": data})
        try:
            storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
            opened.callback(storage.engine.dispose)
            opened.callback(storage.remove_session)
            study = optuna.create_study(
                study_name=definition.name, storage=storage, direction=definition.direction, load_if_exists=True
            )
            if IDENTITY not in study.user_attrs:
                study.set_user_attr(IDENTITY, identity)
            stored = json.loads(study.user_attrs[IDENTITY])
        except Exception as error:  # whatever the database's driver raises
            raise SearchError(
                f"the database {path} of search {definition.name!r} cannot be used ({short_text(error)}): restore it "
                "from a copy, or remove the folder to start again, which uses the runs of the search again"
            ) from error
        now = json.loads(identity)
        differing = [key for key in {**now, **stored} if now.get(key) != stored.get(key)]
        if differing:
            raise SearchError(
                f"search {definition.name!r} exists with another definition, which differs in {', '.join(differing)}: "
                f"give this search another name, or remove {folder}"
            )
        yield study
