"""Writing of sets that are stored apart by client, block by block, so that memory does not grow with them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from shoal.core.digests import file_digest
from shoal.data.sets.by_client import FOLDER, OWNER, client_file
from shoal.data.sets.lazy_array import ArrayRows, SampleArray, blocks
from shoal.data.sets.prepared import Manifest, array_digest, check_arrays, new_set, write_manifest
from shoal.data.sets.sample_files import FILES, files_table


@dataclass(frozen=True)
class Part:
    """The training or the test samples of a set, in the order of their numbers.

    Attributes:
        x: (n, ...).
        y: labels int64 (n,), or None.
        owner: the client of each, int64 (n,).
        files: the origin of each.
    """

    x: SampleArray
    y: SampleArray | None
    owner: np.ndarray
    files: list[str]


def write_by_client(folder: Path, manifest: Manifest, parts: Mapping[str, Part]) -> None:
    """Write a set to `folder`, one folder a client, atomically: a half-written set never carries the final name.

    Args:
        folder: the final place; an older version there is replaced.
        manifest: all but the digests, which are computed here. `digest` is that of the arrays of all clients together,
            in the order of the samples' numbers, and of the column of clients.
        parts: `train` and `test`.

    Raises:
        DataError: a dtype, a shape or a count is wrong, a value is not finite, or the disk is full.
    """
    arrays = {}
    for name, part in parts.items():
        empty = not len(part.owner) and name != "train"
        arrays[f"{name}_x"] = None if empty else part.x
        arrays[f"{name}_y"] = None if empty else part.y
    check_arrays(manifest, arrays)
    owner = parts["train"].owner.astype(np.int64)
    digest = array_digest({**arrays, "client": owner})
    files = {}
    with new_set(folder) as scratch:
        for name, part in parts.items():
            files[OWNER[name]] = _write_array(scratch / OWNER[name], part.owner.astype(np.int64))
        for client in range(len(manifest.extra["clients"])):
            files |= _write_client(scratch, client, parts)
        write_manifest(replace(manifest, digest=digest, files=files), scratch)


def _write_client(scratch: Path, client: int, parts: Mapping[str, Part]) -> dict[str, str]:
    """Write the folder of a client; return the sha256 of each file, by its path within the set."""
    digests = {}
    origins = {}
    place = scratch / FOLDER / f"{client:04d}"
    for name, part in parts.items():
        rows = np.flatnonzero(part.owner == client)
        if not len(rows):
            continue
        place.mkdir(parents=True, exist_ok=True)
        origins[name] = (rows, [part.files[row] for row in rows])
        for array, values in ((f"{name}_x", part.x), (f"{name}_y", part.y)):
            if values is not None:
                file = client_file(client, f"{array}.npy")
                digests[file] = _write_array(scratch / file, ArrayRows(values, rows))
    if origins:
        table = files_table(origins)
        (place / FILES).write_bytes(table)
        digests[client_file(client, FILES)] = hashlib.sha256(table).hexdigest()
    return digests


def _write_array(path: Path, array: SampleArray) -> str:
    """Write an array as .npy block by block; return the sha256 of the file."""
    header = np.lib.format.header_data_from_array_1_0(np.empty((0, *array.shape[1:]), array.dtype))
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {**header, "shape": array.shape})
        for block in blocks(array):
            file.write(np.ascontiguousarray(block).data.cast("B"))
    return file_digest(path)
