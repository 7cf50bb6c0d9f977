"""Adding the user's own data to the store, and to DVC where there is a DVC repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoal.data.intake.options import AddOptions
from shoal.data.intake.own import add
from shoal.data.intake.own_store import NothingNew
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepare import own_folder
from shoal.engine.settings import places
from shoal.lifecycle.dvc_tracking import StoredSet, track

PATHS = ("labels", "clients")


def add_own(path: Path, name: str, **options: Any) -> StoredSet:
    """Add a folder with one sub-folder of images per client, a table with a client column, or vectors in arrays.

    Args:
        path: the folder, the table, or the file of arrays.
        name: what the set is called: small letters, digits, - and _.
        options: those of `shoal.data.intake.options.AddOptions`.

    Raises:
        TypeError: there is no such option.
        DataError: the data cannot be added, for one of the reasons of `shoal.data.intake.own.add`.
    """
    options |= {key: Path(options[key]) for key in PATHS if options.get(key) is not None}
    intake = Intake()
    try:
        prepared = add(path, name, places.store(), AddOptions(**options), intake)
    except NothingNew:
        track(own_folder(places.store(), name))  # an earlier call may have been killed before DVC took the set
        raise
    return StoredSet(prepared, "", *track(prepared.folder), intake)
