"""The user's own data: a folder with one sub-folder of images per client, or a table with a client column.

Both become sets like the built-in ones, in a place of the store where nothing else writes. The client of each training
sample is kept as the column `client` (numbers into the manifest's `extra["clients"]`), for the scheme `by_column`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from core.errors import DataError
from data.choices import OnBad, OnOdd
from data.images import (
    Picture,
    Rejected,
    adapted,
    channels_of,
    common_size,
    image_files,
    listing,
    odd_sized,
    own_files,
    read_images,
    resized,
    stack,
)
from data.own_store import Batch, alone, check_spelling, known_files, store_batch
from data.prepare import is_built_in, own_pointer, own_sets, prepare, store_folder
from data.prepared import Prepared
from data.tables import client_numbers, features, read_table


class NothingNew(DataError):
    """A set has all that is to be appended to it."""


@alone
def add_folder(
    folder: Path,
    name: str,
    store: Path,
    *,
    size: tuple[int, int] | None = None,
    on_bad: OnBad = "refuse",
    on_odd: OnOdd = "refuse",
    labels: Path | None = None,
    test: float = 0.0,
    seed: int = 0,
    licence: str = "not stated",
    force: bool = False,
    append: bool = False,
) -> Prepared:
    """Prepare a folder that holds one sub-folder of images per client.

    Args:
        folder: its sub-folders are the clients; images may lie deeper below them.
        name: what the set is called: small letters, digits, - and _.
        store: the store.
        size: height and width of all images; None: the most common size.
        on_bad: refuse the folder, or skip files, where a file is unreadable, truncated, not finite, or of no client.
        on_odd: refuse, skip or resize images of another size.
        labels: CSV with the columns file (relative to `folder`) and label, one row per image.
        test: share of each client's images that becomes the test split.
        seed: seed for drawing the test split.
        licence: kept in the manifest.
        force: replace a set of this name.
        append: add what is new to the set of this name. Its samples keep their order, numbers and part; images that it
            has are passed over.

    Returns:
        Images uint8 (n, 1 or 3, height, width): grey if all are grey. What was skipped is in `extra["skipped"]`, what
        was resized in `extra["resized"]`, first frames and grey images among coloured ones in `extra["adapted"]`.

    Raises:
        DataError: no folder, no client, a client without images, refused files (all of them listed), labels that do not
            fit, a name that is taken, or images that cannot be appended to the set.
    """
    onto = check_name(name, store, force, append)
    batch = read_folder(folder, onto, size=size, on_bad=on_bad, on_odd=on_odd, labels=labels, licence=licence)
    return store_batch(name, store, batch, test, seed, onto)


def read_folder(
    folder: Path,
    onto: Prepared | None = None,
    *,
    size: tuple[int, int] | None = None,
    on_bad: OnBad = "refuse",
    on_odd: OnOdd = "refuse",
    labels: Path | None = None,
    licence: str = "not stated",
    only: Collection[str] | None = None,
) -> Batch:
    """The images of a folder that holds one sub-folder per client, as they would be stored; nothing is written.

    Args:
        folder, size, on_bad, on_odd, labels, licence: as of `add_folder`.
        onto: the set that they are to be appended to: they must fit it, and what it has is passed over.
        only: paths below the folder; all other files, and files of no client, are passed over unread.

    Raises:
        NothingNew: the set has all of the images already.
        DataError: as `add_folder`.
    """
    _check_choice("on_bad", on_bad, get_args(OnBad))
    _check_choice("on_odd", on_odd, get_args(OnOdd))
    if size is not None and min(size) < 1:
        raise DataError(f"size is {size[0]}x{size[1]}, expected at least 1x1")
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder")
    clients = client_folders(folder)
    if not clients:
        raise DataError(f"{folder} has no sub-folders: expected one sub-folder of images per client")
    files = {client.name: image_files(client) for client in clients}
    if only is not None:
        wanted = {folder / path for path in only}
        files = {client: kept for client, paths in files.items() if (kept := [p for p in paths if p in wanted])}
    empty = [client for client, paths in files.items() if not paths]
    if empty:
        raise DataError(f"no image in the folders of these clients of {folder}: {', '.join(empty)}")

    in_a_client = [path for paths in files.values() for path in paths]
    strays = sorted(set(image_files(folder)) - set(in_a_client)) if only is None else []
    own, linked = own_files(in_a_client, folder)
    pictures, bad = read_images(own, folder)
    bad += linked
    bad += [Rejected(path.relative_to(folder).as_posix(), "in no client's folder") for path in strays]
    _refuse_or_skip(bad, on_bad, folder, "skip them with on_bad='skip' (--on-bad skip), or mend them")
    if not pictures:
        raise DataError(f"{folder} has no readable image:\n{listing(bad)}")
    target = size or (common_size(pictures) if onto is None else _size_of(onto))
    if onto is not None and target != _size_of(onto):
        raise DataError(
            f"{onto.manifest.name!r} holds images of {_size_of(onto)[0]}x{_size_of(onto)[1]}: leave the size out"
        )
    odd = [] if on_odd == "resize" else odd_sized(pictures, target)
    _refuse_or_skip(odd, on_odd, folder, "use on_odd='resize' or 'skip' (--on-odd), or give another size")
    left_out = {each.path for each in odd}
    pictures = [picture for picture in pictures if picture.path not in left_out]

    names = list(files)
    taken = {_client(picture) for picture in pictures}
    bare = [client for client in names if client not in taken]
    if bare:
        raise DataError(f"every image of these clients was skipped: {', '.join(bare)}\n{listing(bad + odd)}")
    channels = channels_of(pictures) if onto is None else onto.manifest.shape[0]
    there = ""
    everything = [picture.path for picture in pictures]
    if onto is not None:
        _check_colours(pictures, channels, onto.manifest.name)
        before = len(pictures)
        pictures = _new_pictures(pictures, target, onto)
        there = f" ({before - len(pictures)} were there already)"
    label: list[str] | None = None
    if labels is not None:
        left_out = {each.path for each in (*bad, *odd)} | set(everything)
        if only is not None and onto is not None:
            left_out |= known_files(onto).keys()
        label = _image_labels(labels, [picture.path for picture in pictures], left_out)
    lists = {"skipped": [*bad, *odd], "resized": resized(pictures, target), "adapted": adapted(pictures, channels)}
    return Batch(
        "image",
        stack(pictures, target, channels),
        label,
        [_client(picture) for picture in pictures],
        names,
        [picture.path for picture in pictures],
        source=f"folder {folder.name}, {len(pictures)} images of {len({_client(p) for p in pictures})} clients{there}",
        licence=licence,
        extra={key: [[each.path, each.reason] for each in found] for key, found in lists.items()},
    )


def client_folders(folder: Path) -> list[Path]:
    """The sub-folders of a folder that are clients, sorted; hidden ones are none."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _client(picture: Picture) -> str:
    return picture.path.split("/")[0]


def _size_of(prepared: Prepared) -> tuple[int, int]:
    if prepared.manifest.kind != "image":
        raise DataError(f"{prepared.manifest.name!r} holds {prepared.manifest.kind}s: images cannot be appended to it")
    _, height, width = prepared.manifest.shape
    return height, width


def _check_colours(pictures: list[Picture], channels: int, name: str) -> None:
    coloured = [Rejected(p.path, "coloured") for p in pictures if p.pixels.ndim == 3]
    if channels == 1 and coloured:
        raise DataError(
            f"{name!r} holds grey images, and {len(coloured)} of these are coloured: make them grey, or add all "
            f"images again with --force:\n{listing(coloured)}"
        )


def _new_pictures(pictures: list[Picture], size: tuple[int, int], onto: Prepared) -> list[Picture]:
    """Those that the set does not have yet.

    Raises:
        NothingNew: there are none.
        DataError: a file whose image in the set is another one.
    """
    known = known_files(onto)
    arrays = {"train": onto.train_x, "test": onto.test_x}
    changed = []
    for picture in pictures:
        if picture.path in known:
            part, index = known[picture.path]
            array = arrays[part]
            assert array is not None
            if not np.array_equal(stack([picture], size, len(array[index]))[0], array[index]):
                changed.append(Rejected(picture.path, "is another image than the one of this name in the set"))
    if changed:
        raise DataError(
            f"{len(changed)} files have changed since they were added to {onto.manifest.name!r}: give the new images "
            f"other names, or add all of them again with --force:\n{listing(changed)}"
        )
    new = [picture for picture in pictures if picture.path not in known]
    if not new:
        raise NothingNew(f"{onto.manifest.name!r} has all of these {len(pictures)} images already: nothing to append")
    return new


@alone
def add_table(
    path: Path,
    name: str,
    store: Path,
    *,
    client_column: str = "client",
    label_column: str | None = None,
    test: float = 0.0,
    seed: int = 0,
    licence: str = "not stated",
    force: bool = False,
    append: bool = False,
) -> Prepared:
    """Prepare a Parquet or CSV table: a client column, an optional label column, and numbers.

    Args:
        path: .parquet, .csv or .csv.gz; CSV with a header row.
        name: what the set is called: small letters, digits, - and _.
        store: the store.
        client_column: says whose a row is.
        label_column: the label of a row; None without labels.
        test: share of each client's rows that becomes the test split.
        seed: seed for drawing the test split.
        licence: kept in the manifest.
        force: replace a set of this name.
        append: add the rows to the set of this name. Its rows keep their order, numbers and part.

    Returns:
        Vectors float32 (n, features), a feature for every other column, in the table's order.

    Raises:
        DataError: unreadable file, missing column, a feature that is not a finite number (names columns and rows), or a
            name that is taken, or rows that cannot be appended to the set.
    """
    onto = check_name(name, store, force, append)
    reserved = [client_column, *([label_column] if label_column else [])]
    table = read_table(path, text=reserved)
    for column in reserved:
        if column not in table.columns:
            raise DataError(f"{path} has no column {column!r}; its columns: {', '.join(map(str, table.columns))}")
    client, names = client_numbers(table[client_column], path)
    x, columns = features(table.drop(columns=reserved), path)
    label: list[str] | None = None
    if label_column:
        missing = np.flatnonzero(table[label_column].isna())
        if len(missing):
            raise DataError(f"{path}: {len(missing)} rows have no label in {label_column!r}, first row {missing[0]}")
        label = [str(value) for value in table[label_column]]
    files = [f"{path.name}:{row}" for row in range(len(x))]
    if onto is not None:
        x = _in_order(x, columns, onto, path)
        if not set(files).isdisjoint(known_files(onto)):
            raise DataError(
                f"{name!r} has rows of a table {path.name} already: give the new rows, and only those, in a file of "
                "another name"
            )
        columns = onto.manifest.extra["features"]
    batch = Batch(
        "vector",
        x,
        label,
        [names[k] for k in client],
        names,
        files,
        source=f"table {path.name}, {len(x)} rows of {len(names)} clients",
        licence=licence,
        extra={"features": columns},
    )
    return store_batch(name, store, batch, test, seed, onto)


def _in_order(x: np.ndarray, columns: list[str], onto: Prepared, path: Path) -> np.ndarray:
    """The features in the order of the set's."""
    m = onto.manifest
    if m.kind != "vector":
        raise DataError(f"{m.name!r} holds {m.kind}s: rows of a table cannot be appended to it")
    wanted = list(m.extra["features"])
    if sorted(columns) != sorted(wanted):
        lacking, more = sorted(set(wanted) - set(columns)), sorted(set(columns) - set(wanted))
        words = [f"lacks {_some(lacking)}"] * bool(lacking) + [f"has {_some(more)} besides"] * bool(more)
        raise DataError(f"{path} cannot be appended to {m.name!r}: of its columns it {', and '.join(words)}")
    return x[:, [columns.index(column) for column in wanted]]


def check_name(name: str, store: Path, force: bool, append: bool) -> Prepared | None:
    """The set to append to, each byte of which is that of its manifest; None for a new one."""
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
        return prepare(name, store, force=True)  # else damage would get a digest of its own
    if there and not force:
        raise DataError(
            f"there is a data set {name!r} already: choose another name, add what is new with --append, or replace it "
            "with --force"
        )
    return None


def _check_choice(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise DataError(f"{option} is {value!r}, expected one of {', '.join(allowed)}")


def _refuse_or_skip(rejected: list[Rejected], action: str, folder: Path, advice: str) -> None:
    if rejected and action == "refuse":
        count = "1 image" if len(rejected) == 1 else f"{len(rejected)} images"
        raise DataError(f"{count} of {folder} cannot be used; {advice}:\n{listing(rejected)}")


def _image_labels(path: Path, files: list[str], passed_over: set[str]) -> list[str]:
    """The label of each file, from a CSV with the columns file and label."""
    table = read_table(path, text=("file", "label"))
    for column in ("file", "label"):
        if column not in table.columns:
            raise DataError(f"{path} has no column {column!r}: expected a CSV with the columns file and label")
    table = table.dropna(subset=["file", "label"])
    names = [Path(str(file)).as_posix() for file in table["file"]]
    repeated = sorted({file for file in names if names.count(file) > 1}) if len(set(names)) < len(names) else []
    if repeated:
        raise DataError(f"{path} labels these files more than once: {_some(repeated)}")
    label_of = dict(zip(names, map(str, table["label"]), strict=True))
    unlabelled = [file for file in files if file not in label_of]
    if unlabelled:
        raise DataError(f"{path} has no label for {len(unlabelled)} images: {_some(unlabelled)}")
    unknown = sorted(set(label_of) - set(files) - passed_over)
    if unknown:
        raise DataError(f"{path} labels {len(unknown)} files that are not there: {_some(unknown)}")
    return [label_of[file] for file in files]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
