"""Files that hold vectors as one array: .npy, .npz, .parquet with a column of lists, .h5ad.

Values are read block by block, so that a file may be larger than memory; the arrays of a .npz, and of a sparse .h5ad,
are read whole. An .h5ad needs h5py, an extra of the package.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from shoal.core.errors import DataError, short_text, shown
from shoal.data.intake.tables import find_column, read_table
from shoal.data.sets.wording import first_of

ROWS = 8192
"""Rows of a block."""
PARQUET = (".parquet", ".pq")
"""Suffixes of files that hold a table, or arrays in a column of lists."""


@dataclass(frozen=True)
class VectorFile:
    """The vectors of a file, not yet read.

    Attributes:
        path: the file.
        rows, width: shape of the vectors.
        dtype: their type in the file.
        blocks: yields them in order, each block (m, width).
        clients, labels: of each row; None where the file has none.
        columns: names of the columns of a vector; empty where they have none.
        others: names of what else the file holds.
    """

    path: Path
    rows: int
    width: int
    dtype: np.dtype[Any]
    blocks: Callable[[], Iterator[np.ndarray]]
    clients: pd.Series | None = None
    labels: pd.Series | None = None
    columns: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Contents:
    """What a file holds.

    Attributes:
        arrays: shape and type of what may be the vectors, by name.
        blocks: yields the blocks of one of them.
        columns: what may name clients and labels.
        column: returns the values of one of these.
        vectors, labels: the default names.
        features: the names of the columns of an array.
    """

    arrays: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
    blocks: Callable[[str], Iterator[np.ndarray]]
    columns: Collection[str] = ()
    column: Callable[[str], np.ndarray] = field(default=lambda name: np.array([name]))
    vectors: str = "x"
    labels: str = ""
    features: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


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
    """Open a file of vectors; values are read later, names of clients and labels now.

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
        name = _choice_of_vectors(contents, path, vectors)
        shape, dtype = contents.arrays[name]
        rows, width = _check_vectors(shape, dtype, path, name)
        if label_column and label_column not in contents.columns:
            raise DataError(f"{path} has no labels {label_column!r}; it has {_listed(contents.columns)}")
        clients = _names(contents, client_column, rows, path)
        labels = _names(contents, label_column or contents.labels, rows, path)
    used = {name, *(column.name for column in (clients, labels) if column is not None)}
    return VectorFile(
        path,
        rows,
        width,
        dtype,
        lambda: contents.blocks(name),
        clients,
        labels,
        contents.features.get(name, ()),
        tuple(sorted({*contents.arrays, *contents.columns} - used)),
    )


def read_clients(path: Path, client_column: str, label_column: str | None) -> tuple[pd.Series, pd.Series | None]:
    """Read the client of each vector, and its label, from a table of its own.

    Args:
        path: the table.
        client_column, label_column: its columns.

    Raises:
        DataError: the table is unreadable, or lacks a column.
    """
    table = read_table(path, [client_column, *([label_column] if label_column else [])])
    clients = table[find_column(table, client_column, path, "--client-column")]
    labels = table[find_column(table, label_column, path, "--label-column")] if label_column else None
    return clients, labels


@contextlib.contextmanager
def _one_sentence(path: Path) -> Iterator[None]:
    """Turn whatever a library raises on a broken file into one sentence."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except ModuleNotFoundError as error:
        raise DataError(f"{path} needs the package {error.name}: pip install {error.name}") from None
    except Exception as error:  # numpy, pyarrow and h5py raise nearly anything on broken files
        raise DataError(f"{path} cannot be read as arrays ({short_text(error)})") from error


def _check_vectors(shape: tuple[int, ...], dtype: np.dtype[Any], path: Path, name: str) -> tuple[int, int]:
    """Return rows and width of an array of vectors; refuse any other."""
    what = f"{path}: {name}" if name else str(path)
    if dtype.kind not in "buif":
        raise DataError(f"{what} holds {dtype}: expected numbers")
    if len(shape) != 2:
        raise DataError(
            f"{what} has the shape {shape}: expected one vector a row (n, d), such as x.reshape(len(x), -1)"
        )
    if not shape[0]:
        raise DataError(f"{what} has no rows")
    if not shape[1]:
        raise DataError(f"{what} has vectors without a value: expected at least one column")
    return int(shape[0]), int(shape[1])


def _choice_of_vectors(contents: _Contents, path: Path, wanted: str | None) -> str:
    """Return the name of the array of vectors: the wanted one, the default, or the only one with rows and columns."""
    tables = [name for name, (shape, _) in contents.arrays.items() if len(shape) == 2]
    default = contents.vectors
    if default not in contents.arrays and len(tables) == 1:
        default = tables[0]
    name = default if wanted is None else wanted
    if name not in contents.arrays:
        raise DataError(
            f"{path} has no array {name!r}; it has {_listed(contents.arrays)}: name that of the vectors with "
            "--features of `shoal data add`"
        )
    return name


def _names(contents: _Contents, name: str, rows: int, path: Path) -> pd.Series | None:
    """Return names of clients or labels, one a row; None where the file has none."""
    if name not in contents.columns:
        return None
    column = _column(contents.column(name), path, name)
    if len(column) != rows:
        raise DataError(f"{path} has {rows} vectors and {len(column)} values of {name!r}: expected one each")
    return column


def _column(values: np.ndarray, path: Path, name: str) -> pd.Series:
    if values.ndim != 1:
        raise DataError(f"{path}: {name} has the shape {values.shape}: expected one name or number a vector")
    return pd.Series(values, name=name)


def _listed(names: Collection[str]) -> str:
    return first_of([shown(name) for name in sorted(names)]) or "none"


def _blocks_of(array: Any) -> Iterator[np.ndarray]:
    for start in range(0, array.shape[0], ROWS):
        block = array[start : start + ROWS]
        yield np.asarray(block.toarray() if hasattr(block, "toarray") else block)


def _open_npy(path: Path) -> _Contents:
    array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return _Contents({"": (array.shape, array.dtype)}, lambda _: _blocks_of(array), vectors="")


def _open_npz(path: Path) -> _Contents:
    with np.load(path, allow_pickle=False) as archive:
        arrays = dict(archive)
    forms = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    return _Contents(forms, lambda name: _blocks_of(arrays[name]), arrays, arrays.__getitem__, labels="label")


def _list_columns(schema: Any) -> dict[str, Any]:
    """Return the type of the numbers of each column of lists."""
    from pyarrow import types

    def is_vector(kind: Any) -> bool:
        if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
            return False
        return bool(types.is_floating(kind.value_type) or types.is_integer(kind.value_type))

    return {field.name: field.type.value_type for field in schema if is_vector(field.type)}


def _open_parquet(path: Path) -> _Contents:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path)
    rows = file.metadata.num_rows
    lists = _list_columns(file.schema_arrow)
    forms = {}
    for name, kind in lists.items():
        first = next(_parquet_blocks(path, name, 1), np.empty((0, 0)))
        forms[name] = ((rows, first.shape[1]), np.dtype(kind.to_pandas_dtype()))

    def column(name: str) -> np.ndarray:
        values: np.ndarray = pyarrow.parquet.read_table(path, columns=[name]).to_pandas()[name].to_numpy()
        return values

    others = [name for name in file.schema_arrow.names if name not in lists]
    return _Contents(forms, lambda name: _parquet_blocks(path, name), others, column)


def _parquet_blocks(path: Path, name: str, rows: int = ROWS) -> Iterator[np.ndarray]:
    import pyarrow.parquet
    from pyarrow import compute

    width = None
    start = 0
    for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=rows, columns=[name]):
        lengths = compute.list_value_length(batch.column(0)).to_numpy(zero_copy_only=False)
        width = lengths[0] if width is None else width
        odd = np.flatnonzero(lengths != width)  # the length of a missing list is NaN
        if len(odd):
            row = start + int(odd[0])
            raise DataError(f"{path}: row {row} has no list of {int(width)} numbers in {name!r}, as row 0 has")
        yield batch.column(0).flatten().to_numpy(zero_copy_only=False).reshape(len(lengths), int(width))
        start += len(lengths)


def _hdf5_values(item: Any) -> np.ndarray:
    """Return a column of names, or of codes for names: categories of AnnData, also of 0.7."""
    import h5py

    if isinstance(item, h5py.Group):
        return _of_codes(item["codes"][:], _hdf5_values(item["categories"]))
    values: np.ndarray
    if h5py.check_string_dtype(item.dtype) is not None:
        values = item.asstr()[:]
        return values
    values = item[:]
    if "categories" in item.attrs:
        return _of_codes(values, _hdf5_values(item.file[item.attrs["categories"]]))
    return values


def _of_codes(codes: np.ndarray, names: np.ndarray) -> np.ndarray:
    """Return the name of each code; None for a code that has none, as -1 for a missing value."""
    known = dict(enumerate(names))
    return np.array([known.get(code) for code in codes.tolist()], dtype=object)


def _open_h5ad(path: Path) -> _Contents:
    import h5py

    file = h5py.File(path, "r")
    forms = {}
    for name in ("X", *(f"{group}/{key}" for group in ("layers", "obsm") for key in file.get(group, ()))):
        item = file.get(name)
        if isinstance(item, h5py.Dataset):
            forms[name] = (item.shape, item.dtype)
        elif item is not None and "indptr" in item:
            forms[name] = (tuple(int(n) for n in item.attrs["shape"]), item["data"].dtype)
    if not isinstance(file["obs"], h5py.Group):
        raise DataError(f"{path} was written by an old AnnData: read it, and write it again with a new one")
    features = {}
    if "var" in file and (index := file["var"].attrs.get("_index")) in file["var"]:
        features["X"] = tuple(map(str, _hdf5_values(file["var"][index])))
    return _Contents(
        forms,
        lambda name: _blocks_of(_matrix(file[name])),
        list(file["obs"]),
        lambda name: _hdf5_values(file["obs"][name]),
        vectors="X",
        features=features,
    )


def _matrix(item: Any) -> Any:
    """Return an array of AnnData; a sparse one is read whole."""
    import h5py
    from scipy import sparse

    if isinstance(item, h5py.Dataset):
        return item
    by_columns = str(item.attrs.get("encoding-type", "")).startswith("csc")
    kind = sparse.csc_matrix if by_columns else sparse.csr_matrix
    return kind((item["data"][:], item["indices"][:], item["indptr"][:]), shape=tuple(item.attrs["shape"])).tocsr()


OPENERS: dict[str, Callable[[Path], _Contents]] = {
    ".npy": _open_npy,
    ".npz": _open_npz,
    ".parquet": _open_parquet,
    ".pq": _open_parquet,
    ".h5ad": _open_h5ad,
}
"""What opens a file of vectors, by its suffix."""
