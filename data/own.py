"""The user's own data: a folder with one sub-folder of images per client, or a table with a client column.

Both become prepared sets like the built-in ones. The client of each training sample is kept as the column `client`
(numbers into the manifest's `extra["clients"]`), for the scheme `by_column`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from data.errors import DataError
from data.images import OnBad, OnOdd, Rejected, common_size, image_files, listing, odd_sized, read_images, stack
from data.prepare import is_built_in, store_folder
from data.prepared import Kind, Manifest, Prepared, open_prepared, write_prepared
from data.sample_files import DIGEST, FILES, files_table
from data.streams import Streams
from data.tables import client_numbers, features, read_table

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


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
        test: part of each client's images that becomes the test part.
        seed: of the choice of the test part.
        licence: kept in the manifest.
        force: replace a set of this name.

    Returns:
        Images uint8 (n, 1 or 3, height, width): grey if all are grey. What was skipped is in `extra["skipped"]`.

    Raises:
        DataError: no folder, no client, a client without images, refused files (all of them listed), labels that do not
            fit, or a name that is taken.
    """
    _check_name(name, store, force)
    _check_choice("on_bad", on_bad, get_args(OnBad))
    _check_choice("on_odd", on_odd, get_args(OnOdd))
    if size is not None and min(size) < 1:
        raise DataError(f"size is {size[0]}x{size[1]}, expected at least 1x1")
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder")
    clients = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not clients:
        raise DataError(f"{folder} has no sub-folders: expected one sub-folder of images per client")
    files = {client.name: image_files(client) for client in clients}
    empty = [client for client, paths in files.items() if not paths]
    if empty:
        raise DataError(f"no image in the folders of these clients of {folder}: {', '.join(empty)}")

    in_a_client = [path for paths in files.values() for path in paths]
    strays = sorted(set(image_files(folder)) - set(in_a_client))
    pictures, bad = read_images(in_a_client, folder)
    bad += [Rejected(path.relative_to(folder).as_posix(), "in no client's folder") for path in strays]
    _refuse_or_skip(bad, on_bad, folder, "skip them with on_bad='skip' (--on-bad skip), or mend them")
    if not pictures:
        raise DataError(f"{folder} has no readable image:\n{listing(bad)}")
    target = size or common_size(pictures)
    odd = [] if on_odd == "resize" else odd_sized(pictures, target)
    _refuse_or_skip(odd, on_odd, folder, "use on_odd='resize' or 'skip' (--on-odd), or give another size")
    left_out = {each.path for each in odd}
    pictures = [picture for picture in pictures if picture.path not in left_out]

    names = [client.name for client in clients]
    number = {client: k for k, client in enumerate(names)}
    client = np.array([number[picture.path.split("/")[0]] for picture in pictures], dtype=np.int64)
    bare = [names[k] for k in range(len(names)) if not (client == k).any()]
    if bare:
        raise DataError(f"every image of these clients was skipped: {', '.join(bare)}\n{listing(bad + odd)}")
    y: np.ndarray | None = None
    class_names: tuple[str, ...] = ()
    if labels is not None:
        skipped = {each.path for each in (*bad, *odd)}
        y, class_names = _image_labels(labels, [picture.path for picture in pictures], skipped)
    return _store(
        name,
        store,
        "image",
        stack(pictures, target),
        y,
        class_names,
        client,
        [picture.path for picture in pictures],
        test,
        seed,
        source=f"folder {folder.name}, {len(pictures)} images of {len(names)} clients",
        licence=licence,
        extra={"clients": names, "skipped": [[each.path, each.reason] for each in (*bad, *odd)]},
    )


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
) -> Prepared:
    """Prepare a Parquet or CSV table: a client column, an optional label column, and numbers.

    Args:
        path: .parquet, .csv or .csv.gz; CSV with a header row.
        name: what the set is called: small letters, digits, - and _.
        store: the store.
        client_column: says whose a row is.
        label_column: the label of a row; None without labels.
        test: part of each client's rows that becomes the test part.
        seed: of the choice of the test part.
        licence: kept in the manifest.
        force: replace a set of this name.

    Returns:
        Vectors float32 (n, features), a feature for every other column, in the table's order.

    Raises:
        DataError: unreadable file, missing column, a feature that is not a finite number (names columns and rows), or a
            name that is taken.
    """
    _check_name(name, store, force)
    table = read_table(path)
    reserved = [client_column, *([label_column] if label_column else [])]
    for column in reserved:
        if column not in table.columns:
            raise DataError(f"{path} has no column {column!r}; its columns: {', '.join(map(str, table.columns))}")
    client, names = client_numbers(table[client_column], path)
    x, columns = features(table.drop(columns=reserved), path)
    y: np.ndarray | None = None
    class_names: tuple[str, ...] = ()
    if label_column:
        missing = np.flatnonzero(table[label_column].isna())
        if len(missing):
            raise DataError(f"{path}: {len(missing)} rows have no label in {label_column!r}, first row {missing[0]}")
        y, class_names = _number_labels([str(value) for value in table[label_column]])
    return _store(
        name,
        store,
        "vector",
        x,
        y,
        class_names,
        client,
        [f"{path.name}:{row}" for row in range(len(x))],
        test,
        seed,
        source=f"table {path.name}, {len(x)} rows of {len(names)} clients",
        licence=licence,
        extra={"clients": names, "features": columns},
    )


def _check_name(name: str, store: Path, force: bool) -> None:
    if not _NAME.fullmatch(name):
        raise DataError(f"{name!r} cannot name a data set: use small letters, digits, - and _")
    if is_built_in(name):
        raise DataError(f"{name!r} is the name of a built-in data set: choose another name")
    if store_folder(store, name).exists() and not force:
        raise DataError(f"there is a data set {name!r} already: choose another name, or replace it with --force")


def _check_choice(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise DataError(f"{option} is {value!r}, expected one of {', '.join(allowed)}")


def _refuse_or_skip(rejected: list[Rejected], action: str, folder: Path, advice: str) -> None:
    if rejected and action == "refuse":
        raise DataError(f"{len(rejected)} images of {folder} cannot be used; {advice}:\n{listing(rejected)}")


def _image_labels(path: Path, files: list[str], skipped: set[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """The label number of each file and the class names, from a CSV with the columns file and label."""
    table = read_table(path)
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
    unknown = sorted(set(label_of) - set(files) - skipped)
    if unknown:
        raise DataError(f"{path} labels {len(unknown)} files that are not there: {_some(unknown)}")
    return _number_labels([label_of[file] for file in files])


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _number_labels(labels: list[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels from 0 in the order of their names, whole numbers in numerical order; and the names."""
    names = sorted(set(labels), key=lambda text: (0, int(text), "") if re.fullmatch(r"-?\d+", text) else (1, 0, text))
    number = {label: k for k, label in enumerate(names)}
    return np.array([number[label] for label in labels], dtype=np.int64), tuple(names)


def _store(
    name: str,
    store: Path,
    kind: Kind,
    x: np.ndarray,
    y: np.ndarray | None,
    class_names: tuple[str, ...],
    client: np.ndarray,
    files: list[str],
    test: float,
    seed: int,
    *,
    source: str,
    licence: str,
    extra: dict[str, Any],
) -> Prepared:
    if not 0 <= test < 1:
        raise DataError(f"test is {test}, expected at least 0 and below 1")
    held = np.zeros(len(x), dtype=bool)
    for k in range(len(extra["clients"])):
        rows = np.flatnonzero(client == k)
        # At least one sample of each client stays for training.
        count = min(round(len(rows) * test), len(rows) - 1)
        held[Streams(seed, client=k).numpy("own test part").permutation(rows)[:count]] = True
    arrays: dict[str, np.ndarray | None] = {"train_x": x[~held], "train_y": None if y is None else y[~held]}
    if held.any():
        arrays |= {"test_x": x[held], "test_y": None if y is None else y[held]}
    table = files_table(files, [extra["clients"][k] for k in client], held)
    manifest = Manifest(
        name=name,
        kind=kind,
        shape=tuple(x.shape[1:]),
        classes=len(class_names) or None,
        train=int((~held).sum()),
        test=int(held.sum()),
        source=source,
        licence=licence,
        class_names=class_names,
        extra={**extra, DIGEST: hashlib.sha256(table).hexdigest()},
    )
    folder = store_folder(store, name)
    write_prepared(folder, manifest, arrays, {"client": client[~held]}, {FILES: table})
    return open_prepared(folder)
