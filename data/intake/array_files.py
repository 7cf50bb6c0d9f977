"""Files that hold vectors as one array: .npy, .npz, .parquet with a column of lists, .h5ad.

An .npy, and a dense .h5ad, may be larger than memory: they are read block by block. An .h5ad needs h5py, an extra.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from shoal.core.errors import DataError, short_text, shown
from shoal.data.intake.spelling import some_of
from shoal.data.intake.tables import find_column, read_table
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.lazy_array import blocks

PARQUET = (".parquet", ".pq")
"""Suffixes of files that hold a table, or arrays in a column of lists."""


@dataclass(frozen=True)
class VectorFile:
    """The vectors of a file.

    Attributes:
        path: the file.
        x: (rows, width); its values may still be in the file.
        clients, labels: of each row; None where the file has none.
        columns: names of the columns of a vector; empty where they have none.
        others: names of what else the file holds.
    """

    path: Path
    x: Any
    clients: pd.Series | None = None
    labels: pd.Series | None = None
    columns: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


class _Contents(NamedTuple):
    """What a file holds.

    Attributes:
        arrays: what may be the vectors, by name; each is read when it is called.
        columns: what may name clients and labels, likewise.
        vectors, labels: the default names.
        features: the names of the columns of the default vectors.
    """

    arrays: Mapping[str, Callable[[], Any]]
    columns: Mapping[str, Callable[[], np.ndarray]]
    vectors: str
    labels: str = ""
    features: tuple[str, ...] = ()


def is_array_file(path: Path) -> bool:
    """Return whether a file holds arrays by its suffix, or is a Parquet file with a column of lists of numbers."""
    suffix = path.suffix.lower()
    if suffix not in PARQUET:
        return suffix in OPENERS
    if not path.is_file():
        return False
    import pyarrow.parquet

    try:
        return bool(_list_columns(pyarrow.parquet.read_schema(path)))
    except Exception:  # read as a table, which says what is wrong with it
        return False


def open_array_file(
    path: Path, vectors: str | None = None, client_column: str = "client", label_column: str | None = None
) -> VectorFile:
    """Open a file of vectors.

    Args:
        path: the file.
        vectors: the array, data set or column of lists, in .h5ad such as `obsm/X_pca`; None: that of the format.
        client_column: the client of each row.
        label_column: the label of each row; None: that of the format.

    Raises:
        DataError: the file is missing, damaged, empty or of another format, an array is missing, or its shape or type
            is not that of vectors.
    """
    opener = OPENERS.get(path.suffix.lower())
    if opener is None or path.is_dir():
        raise DataError(f"{path} is not a file of vectors: expected {', '.join(OPENERS)}")
    with _one_sentence(path):
        contents = opener(path)
        name = contents.vectors if vectors is None else vectors
        if name not in contents.arrays:
            raise DataError(
                f"{path} has no array {name!r}; it has {some_of(sorted(contents.arrays)) or 'none'}: name that of the "
                "vectors with --features of `shoal data add`"
            )
        x = contents.arrays[name]()
        _check_vectors(x, f"{path}: {name}".removesuffix(": "))
        if label_column and label_column not in contents.columns:
            raise DataError(
                f"{path} has no labels {label_column!r}; it has {some_of(sorted(contents.columns)) or 'none'}"
            )
        clients = _names(contents, client_column, len(x), path)
        labels = _names(contents, label_column or contents.labels, len(x), path)
    used = {name, *(column.name for column in (clients, labels) if column is not None)}
    others = sorted({*contents.arrays, *contents.columns} - used)
    return VectorFile(path, x, clients, labels, contents.features if name == contents.vectors else (), tuple(others))


def read_clients(path: Path, client_column: str, label_column: str | None) -> tuple[pd.Series, pd.Series | None]:
    """Read the client of each vector, and its label, from a table of its own.

    Args:
        path: the table.
        client_column, label_column: its columns.

    Raises:
        DataError: the table is unreadable, or lacks a column.
    """
    table = read_table(path, list(filter(None, (client_column, label_column))))
    clients = table[find_column(table, client_column, path, "--client-column")]
    if not label_column:
        return clients, None
    return clients, table[find_column(table, label_column, path, "--label-column")]


def vectors_of(files: Sequence[VectorFile], scratch: Path, intake: Intake) -> np.ndarray:
    """Return the vectors of files, one file after the other, float32 (n, d), memory-mapped.

    Args:
        files: all of the same width.
        scratch: an existing folder with room for them; nothing stays there.
        intake: notes of arrays of other types.

    Raises:
        DataError: a value is not finite (file, row and column are named).
    """
    for file in files:
        if file.x.dtype != np.float32:
            intake.adapt(f"array of {file.x.dtype} as float32", file.path.name)
    try:
        with tempfile.TemporaryFile(dir=scratch) as room:
            for file in files:
                for block in float32_blocks(file):
                    room.write(np.ascontiguousarray(block).data)
            room.flush()
            return np.memmap(room, np.float32, "r", shape=(sum(len(file.x) for file in files), files[0].x.shape[1]))
    except OSError as error:
        raise DataError(
            f"the vectors of {files[0].path} could not be written to {scratch}: {short_text(error)}"
        ) from error


def float32_blocks(file: VectorFile) -> Iterator[np.ndarray]:
    """Yield the vectors of a file as float32 (m, d), block by block.

    Raises:
        DataError: a value is not finite, or a block is damaged.
    """
    row = 0
    with _one_sentence(file.path):
        for block in blocks(file.x):
            with np.errstate(over="ignore", invalid="ignore"):
                x = block.astype(np.float32, copy=False)
            for place, column in np.argwhere(~np.isfinite(x))[:1]:
                name = shown(file.columns[column]) if file.columns else str(column)
                value = block[place, column]
                what = "is too large for float32" if np.isfinite(value) else f"is {value}"
                raise DataError(f"{file.path}: row {row + place}, column {name} {what}: vectors must be finite numbers")
            row += len(x)
            yield x


@contextlib.contextmanager
def _one_sentence(path: Path) -> Iterator[None]:
    """Turn whatever a library raises on a broken file into one sentence."""
    try:
        yield
    except (DataError, GeneratorExit):
        raise
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except ModuleNotFoundError as error:
        raise DataError(f"{path} needs the package {error.name}: pip install {error.name}") from None
    except Exception as error:  # numpy, pyarrow and h5py raise nearly anything on broken files
        raise DataError(f"{path} cannot be read as arrays ({short_text(error)})") from error


def _check_vectors(x: Any, what: str) -> None:
    if x.dtype.kind not in "buif":
        raise DataError(f"{what} holds {x.dtype}: expected numbers")
    if len(x.shape) != 2:
        raise DataError(
            f"{what} has the shape {x.shape}: expected one vector a row (n, d), such as x.reshape(len(x), -1)"
        )
    if not x.shape[0]:
        raise DataError(f"{what} has no rows")
    if not x.shape[1]:
        raise DataError(f"{what} has vectors without a value: expected at least one column")


def _names(contents: _Contents, name: str, rows: int, path: Path) -> pd.Series | None:
    """Return names of clients or labels, one a row; None where the file has none."""
    if name not in contents.columns:
        return None
    values = contents.columns[name]()
    if values.ndim != 1:
        raise DataError(f"{path}: {name} has the shape {values.shape}: expected one name or number a vector")
    if len(values) != rows:
        raise DataError(f"{path} has {rows} vectors and {len(values)} values of {name!r}: expected one each")
    return pd.Series(values, name=name)


def _open_npy(path: Path) -> _Contents:
    return _Contents({"": lambda: np.load(path, mmap_mode="r", allow_pickle=False)}, {}, "")


def _open_npz(path: Path) -> _Contents:
    with np.load(path, allow_pickle=False) as archive:
        arrays = dict(archive)
    tables = [name for name, array in arrays.items() if array.ndim == 2]
    readers = {name: partial(arrays.__getitem__, name) for name in arrays}
    return _Contents(readers, readers, tables[0] if "x" not in arrays and len(tables) == 1 else "x", "label")


def _list_columns(schema: Any) -> list[str]:
    """Return the columns of lists of numbers."""
    from pyarrow import types

    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    fields = [field for field in schema if any(is_list(field.type) for is_list in lists)]
    numbers = (types.is_floating, types.is_integer)
    return [field.name for field in fields if any(is_number(field.type.value_type) for is_number in numbers)]


def _open_parquet(path: Path) -> _Contents:
    import pyarrow.parquet

    def column(name: str) -> np.ndarray:
        return np.asarray(pyarrow.parquet.read_table(path, columns=[name])[name].to_pandas())

    schema = pyarrow.parquet.read_schema(path)
    lists = _list_columns(schema)
    return _Contents(
        {name: partial(_lists, path, name) for name in lists},
        {name: partial(column, name) for name in schema.names if name not in lists},
        lists[0] if len(lists) == 1 else "x",
    )


def _lists(path: Path, name: str) -> np.ndarray:
    """Return a column of lists of one length as an array (rows, length)."""
    import pyarrow.parquet
    from pyarrow import compute

    values = pyarrow.parquet.read_table(path, columns=[name])[name].combine_chunks()
    lengths = compute.list_value_length(values).to_numpy(zero_copy_only=False)
    odd = np.flatnonzero(lengths != lengths[:1])  # the length of a missing list is NaN
    if len(odd):
        raise DataError(f"{path}: row {odd[0]} has no list of {lengths[0]:g} numbers in {name!r}, as row 0 has")
    x: np.ndarray = compute.list_flatten(values).to_numpy(zero_copy_only=False)
    return x.reshape(len(lengths), -1) if len(lengths) else x[:, None]


def _open_h5ad(path: Path) -> _Contents:
    import h5py

    file = h5py.File(path, "r")
    names = [f"{group}/{key}" for group in ("layers", "obsm") for key in file.get(group, ())]
    arrays = {name: partial(_matrix, file[name]) for name in ("X", *names) if name in file}
    obs = file["obs"]
    if not isinstance(obs, h5py.Group) or "__categories" in obs:
        raise DataError(f"{path} was written by an old AnnData: read it, and write it again with a new one")
    features: tuple[str, ...] = ()
    if "var" in file and (index := file["var"].attrs.get("_index")) in file["var"]:
        features = tuple(map(str, _hdf5_values(file["var"][index])))
    return _Contents(arrays, {name: partial(_hdf5_values, obs[name]) for name in obs}, "X", features=features)


def _hdf5_values(item: Any) -> np.ndarray:
    """Return a column of AnnData; a row without a category has NaN."""
    import h5py

    if isinstance(item, h5py.Group):
        return np.asarray(pd.Categorical.from_codes(item["codes"][:], _hdf5_values(item["categories"])))
    if h5py.check_string_dtype(item.dtype) is not None:
        item = item.asstr()
    return np.asarray(item[:])


def _matrix(item: Any) -> Any:
    """Return an array of AnnData; a sparse one is read whole."""
    import h5py
    from scipy import sparse

    if isinstance(item, h5py.Dataset):
        return item
    by_columns = str(item.attrs.get("encoding-type", "")).startswith("csc")
    kind = sparse.csc_matrix if by_columns else sparse.csr_matrix
    return kind((item["data"][:], item["indices"][:], item["indptr"][:]), shape=tuple(item.attrs["shape"])).toarray()


OPENERS: dict[str, Callable[[Path], _Contents]] = {
    ".npy": _open_npy,
    ".npz": _open_npz,
    ".parquet": _open_parquet,
    ".pq": _open_parquet,
    ".h5ad": _open_h5ad,
}
"""What opens a file of vectors, by its suffix."""
