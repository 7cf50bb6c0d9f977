"""Tables in a watched folder: those that a set does not have yet, read as one batch.

Every file is a table with the set's columns. A file is known by its name and its bytes, and is only read again where it
was written to since the set was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from shoal.core.errors import DataError
from shoal.core.records import BadRecord, record_from_json
from shoal.data.intake.folder_files import is_system
from shoal.data.intake.images import Rejected
from shoal.data.intake.names import one_spelling_each
from shoal.data.intake.own_images import NothingNew
from shoal.data.intake.own_rows import read_rows
from shoal.data.intake.own_store import Batch, known_files
from shoal.data.intake.own_windows import read_windows, rule_of
from shoal.data.intake.table_coding import CODING
from shoal.data.intake.table_options import TableOptions
from shoal.data.intake.table_origin import ROLES, TABLES, TableRoles, known_tables, refuse_copy
from shoal.data.intake.tables import SUFFIXES
from shoal.data.intake.windows import WINDOWS, WindowRule
from shoal.data.sets.by_client import file_sha256
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import Prepared

CHANGED = "has changed since its rows were taken: put new rows, and only those, into a file of another name"
NO_TABLE = "not a table (.csv, .csv.gz, .parquet)"


@dataclass(frozen=True)
class DroppedTables:
    """The tables of a folder that a set does not have.

    Attributes:
        batch: their rows or windows; None where nothing is new.
        files: the names of the tables that were read.
        rejected: the tables to refuse or leave out, with reasons.
        intake: notes of what was taken, adapted and left out.
    """

    batch: Batch | None
    files: tuple[str, ...]
    rejected: tuple[Rejected, ...]
    intake: Intake = field(default_factory=Intake)


def takes_tables(onto: Prepared) -> bool:
    """Return whether a set was made of tables, by row or in windows."""
    return CODING in onto.manifest.extra or WINDOWS in onto.manifest.extra


def tables_in(folder: Path) -> list[Path]:
    """Return the tables that lie directly in a folder, by name."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_file() and not is_system(path.name) and path.name.lower().endswith(SUFFIXES)
    )


def dropped_tables(folder: Path, onto: Prepared) -> DroppedTables:
    """Read the tables of a folder that a set does not have; write nothing.

    Args:
        folder: the watched folder.
        onto: the set, made of tables.

    Raises:
        DataError: there is no such folder, or the set does not say which column holds its labels.
    """
    if not folder.is_dir():
        raise DataError(f"the watched folder {folder} does not exist: make it, and put tables into it")
    notes = Intake()
    paths = tables_in(folder)
    for path in folder.iterdir():
        if path not in paths and not is_system(path.name):
            notes.leave_out(NO_TABLE, path.name)
    rejected: list[Rejected] = []
    batches = _read(_new(paths, onto, notes, rejected), onto, notes, rejected)
    joined = None
    if batches:
        joined = _joined(list(batches.values()), folder, onto, notes)
    return DroppedTables(joined, tuple(batches), tuple(rejected), notes)


def _read(paths: Sequence[Path], onto: Prepared, notes: Intake, rejected: list[Rejected]) -> dict[str, Batch]:
    """Return what the set lacks of each table, by the name of the table; reject tables that cannot be appended."""
    options = _options(onto)
    rule = rule_of(onto) if WINDOWS in onto.manifest.extra else None
    batches: dict[str, Batch] = {}
    for path in paths:
        own = Intake()
        try:
            batch = (
                read_rows(path, onto, options, own) if rule is None else read_windows(path, onto, options, own, rule)
            )
            _refuse_shared(path, batch, batches)
        except NothingNew:
            notes.know("files")
        except DataError as error:
            rejected.append(_rejected(path, error))
        else:
            notes.add(own)
            notes.take("files")
            batches[path.name] = batch
            if rule is not None:  # the next table goes on from the times of this one
                rule = record_from_json(WindowRule, batch.extra[WINDOWS])
    return batches


def _options(onto: Prepared) -> TableOptions:
    """Return the columns of a set's tables.

    Raises:
        DataError: the set does not say which column holds its labels.
    """
    about = onto.manifest
    try:
        roles = record_from_json(TableRoles, about.extra[ROLES])
    except (KeyError, BadRecord):
        if about.classes is not None:
            raise DataError(
                f"{about.name!r} does not say which column of its tables holds the labels: add its first table again "
                "with --force and --label-column"
            ) from None
        roles = TableRoles("client")
    return TableOptions(client_column=roles.client, label_column=roles.label or None)


def _new(paths: Sequence[Path], onto: Prepared, notes: Intake, rejected: list[Rejected]) -> list[Path]:
    """Return the tables to read; note those that the set has, and reject those that cannot be told apart from them."""
    extra = onto.manifest.extra
    known = known_tables(extra)
    name_of = {digest: name for name, digest in extra.get(TABLES, [])}
    rows_of = {file.rpartition(":")[0] for file in known_files(onto)}
    written = (onto.folder / "manifest.json").stat().st_mtime
    found = []
    for path in paths:
        notes.see("files")
        name = path.name
        there = name in known or name in rows_of
        if there and path.stat().st_mtime <= written:
            notes.know("files")
            continue
        digest = file_sha256(path)
        try:
            refuse_copy(path, name, digest, name_of)
        except DataError as error:
            rejected.append(_rejected(path, error))
            continue
        if known.get(name) == digest:
            notes.know("files")
        elif there and WINDOWS not in extra:
            rejected.append(Rejected(name, CHANGED))
        else:  # a table of a time series may grow: windows that the set has are skipped
            name_of[digest] = name
            found.append(path)
    return found


def _rejected(path: Path, error: DataError) -> Rejected:
    return Rejected(path.name, str(error).removeprefix(str(path)).lstrip(": "))


def _refuse_shared(path: Path, batch: Batch, others: dict[str, Batch]) -> None:
    """Refuse a table that has windows of another new one."""
    own = set(batch.file)
    for name, other in others.items():
        shared = own.intersection(other.file)
        if shared:
            raise DataError(f"{path}: has {min(shared)}, which {name} has, too: leave one of them out")


def _joined(batches: Sequence[Batch], folder: Path, onto: Prepared, notes: Intake) -> Batch:
    """Return several tables as one batch."""
    first = batches[0]
    about = onto.manifest
    label: list[str] | None = None
    if first.label is not None:
        label = [name for batch in batches for name in batch.label or ()]
        kind_of = one_spelling_each(Counter(label), "labels", folder, about.class_names, notes)
        label = [kind_of[name] for name in label]
    client = [name for batch in batches for name in batch.client]
    client_of = one_spelling_each(Counter(client), "clients", folder, about.extra["clients"], notes)
    client = [client_of[name] for name in client]
    x = np.concatenate([batch.x for batch in batches])
    tables = [batch.extra[TABLES][-1] for batch in batches]
    what = "windows" if first.kind == "series" else "rows"
    extra = {TABLES: [*onto.manifest.extra.get(TABLES, []), *tables]}
    if WINDOWS in batches[-1].extra:
        extra[WINDOWS] = batches[-1].extra[WINDOWS]
    return Batch(
        first.kind,
        x,
        label,
        client,
        list(dict.fromkeys(client_of[name] for batch in batches for name in batch.clients)),
        [name for batch in batches for name in batch.file],
        source=f"folder {folder.name}, {len(x)} {what} of {len(set(client))} clients",
        licence=first.licence,
        extra=extra,
        intake=notes,
    )
