"""Tables in a watched folder: those that a set does not have yet, read as one batch.

Every file is a table with the set's columns. A file is known by its name and its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from shoal.core.digests import file_digest
from shoal.core.errors import DataError
from shoal.data.intake.client_table import ROLES, known_tables
from shoal.data.intake.folder_files import files_below
from shoal.data.intake.images import RejectedFile, note_left_out
from shoal.data.intake.options import AddOptions
from shoal.data.intake.own_rows import read_rows
from shoal.data.intake.own_store import Arrivals, Batch, NothingNew
from shoal.data.intake.own_windows import read_windows, refuse_overlap
from shoal.data.intake.table_coding import CODING
from shoal.data.intake.tables import SUFFIXES
from shoal.data.intake.windows import WINDOWS, window_rule
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import PreparedSet

NO_TABLE = "not a table (.csv, .csv.gz, .parquet) that lies directly in the folder"


def takes_tables(onto: PreparedSet) -> bool:
    """Return whether a set was made of tables, by row or in windows."""
    return CODING in onto.manifest.extra or WINDOWS in onto.manifest.extra


def tables_in(folder: Path, intake: Intake) -> list[Path]:
    """Return the tables that lie directly in a folder, by name; other files are left out."""
    tables = []
    for name in files_below(folder, intake):
        if "/" not in name and name.lower().endswith(SUFFIXES):
            tables.append(folder / name)
        else:
            intake.leave_out(NO_TABLE, name)
    return tables


def dropped_tables(folder: Path, onto: PreparedSet, test: float) -> Arrivals:
    """Read the tables of a folder that a set does not have; write nothing.

    Args:
        folder: the watched folder.
        onto: the set, made of tables.
        test: share of the samples that becomes the test split.

    Raises:
        DataError: its windows overlap.
    """
    notes = Intake()
    roles = onto.manifest.extra[ROLES]
    options = AddOptions(client_column=roles["client"], label_column=roles["label"] or None)
    read = read_rows
    if WINDOWS in onto.manifest.extra:
        read = read_windows
        refuse_overlap(window_rule(onto.manifest), test)
    rejected = []
    batches: list[Batch] = []
    grown = onto
    known = known_tables(onto.manifest.extra)
    for path in tables_in(folder, notes):
        own = Intake()
        if known.get(path.name) == file_digest(path):
            notes.know("files")
            continue
        try:
            batch = read(path, grown, options, own)
            _refuse_shared(path, batch, batches)
        except NothingNew:
            notes.know("files")
        except DataError as error:
            rejected.append(RejectedFile(path.name, str(error).removeprefix(str(path)).lstrip(": ")))
        else:
            notes.add(own)
            notes.take("files")
            batches.append(batch)
            grown = _with_names(grown, batch)
    note_left_out(rejected, notes)
    joined = _joined(batches, folder, notes) if batches else None
    return Arrivals(joined, rejected, len(batches), notes)


def _refuse_shared(path: Path, batch: Batch, others: Sequence[Batch]) -> None:
    """Refuse a table that has windows of another new one."""
    for other in others:
        if shared := set(batch.file).intersection(other.file):
            raise DataError(f"{path}: has {min(shared)}, which another new table has, too: leave one of them out")


def _with_names(onto: PreparedSet, batch: Batch) -> PreparedSet:
    """Return a set whose manifest knows the names and tables of a batch, which the next table goes on from."""
    about = onto.manifest
    clients = list(dict.fromkeys([*about.extra["clients"], *batch.clients]))
    labels = tuple(dict.fromkeys([*about.class_names, *(batch.label or ())]))
    extra = {**about.extra, **batch.extra, "clients": clients}
    return replace(onto, manifest=replace(about, class_names=labels, extra=extra))


def _joined(batches: Sequence[Batch], folder: Path, notes: Intake) -> Batch:
    """Return several tables as one batch; the last one knows the tables of all."""
    last = batches[-1]
    return replace(
        last,
        x=np.concatenate([batch.x for batch in batches]),
        label=None if last.label is None else [name for batch in batches for name in batch.label or ()],
        client=[name for batch in batches for name in batch.client],
        clients=list(dict.fromkeys(name for batch in batches for name in batch.clients)),
        file=[name for batch in batches for name in batch.file],
        source=f"folder {folder.name}",
        intake=notes,
    )
