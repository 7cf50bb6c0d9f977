"""The user's own data: a folder with one sub-folder of images per client, a table with a client column, or arrays.

All become sets like the built-in ones, in a folder of the store where nothing else writes. The column `client` holds
the client of each training sample (numbers into the manifest's `extra["clients"]`), for the scheme `by_column`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shoal.core.errors import DataError
from shoal.data.intake.label_file import read_labels
from shoal.data.intake.options import AddOptions
from shoal.data.intake.own_images import read_folder
from shoal.data.intake.own_rows import read_rows
from shoal.data.intake.own_store import Batch, NothingNew, check_spelling, store_batch, store_labels
from shoal.data.intake.own_vectors import holds_vectors, read_vectors
from shoal.data.intake.own_windows import read_windows
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepare import is_built_in, own_folder, own_pointer, own_sets, prepare, store_folder
from shoal.data.sets.prepared import PreparedSet, read_manifest
from shoal.data.sets.remedy import EMBEDDED
from shoal.data.sets.sample_files import sample_files
from shoal.data.sets.writing import writing


def add(path: Path, name: str, store: Path, options: AddOptions, intake: Intake | None = None) -> PreparedSet:
    """Prepare a set of the user's own, or append to it; one process at a time works on a name.

    Args:
        path: a folder with one sub-folder of images per client; a table (.parquet, .csv, .csv.gz); or vectors: a file
            of arrays, or a folder with one sub-folder of such files, or one such file, for each client.
        name: of the set: small letters, digits, - and _.
        store: the store.
        options: of the user.
        intake: notes of what is taken, adapted and left out.

    Returns:
        Images uint8 (n, 1 or 3, height, width), grey if all are grey; vectors float32 (n, features); or series float32
        (n, channels, length). The notes beside the set say what was left out and adapted; the manifest's `extra` says
        how columns became features or windows were cut.

    Raises:
        NothingNew: the set to append to has all of it.
        DataError: something is unreadable, does not fit, or lacks clients (files, columns and rows are named), or the
            name is taken.
    """
    check_spelling(name)
    with writing(own_folder(store, name)):
        onto = check_name(name, store, options.force, options.append)
        notes = intake or Intake()
        if onto is not None and onto.manifest.classes is None and options.labels is not None:
            return _with_labels(path, onto, options, notes)
        batch = _read(path, store, onto, options, notes)
        return store_batch(name, store, batch, options.test, options.seed, onto, options.licence)


def _with_labels(path: Path, onto: PreparedSet, options: AddOptions, intake: Intake) -> PreparedSet:
    """Return the set with labels that came later, of all its samples; new images are refused."""
    assert options.labels is not None
    if onto.manifest.kind == "image" and read_folder(path, onto, replace(options, labels=None), intake).batch:
        raise DataError(f"{path} has new images: append them without --labels, then give the labels of all samples")
    files = sample_files(onto)
    assert files is not None, "a set of the user's own has them"
    label = read_labels(options.labels, files["file"].tolist(), onto, intake)
    return store_labels(onto, label, options.labels.name, intake)


def _read(path: Path, store: Path, onto: PreparedSet | None, options: AddOptions, intake: Intake) -> Batch:
    """Return what a file or folder has that a set lacks, as it would be stored; nothing is written."""
    if holds_vectors(path):
        _check_kind(onto, "vector", "vectors")
        return read_vectors(path, store, onto, options, intake)
    if options.clients is not None:
        raise DataError(
            f"--clients names the client of each vector in a file of arrays, and {path} is no such file: leave it out"
        )
    if path.is_dir():
        _check_kind(onto, "image", "images")
        batch = read_folder(path, onto, options, intake).batch
        if batch is None:
            count = intake.known.get("files", 0)
            raise NothingNew(f"the set has all of these {count} images already: nothing to append")
        return batch
    if options.cuts_windows or (onto is not None and onto.manifest.kind == "series"):
        return read_windows(path, onto, options, intake)
    _check_kind(onto, "vector", "rows of a table")
    return read_rows(path, onto, options, intake)


def _check_kind(onto: PreparedSet | None, kind: str, what: str) -> None:
    if onto is not None and onto.manifest.kind != kind:
        raise DataError(f"{onto.manifest.name!r} holds {onto.manifest.kind}s: {what} cannot be appended to it")


def check_name(name: str, store: Path, force: bool, append: bool) -> PreparedSet | None:
    """Return the set to append to, checked byte by byte against its manifest; None for a new set."""
    check_spelling(name)
    if is_built_in(name):
        raise DataError(f"{name!r} is the name of a built-in data set: choose another name")
    there = store_folder(store, name).exists() or own_pointer(store, name).exists()
    if append:
        if force:
            raise DataError("--append adds to a data set and --force replaces it: give one of them")
        if not there:
            have = ", ".join(m.name for m in own_sets(store)) or "none"
            raise DataError(f"there is no data set {name!r} to append to; your own: {have}. Add it without --append")
        if origin := read_manifest(store_folder(store, name)).extra.get(EMBEDDED):
            raise DataError(
                f"{name!r} was made of the images in {origin['images']!r}: append to these, then run "
                f"`shoal data embed {origin['images']} --encoder {origin['encoder']['name']} --name {name}`"
            )
        return prepare(name, store, force=True)  # checked, so that damage does not get a digest
    if there and not force:
        raise DataError(
            f"there is a data set {name!r} already: choose another name, add new samples with --append, or replace it "
            "with --force"
        )
    return None
