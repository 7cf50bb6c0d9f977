"""Files that hold vectors as one array: .npy, .npz, .parquet with a column of lists, .h5, .h5ad.

Values are read block by block, so that a file may be larger than memory. HDF5 needs h5py, an extra of the package.
"""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd

from shoal.core.errors import DataError, short_text, shown
from shoal.data.intake.tables import read_table
from shoal.data.sets.wording import first_of

ROWS = 8192
"""Rows of a block."""
PARQUET = (".parquet", ".pq")
"""Suffixes of files that hold a table, or arrays in a column of lists."""
VECTORS = "x"
LABELS = "label"
"""Default names of the array of vectors, and of the labels, in a .npz or .h5 file."""
_MAX_NAMES = 10


@dataclass(frozen=True)
class Wanted:
    """The names of what is read from a file; None: the default of its format.

    Attributes:
        vectors: the array, data set or column of lists; in .h5ad such as `obsm/X_pca`.
        clients: the client of each row.
        labels: the label of each row.
    """

    vectors: str | None = None
    clients: str | None = None
    labels: str | None = None


@dataclass(frozen=True)
class VectorFile:
    """The vectors of a file, not yet read.

    Attributes:
        path: the file.
        rows, width: shape of the vectors.
        dtype: their type in the file.
        blocks: yields them in order, each block (m, width).
        mapped: all of them memory-mapped, where the format allows it.
        clients, labels: of each row; None where the file has none.
        columns: names of the columns of a vector; empty where they have none.
        dense: False where zeros are left out in the file.
        others: names of what else the file holds.
    """

    path: Path
    rows: int
    width: int
    dtype: np.dtype[Any]
    blocks: Callable[[], Iterator[np.ndarray]]
    mapped: np.ndarray | None = None
    clients: pd.Series | None = None
    labels: pd.Series | None = None
    columns: tuple[str, ...] = ()
    dense: bool = True
    others: tuple[str, ...] = ()


def is_array_file(path: Path) -> bool:
    """Return whether a file holds arrays by its suffix, or is a Parquet file with a column of lists of numbers."""
    suffix = path.suffix.lower()
    if suffix not in PARQUET:
        return suffix in OPENERS
    if not path.is_file():
        return False
    import pyarrow.parquet

    try:
        schema = pyarrow.parquet.read_schema(path)
    except Exception:  # read as a table, which says what is wrong with it
        return False
    return bool(_list_columns(schema))


def open_array_file(path: Path, wanted: Wanted) -> VectorFile:
    """Open a file of vectors; values are read later, names of clients and labels now.

    Args:
        path: the file.
        wanted: the names of what is read.

    Raises:
        DataError: the file is missing, damaged, empty or of another format, an array is missing, or its shape or type
            is not that of vectors.
    """
    if path.is_dir():
        raise DataError(f"{path} is a folder: expected a file of vectors")
    read = OPENERS.get(path.suffix.lower())
    if read is None:
        raise DataError(f"{path} is not a file of vectors: expected {', '.join(OPENERS)}")
    with _said(path):
        opened = read(path, wanted)
    for what, names in (("clients", opened.clients), ("labels", opened.labels)):
        if names is not None and len(names) != opened.rows:
            raise DataError(f"{path} has {opened.rows} vectors and {len(names)} {what}: expected one each")
    return opened


def read_clients(path: Path, client_column: str, label_column: str | None) -> tuple[pd.Series, pd.Series | None]:
    """Read the client of each vector, and its label, from a file of its own.

    Args:
        path: a table, or a .npy with one name or number a vector.
        client_column, label_column: columns of the table.

    Raises:
        DataError: the file is unreadable, or lacks a column.
    """
    if not path.name.lower().endswith(".npy"):
        from shoal.data.intake.tables import find_column

        table = read_table(path, [client_column, *([label_column] if label_column else [])])
        clients = table[find_column(table, client_column, path, "--client-column")]
        labels = table[find_column(table, label_column, path, "--label-column")] if label_column else None
        return clients, labels
    if label_column:
        raise DataError(f"{path} names the clients alone: give a table with --clients for labels too")
    with _said(path):
        return _names(np.load(path, allow_pickle=False), path, path.name), None


@contextlib.contextmanager
def _said(path: Path) -> Iterator[None]:
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
        hint = " (Python objects: save numbers)" if dtype.kind == "O" else ""
        raise DataError(f"{what} holds {dtype}{hint}: expected numbers")
    if len(shape) != 2:
        raise DataError(
            f"{what} has the shape {shape}: expected one vector a row (n, d), such as x.reshape(len(x), -1)"
        )
    if not shape[0]:
        raise DataError(f"{what} has no rows")
    if not shape[1]:
        raise DataError(f"{what} has vectors without a value: expected at least one column")
    return int(shape[0]), int(shape[1])


def _blocks_of(array: Any) -> Iterator[np.ndarray]:
    for start in range(0, len(array), ROWS):
        yield np.asarray(array[start : start + ROWS])


def _names(values: np.ndarray, path: Path, name: str) -> pd.Series:
    """Return names of clients or labels as a column."""
    if values.ndim != 1:
        raise DataError(f"{path}: {name} has the shape {values.shape}: expected one name or number a vector")
    return pd.Series(values, name=name)


def _open_npy(path: Path, wanted: Wanted) -> VectorFile:
    if wanted.labels:
        raise DataError(f"{path} holds vectors alone: name its labels in the table of --clients")
    array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    rows, width = _check_vectors(array.shape, array.dtype, path, "")
    return VectorFile(path, rows, width, array.dtype, lambda: _blocks_of(array), array)


def _open_npz(path: Path, wanted: Wanted) -> VectorFile:
    with zipfile.ZipFile(path) as archive:
        forms = {}
        for member in archive.namelist():
            if member.endswith(".npy"):
                with archive.open(member) as file:
                    forms[member.removesuffix(".npy")] = _npy_header(file)
        name = _choice_of_vectors({key: form[0] for key, form in forms.items()}, path, wanted.vectors)
        shape, column_order, dtype = forms[name]
        rows, width = _check_vectors(shape, dtype, path, name)
        taken = {name}
        names: dict[str, pd.Series | None] = {}
        for what, wanted_name, default in (
            ("clients", wanted.clients, "client"),
            ("labels", wanted.labels, LABELS),
        ):
            key = wanted_name or default
            names[what] = None
            if key in forms:
                taken.add(key)
                with archive.open(f"{key}.npy") as file:
                    names[what] = _names(np.lib.format.read_array(file, allow_pickle=False), path, key)
            elif wanted_name and what == "labels":
                raise DataError(f"{path} has no array {wanted_name!r}; it has {_listed(forms)}")
    return VectorFile(
        path,
        rows,
        width,
        dtype,
        lambda: _npz_blocks(path, name, column_order),
        clients=names["clients"],
        labels=names["labels"],
        others=tuple(sorted(forms.keys() - taken)),
    )


def _npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether columns come first, and type of an array; the file stands before its values then."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)


def _npz_blocks(path: Path, name: str, column_order: bool) -> Iterator[np.ndarray]:
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
        if column_order:  # no row is whole before the last value has been read
            yield from _blocks_of(np.lib.format.read_array(file, allow_pickle=False))
            return
        (rows, width), _, dtype = _npy_header(file)
        for start in range(0, rows, ROWS):
            count = min(ROWS, rows - start)
            raw = file.read(count * width * dtype.itemsize)
            yield np.frombuffer(raw, dtype).reshape(count, width)


def _choice_of_vectors(shapes: dict[str, tuple[int, ...]], path: Path, wanted: str | None) -> str:
    """Return the name of the array of vectors: the wanted one, x, or the only one with rows and columns."""
    if wanted:
        if wanted not in shapes:
            raise DataError(f"{path} has no array {wanted!r}; it has {_listed(shapes)}")
        return wanted
    tables = [name for name, shape in shapes.items() if len(shape) == 2]
    if VECTORS in shapes or len(tables) == 1:
        return VECTORS if VECTORS in shapes else tables[0]
    raise DataError(
        f"{path} has no array {VECTORS!r}; it has {_listed(shapes)}: name that of the vectors with --features of "
        f"`shoal data add`, or store it as {VECTORS!r}"
    )


def _listed(names: Any) -> str:
    return first_of([shown(name) for name in sorted(names)], _MAX_NAMES) or "none"


def _list_columns(schema: Any) -> list[str]:
    from pyarrow import types

    def is_vector(kind: Any) -> bool:
        if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
            return False
        return bool(types.is_floating(kind.value_type) or types.is_integer(kind.value_type))

    return [field.name for field in schema if is_vector(field.type)]


def _open_parquet(path: Path, wanted: Wanted) -> VectorFile:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path)
    schema = file.schema_arrow
    lists = _list_columns(schema)
    name = wanted.vectors
    if name is None and len(lists) == 1:
        name = lists[0]
    if name not in lists:
        if wanted.vectors:
            raise DataError(f"{path} has no column {wanted.vectors!r} of lists of numbers; it has {_listed(lists)}")
        raise DataError(f"{path} has the lists of numbers {_listed(lists)}: say which with --features")
    rows = file.metadata.num_rows
    if not rows:
        raise DataError(f"{path} has no rows")
    first = next(_parquet_blocks(path, name, rows=1))
    _, width = _check_vectors((rows, first.shape[1]), first.dtype, path, name)
    columns = {"clients": wanted.clients, "labels": wanted.labels}
    found = {what: column for what, column in columns.items() if column in schema.names}
    if wanted.labels and "labels" not in found:
        raise DataError(f"{path} has no column {wanted.labels!r}; its columns: {_listed(schema.names)}")
    table = pyarrow.parquet.read_table(path, columns=list(dict.fromkeys(found.values()))).to_pandas()
    return VectorFile(
        path,
        rows,
        width,
        first.dtype,
        lambda: _parquet_blocks(path, name),
        clients=table[found["clients"]] if "clients" in found else None,
        labels=table[found["labels"]] if "labels" in found else None,
        others=tuple(each for each in schema.names if each != name and each not in found.values()),
    )


def _parquet_blocks(path: Path, name: str, rows: int = ROWS) -> Iterator[np.ndarray]:
    import pyarrow.parquet
    from pyarrow import compute

    width = -1
    start = 0
    for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=rows, columns=[name]):
        column = batch.column(0)
        if column.null_count:
            row = start + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise DataError(f"{path}: row {row} has no vector in {name!r}")
        lengths = compute.list_value_length(column).to_numpy(zero_copy_only=False)
        if len(lengths):
            width = int(lengths[0]) if width < 0 else width
        odd = np.flatnonzero(lengths != width)
        if len(odd):
            raise DataError(
                f"{path}: row {start + int(odd[0])} has {int(lengths[odd[0]])} numbers in {name!r}, expected {width} "
                "as in row 0"
            )
        values = column.flatten().to_numpy(zero_copy_only=False)
        yield values.reshape(len(lengths), max(width, 0))
        start += len(lengths)


def _open_hdf5(path: Path, wanted: Wanted) -> VectorFile:
    import h5py

    with h5py.File(path, "r") as file:
        sets: dict[str, Any] = {}
        file.visititems(lambda name, item: sets.update({name: item}) if isinstance(item, h5py.Dataset) else None)
        name = _choice_of_vectors({key: item.shape for key, item in sets.items()}, path, wanted.vectors)
        rows, width = _check_vectors(sets[name].shape, sets[name].dtype, path, name)
        clients = wanted.clients or "client"
        labels = wanted.labels or LABELS
        if wanted.labels and labels not in sets:
            raise DataError(f"{path} has no data set {labels!r}; it has {_listed(sets)}")
        return VectorFile(
            path,
            rows,
            width,
            sets[name].dtype,
            lambda: _hdf5_blocks(path, name),
            clients=_names(_values(sets[clients]), path, clients) if clients in sets else None,
            labels=_names(_values(sets[labels]), path, labels) if labels in sets else None,
            others=tuple(sorted(sets.keys() - {name, clients, labels})),
        )


def _values(item: Any) -> np.ndarray:
    """Return a column of an HDF5 file; AnnData keeps categories, and values with gaps, as groups."""
    import h5py

    if isinstance(item, h5py.Dataset):
        return _dataset_values(item)
    if "categories" in item:
        return _of_codes(item["codes"][:], dict(enumerate(_values(item["categories"]))))
    values = _values(item["values"]).astype(object)
    values[item["mask"][:]] = None
    return values


def _dataset_values(item: Any) -> np.ndarray:
    """Return a data set of names, or of codes for names: an enumeration, or categories as AnnData 0.7 kept them."""
    import h5py

    values: np.ndarray
    if h5py.check_string_dtype(item.dtype) is not None:
        values = item.asstr()[:]
        return values
    values = item[:]
    if (codes := h5py.check_enum_dtype(item.dtype)) is not None:
        return _of_codes(values, {code: name for name, code in codes.items()})
    if "categories" in item.attrs:
        return _of_codes(values, dict(enumerate(_values(item.file[item.attrs["categories"]]))))
    return values


def _of_codes(codes: np.ndarray, names: Mapping[int, Any]) -> np.ndarray:
    """Return the name of each code; None for a code that has none, as -1 for a missing value."""
    return np.array([names.get(code) for code in codes.tolist()], dtype=object)


def _hdf5_blocks(path: Path, name: str) -> Iterator[np.ndarray]:
    import h5py

    with h5py.File(path, "r") as file:
        yield from _blocks_of(file[name])


def _open_h5ad(path: Path, wanted: Wanted) -> VectorFile:
    import h5py

    with h5py.File(path, "r") as file:
        name = wanted.vectors or "X"
        if name not in file:
            raise DataError(f"{path} has no {name!r}; it has {_listed(file.keys())}: name one with --features")
        item = file[name]
        sparse = isinstance(item, h5py.Group)
        if sparse and "indptr" not in item:
            raise DataError(f"{path}: {name} is not an array: name one with --features, such as obsm/X_pca")
        shape = tuple(int(n) for n in item.attrs["shape"]) if sparse else item.shape
        dtype = item["data"].dtype if sparse else item.dtype
        rows, width = _check_vectors(shape, dtype, path, name)
        obs = file["obs"]
        if not isinstance(obs, h5py.Group):
            raise DataError(f"{path} was written by an old AnnData: read it, and write it again with a new one")
        columns = {
            what: _names(_values(obs[column]), path, column) if column in obs else None
            for what, column in (("clients", wanted.clients or "client"), ("labels", wanted.labels or ""))
            if column
        }
        if wanted.labels and columns["labels"] is None:
            raise DataError(f"{path} has no column {wanted.labels!r} in obs; it has {_listed(obs.keys())}")
        variables: tuple[str, ...] = ()
        if name == "X" and "var" in file and file["var"].attrs.get("_index") in file["var"]:
            variables = tuple(str(each) for each in _values(file["var"][file["var"].attrs["_index"]]))
        return VectorFile(
            path,
            rows,
            width,
            dtype,
            (lambda: _sparse_blocks(path, name)) if sparse else (lambda: _hdf5_blocks(path, name)),
            clients=columns["clients"],
            labels=columns.get("labels"),
            columns=variables,
            dense=not sparse,
        )


def _sparse_blocks(path: Path, name: str) -> Iterator[np.ndarray]:
    import h5py
    from scipy import sparse

    with h5py.File(path, "r") as file:
        group = file[name]
        shape = tuple(int(n) for n in group.attrs["shape"])
        if str(group.attrs.get("encoding-type", "csr_matrix")).startswith("csc"):
            # By columns: no row is whole before the last value has been read.
            parts = (group["data"][:], group["indices"][:], group["indptr"][:])
            whole = sparse.csc_matrix(parts, shape=shape).tocsr()
            for start in range(0, shape[0], ROWS):
                yield whole[start : start + ROWS].toarray()
            return
        bounds = group["indptr"][:]
        for start in range(0, shape[0], ROWS):
            end = min(start + ROWS, shape[0])
            span = slice(int(bounds[start]), int(bounds[end]))
            parts = (group["data"][span], group["indices"][span], bounds[start : end + 1] - bounds[start])
            yield sparse.csr_matrix(parts, shape=(end - start, shape[1])).toarray()


def with_clients(file: VectorFile, clients: pd.Series, labels: pd.Series | None) -> VectorFile:
    """Return a file whose clients, and labels where there are some, come from elsewhere."""
    return replace(file, clients=clients, labels=file.labels if labels is None else labels)


OPENERS: dict[str, Callable[[Path, Wanted], VectorFile]] = {
    ".npy": _open_npy,
    ".npz": _open_npz,
    ".parquet": _open_parquet,
    ".pq": _open_parquet,
    ".h5": _open_hdf5,
    ".hdf5": _open_hdf5,
    ".h5ad": _open_h5ad,
}
"""What opens a file of vectors, by its suffix."""
