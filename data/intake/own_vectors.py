"""The user's own vectors as a batch: a file of arrays whose rows name their client, or a folder with files a client.

x.npy --clients clients.csv     x.npz, x.parquet, x.h5ad with a client for each row
embeddings/oslo.npy             embeddings/oslo/2024.npy, embeddings/oslo/2025.npz
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd

from shoal.core.errors import DataError, first_of
from shoal.data.intake.array_files import VectorFile, is_array_file, open_array_file, read_clients, vectors_of
from shoal.data.intake.client_table import client_names, file_origin, label_names
from shoal.data.intake.folder_files import client_folders, files_below
from shoal.data.intake.image_decoding import SUFFIXES as IMAGE_SUFFIXES
from shoal.data.intake.names import in_order
from shoal.data.intake.options import AddOptions
from shoal.data.intake.own_rows import refuse_known_rows
from shoal.data.intake.own_store import Batch
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import PreparedSet


def holds_vectors(path: Path) -> bool:
    """Return whether a path is a file of arrays, or a folder with such files and without images."""
    if not path.is_dir():
        return is_array_file(path)
    files = [path / name for name in files_below(path, Intake())]
    return IMAGE_SUFFIXES.isdisjoint(file.suffix.lower() for file in files) and any(map(is_array_file, files))


def read_vectors(path: Path, store: Path, onto: PreparedSet | None, options: AddOptions, intake: Intake) -> Batch:
    """Return vectors as they would be stored; values stay in a file, memory-mapped.

    Args:
        path: a file of vectors, or a folder with one sub-folder, or one file, for each client.
        store: a folder with room for a copy of the vectors, which goes when the batch goes.
        onto: the set to append to.
        options: of the user.
        intake: notes of what is taken, adapted and left out.

    Raises:
        DataError: see `shoal.data.intake.own.add`.
    """
    features = options.features
    if features is not None and len(features) != 1:
        raise DataError(f"--features names {len(features)} arrays, expected the one that holds the vectors of {path}")
    vectors = features[0] if features else None
    if path.is_dir():
        opened = _folder(path, vectors, options, intake)
    else:
        opened = {path.name: _file(path, vectors, options, intake)}
    files = list(opened.values())
    width = files[0].x.shape[1]
    for file in files:
        if file.x.shape[1] != width:
            raise DataError(
                f"{file.path} has vectors of {file.x.shape[1]} numbers, and {files[0].path} of {width}: expected one "
                "width"
            )
        for other in file.others:
            intake.leave_out(
                "array or column that is neither vectors, clients nor labels", f"{file.path.name}: {other}"
            )
    names = [f"{name}:{row}" for name, file in opened.items() for row in range(len(file.x))]
    refuse_known_rows(names, path, onto)
    origin = file_origin({name: file.path for name, file in opened.items()}, onto)
    client = client_names(pd.concat(list(map(_clients, files)), ignore_index=True), path, onto, intake)
    label = _labels(files, path, onto, intake)
    store.mkdir(parents=True, exist_ok=True)
    x = vectors_of(files, store, intake)
    intake.see("rows", len(x))
    intake.take("rows", len(x))
    if onto is None:
        origin["features"] = list(files[0].columns or map(str, range(width)))
    return Batch(
        "vector",
        x,
        label,
        client.tolist(),
        in_order(client),
        names,
        source=f"vectors of {path.name}",
        extra=origin,
        intake=intake,
    )


def _file(path: Path, vectors: str | None, options: AddOptions, notes: Intake) -> VectorFile:
    if options.clients is None:
        return open_array_file(path, vectors, options.client_column, options.label_column)
    clients, labels = read_clients(options.clients, options.client_column, options.label_column)
    file = open_array_file(path, vectors)
    if len(clients) != len(file.x):
        raise DataError(
            f"{options.clients} has {len(clients)} rows, and {path} has {len(file.x)} vectors: expected one each"
        )
    if file.clients is not None:
        notes.leave_out("clients in the file of vectors: --clients names them", path.name)
    return replace(file, clients=clients, labels=file.labels if labels is None else labels)


def _clients(file: VectorFile) -> pd.Series:
    """Return the clients of a file's vectors; refuse a file without any."""
    if file.clients is None:
        raise DataError(
            f"{file.path} does not say whose each vector is: name the clients with --clients FILE (a table with a row "
            "a vector and the column client), or with --client-column where the file holds them; or "
            "give a folder with one file, or one sub-folder, a client"
        )
    return file.clients


def _folder(folder: Path, vectors: str | None, options: AddOptions, notes: Intake) -> dict[str, VectorFile]:
    """Open the files of a folder, by name, client by client; the client is the sub-folder, or the file's stem."""
    if options.clients is not None:
        raise DataError(
            f"--clients names the clients of one file, and {folder} is a folder: its names say whose they are"
        )
    files = {}
    bare = set(client_folders(folder))
    for name in sorted(files_below(folder, notes), key=lambda name: Path(name).parts):
        path = folder / name
        if not is_array_file(path):
            notes.leave_out("not a file of vectors", name)
            continue
        client = name.partition("/")[0] if "/" in name else path.stem
        bare.discard(client)
        file = open_array_file(path, vectors, options.client_column, options.label_column)
        if file.clients is not None:
            notes.leave_out("clients in a file of vectors: its folder says whose they are", path.name)
        files[name] = replace(file, clients=pd.Series([client] * len(file.x), name="client"))
        notes.take("files")
    if bare:
        raise DataError(f"no file of vectors in the folders of these clients of {folder}: {first_of(sorted(bare))}")
    return files


def _labels(files: list[VectorFile], path: Path, onto: PreparedSet | None, notes: Intake) -> list[str] | None:
    columns = [file.labels for file in files if file.labels is not None]
    if not columns:
        return None
    for file in files:
        if file.labels is None:
            raise DataError(f"{file.path} has no labels, and other files of {path} have some: expected all or none")
    column = pd.concat(columns, ignore_index=True).rename(columns[0].name)
    return list(label_names(column, path, onto, notes).tolist())
