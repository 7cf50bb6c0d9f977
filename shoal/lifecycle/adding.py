"""Adding the user's own data to the store, and to DVC where there is a DVC repository."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.errors import DataError
from shoal.data.intake.own import add_folder, add_table, add_vectors
from shoal.data.intake.own_images import NothingNew
from shoal.data.intake.own_vectors import holds_vectors
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepare import own_folder
from shoal.data.sets.prepared import Prepared
from shoal.engine.settings import places
from shoal.lifecycle.dvc_tracking import DvcError, track

COMMON_OPTIONS = ("test", "seed", "licence", "force", "append")
PATHS = ("labels", "clients")
IMAGE_OPTIONS = ("size", "on_bad", "on_odd", "labels")
TABLE_OPTIONS = ("client_column", "label_column", "features", "missing", "max_categories", "windows")
VECTOR_OPTIONS = ("clients", "client_column", "label_column", "features")


@dataclass(frozen=True)
class Added:
    """A set of the user's own.

    Attributes:
        prepared: the set.
        pointer: DVC's pointer to it, a small file for git; None outside a DVC repository.
        warning: why DVC did not take it; empty where it did, or was not asked.
        intake: what was taken, adapted and left out.
    """

    prepared: Prepared
    pointer: Path | None
    warning: str
    intake: Intake


def add_own(path: Path, name: str, **options: Any) -> Added:
    """Add a folder with one sub-folder of images per client, a table with a client column, or vectors in arrays.

    Args:
        path: the folder, the table, or the file of arrays.
        name: what the set is called: small letters, digits, - and _.
        options: those of `shoal.data.intake.own.add_folder` (`IMAGE_OPTIONS`), `add_table` (`TABLE_OPTIONS`) or
            `add_vectors` (`VECTOR_OPTIONS`), and `COMMON_OPTIONS`. Options of another kind of data are ignored.

    Raises:
        DataError: the data cannot be added, for one of the reasons of these functions.
    """
    add: Callable[..., Prepared] = add_table
    used: tuple[str, ...] = TABLE_OPTIONS
    if holds_vectors(path):
        add = add_vectors
        used = VECTOR_OPTIONS
    elif path.is_dir():
        add = add_folder
        used = IMAGE_OPTIONS
    own = {key: value for key, value in options.items() if key in (*used, *COMMON_OPTIONS)}
    own |= {key: Path(own[key]) for key in PATHS if own.get(key) is not None}
    if options.get("clients") is not None and add is not add_vectors:
        raise DataError(
            f"--clients names the client of each vector in a file of arrays, and {path} is no such file: leave it out"
        )
    intake = Intake()
    try:
        prepared = add(path, name, places.store(), intake=intake, **own)
    except NothingNew as nothing:
        # An earlier call may have been killed before DVC took the set.
        try:
            track(own_folder(places.store(), name))
        except DvcError as error:
            raise NothingNew(f"{nothing}; {error}") from None
        raise
    try:
        return Added(prepared, track(prepared.folder), "", intake)
    except DvcError as error:
        return Added(prepared, None, str(error), intake)
