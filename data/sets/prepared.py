"""The prepared form of a data set: memory-mappable arrays and a manifest, in one folder.

    data/store/prepared/mnist/
      manifest.json  train_x.npy  train_y.npy  test_x.npy  test_y.npy

Images are uint8 (n, channels, height, width), vectors float32 (n, features), windows of series float32 (n, channels,
length), token sequences int32 (n, length); labels int64 (n,), or absent. The test arrays may be absent too. Sets of the
user's own are stored apart by client (`shoal.data.sets.by_client`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shoal.core.digests import file_digest
from shoal.core.durable import new_version, restore
from shoal.core.errors import DataError, short_text
from shoal.core.records import BadRecord, record_from_json
from shoal.core.seal import sealed, unsealed
from shoal.data.sets.by_client import FOLDER, OWNER, ClientArray, Division, is_by_client
from shoal.data.sets.lazy_array import SampleArray, blocks
from shoal.data.sets.remedy import EMBEDDED, SITES, is_own, remedy

Kind = Literal["image", "vector", "text", "series"]
DTYPES: dict[str, str] = {"image": "uint8", "vector": "float32", "text": "int32", "series": "float32"}
ARRAYS = ("train_x", "train_y", "test_x", "test_y")
Check = Callable[["Manifest", Path], None]
"""Refuses a file of a set before it is opened."""
MAX_COUNT = 1 << 40
FULL = (errno.ENOSPC, errno.EDQUOT)
MAX_PARSES = 10
"""How often a header is read, if another thread disturbed its parsing."""


@dataclass(frozen=True)
class DataSpec:
    """The properties of a data set that a method knows before it sees a sample.

    `shape` is one sample's shape; `classes` the number of label values, or None without labels; `sample_bytes` the size
    of one sample on a link.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    classes: int | None
    train: int
    test: int
    vocabulary: int | None = None
    measurements: bool = False
    """Whether columns are measurements in units of their own (`shoal.data.intake.table_coding`), and no embedding."""
    layer_widths: tuple[int, ...] = ()
    """Numbers of columns that come from one group of an encoder's layers, where there are several groups."""
    column_widths: tuple[int, ...] = ()
    """Numbers of columns that each measurement has, where some are of text: one for each of its values."""

    @property
    def sample_bytes(self) -> int:
        """Bytes of one raw sample in its prepared form."""
        return int(np.prod(self.shape)) * np.dtype(DTYPES[self.kind]).itemsize


@dataclass(frozen=True)
class Manifest:
    """The source and the properties of the arrays; written beside them as manifest.json."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    classes: int | None
    train: int
    test: int
    source: str
    licence: str
    class_names: tuple[str, ...] = ()
    subset: str = ""
    """Empty for a complete set, else a description of the part."""
    digest: str = ""
    """sha256 over the arrays, in the order of ARRAYS."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further entries of this set: a vocabulary, natural client names, skipped files."""
    files: dict[str, str] = field(default_factory=dict)
    """sha256 of each other file of the set, by name."""

    @property
    def spec(self) -> DataSpec:
        """The part that methods see."""
        vocabulary = self.extra.get("vocabulary")
        return DataSpec(
            self.name,
            self.kind,
            self.shape,
            self.classes,
            self.train,
            self.test,
            len(vocabulary) if vocabulary else None,
            self.extra.get("columns") == "measurements",
            tuple(self.extra.get(EMBEDDED, {}).get("layer_widths", ())),
            _column_widths(self.extra.get("coding", {})),
        )


def _column_widths(coding: Mapping[str, Any]) -> tuple[int, ...]:
    """Return `column_widths` from the coding of a table; empty without columns of text."""
    categories = coding.get("categories")
    if not categories:
        return ()
    return tuple(len(categories[column]) if column in categories else 1 for column in coding["columns"])


@dataclass(frozen=True)
class PreparedSet:
    """An opened data set: its manifest and its arrays, memory-mapped read-only.

    The arrays of a set that is stored by client are `ClientArray`: a client's file is opened when one of its samples is
    asked for.
    """

    folder: Path
    manifest: Manifest
    train_x: SampleArray
    train_y: SampleArray | None
    test_x: SampleArray | None
    test_y: SampleArray | None

    @property
    def spec(self) -> DataSpec:
        """The part of the manifest that methods see."""
        return self.manifest.spec

    def owners(self, part: str) -> np.ndarray:
        """Return the client of each sample of a part (train or test) of a set that is stored by client, int64 (n,)."""
        return np.array(_array(self.folder / OWNER[part], self.manifest), dtype=np.int64)

    def columns(self) -> list[str]:
        """Names of the per-training-sample columns kept with the set."""
        return sorted(p.stem.removeprefix("column_") for p in self.folder.glob("column_*.npy"))

    def column(self, name: str) -> np.ndarray:
        """Return a column of the training samples (natural clients: `client`), shape (train,).

        Raises:
            DataError: the set has no such column.
        """
        path = self.folder / f"column_{name}.npy"
        if not path.exists():
            have = ", ".join(self.columns()) or "no columns: only sets with natural clients have one"
            raise DataError(f"data set {self.manifest.name!r} has no column {name!r}; it has {have}")
        return np.array(_array(path, self.manifest))


def array_digest(arrays: Mapping[str, SampleArray | None]) -> str:
    """Return sha256 over name, dtype, shape and bytes of each array that is not None, in order."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        if array is None:
            continue
        digest.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
        for block in blocks(array):
            digest.update(np.ascontiguousarray(block).data)
    return digest.hexdigest()


def write_prepared(
    folder: Path,
    manifest: Manifest,
    arrays: Mapping[str, SampleArray | None],
    columns: Mapping[str, np.ndarray] | None = None,
) -> Manifest:
    """Write arrays and manifest to `folder`, atomically: a half-written set never carries the final name.

    Args:
        folder: the final place; an older version there is replaced.
        manifest: all but the digest, which is computed here.
        arrays: of the names in ARRAYS; `train_x` is required.
        columns: per-training-sample columns, such as the natural client of each sample.

    Returns:
        The manifest with its digest.

    Raises:
        DataError: a dtype, a shape or a count is wrong, or a value is not finite.
    """
    ordered = {name: arrays.get(name) for name in ARRAYS}
    check_arrays(manifest, ordered)
    columns = columns or {}
    complete = replace(manifest, digest=array_digest({**ordered, **columns}), files={})
    with new_set(folder) as scratch:
        for name, array in {**ordered, **{f"column_{name}": column for name, column in columns.items()}}.items():
            if array is not None:
                np.save(scratch / f"{name}.npy", np.asarray(array), allow_pickle=False)
        write_manifest(complete, scratch)
    return complete


@contextlib.contextmanager
def new_set(folder: Path) -> Iterator[Path]:
    """Replace a set by what the block writes to the folder that it gets; see `shoal.core.durable.new_version`.

    Raises:
        DataError: the disk is full, or the place cannot be written.
    """
    try:
        with new_version(folder) as scratch:
            yield scratch
    except OSError as error:
        room = " (free some space, or set SHOAL_HOME)" if error.errno in FULL else ""
        raise DataError(f"the data set could not be written to {folder}: {short_text(error)}{room}") from error


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write a complete manifest to the folder of its set."""
    text = json.dumps(sealed(asdict(manifest)), indent=1, sort_keys=True)
    (folder / "manifest.json").write_text(f"{text}\n")


def check_arrays(manifest: Manifest, arrays: Mapping[str, SampleArray | None]) -> None:
    """Refuse arrays that do not match the manifest, and values that are not finite.

    Raises:
        DataError: names the array, what was expected and what was found.
    """
    check_shapes(manifest, arrays)
    for part in ("train", "test"):
        x = arrays.get(f"{part}_x")
        if x is not None and x.dtype.kind == "f":
            bad = np.concatenate([~np.isfinite(block.reshape(len(block), -1)).all(axis=1) for block in blocks(x)])
            if bad.any():
                raise DataError(
                    f"{part}_x of {manifest.name!r} holds NaN or infinite values in {int(bad.sum())} samples, "
                    f"first in sample {int(bad.argmax())}: clean the data and prepare it again"
                )


def check_shapes(manifest: Manifest, arrays: Mapping[str, SampleArray | None]) -> None:
    """Refuse arrays of other shapes or types than in the manifest, without reading their values.

    Raises:
        DataError: names the array, what was expected and what was found.
    """
    expected = np.dtype(DTYPES[manifest.kind])
    for part, count in (("train", manifest.train), ("test", manifest.test)):
        x = arrays.get(f"{part}_x")
        y = arrays.get(f"{part}_y")
        if x is None:
            if part == "train" or count:
                raise DataError(f"data set {manifest.name!r} has no array {part}_x; expected {count} samples")
            continue
        if x.dtype != expected or x.shape != (count, *manifest.shape):
            raise DataError(
                f"{part}_x of {manifest.name!r} is {x.dtype} {x.shape}, expected {expected} {(count, *manifest.shape)}"
            )
        if y is not None and (y.shape != (count,) or y.dtype != np.int64):
            raise DataError(f"{part}_y of {manifest.name!r} is {y.dtype} {y.shape}, expected int64 ({count},)")


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a prepared set.

    Raises:
        DataError: there is no manifest, or it cannot be read.
    """
    path = folder / "manifest.json"
    restore(folder)
    try:
        manifest = record_from_json(Manifest, unsealed(json.loads(path.read_text())))
        _check(manifest)
    except FileNotFoundError:
        advice = remedy(folder) if is_own(folder) else f"run `shoal data prepare {folder.name}`"
        raise DataError(f"no prepared data set in {folder}: {advice}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not a data manifest ({short_text(error)}): {remedy(folder)}") from error
    return manifest


def _check(manifest: Manifest) -> None:
    """Refuse counts that no set has, and texts that a terminal cannot show."""
    counts = (manifest.train, manifest.test, *manifest.shape, manifest.classes or 0)
    if not all(0 <= count < MAX_COUNT for count in counts):
        raise BadRecord(f"a count in {counts} is none")
    texts = (manifest.name, manifest.source, manifest.licence, manifest.subset, manifest.digest)
    if not all(map(str.isprintable, texts)):
        raise BadRecord("a text has letters that cannot be printed")


def _array(path: Path, manifest: Manifest) -> np.ndarray:
    """Open a memory-mapped array.

    Raises:
        DataError: the file is truncated, or not an array of numbers.
    """
    try:
        array = _mapped(path)
        if array.dtype.kind not in "buif":
            raise BadRecord(f"it holds {array.dtype}, and no numbers")
    except Exception as error:  # a header is read as Python: broken ones raise nearly anything
        folder = path.parents[2] if path.parts[-3] == FOLDER else path.parent
        raise DataError(f"{path} cannot be read ({short_text(error)}): {remedy(folder, manifest.extra)}") from error
    return array


def _mapped(path: Path) -> np.ndarray:
    """Map an array of numpy into memory; try again where another thread disturbs the parsing of its header.

    Before Python 3.13 all threads share the depth of the parser that reads a header: two that parse at once may raise a
    SystemError that says nothing about the file (CPython's issue 106905).
    """
    for attempt in range(MAX_PARSES):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))
        except SystemError:
            if attempt == MAX_PARSES - 1:
                raise
    raise AssertionError


def open_prepared(folder: Path, *, verify: bool = False, check: Check | None = None) -> PreparedSet:
    """Open a prepared set, memory-mapped.

    Args:
        folder: the set's folder.
        verify: also read every byte and compare with the manifest's digest.
        check: of a set that is stored by client, is called with the manifest and a client's file before that is opened.

    Raises:
        DataError: files are missing, truncated or (with `verify`) changed.
    """
    manifest = read_manifest(folder)
    if is_by_client(manifest.files):
        arrays = _client_arrays(folder, manifest, check)
    else:
        paths = {name: folder / f"{name}.npy" for name in ARRAYS}
        arrays = {name: _array(path, manifest) if path.exists() else None for name, path in paths.items()}
    try:
        check_shapes(manifest, arrays)
    except DataError as error:
        raise DataError(f"{folder}: {error}: {remedy(folder, manifest.extra)}") from None
    train_x = arrays["train_x"]
    assert train_x is not None, "check_shapes refuses a set without"
    opened = PreparedSet(folder, manifest, train_x, arrays["train_y"], arrays["test_x"], arrays["test_y"])
    if verify:
        check_bytes(opened)
    return opened


def _client_arrays(folder: Path, manifest: Manifest, check: Check | None) -> dict[str, SampleArray | None]:
    """Return the arrays of a set that is stored by client; no client's file is opened."""

    def open_array(path: Path) -> np.ndarray:
        if SITES in manifest.extra and path.relative_to(folder).as_posix() not in manifest.files:
            raise DataError(
                f"samples of {manifest.name!r} lie at its sites ({', '.join(manifest.extra[SITES])}), not here"
            )
        if check is not None:
            check(manifest, path)
        return _array(path, manifest)

    kinds = {"x": (manifest.shape, np.dtype(DTYPES[manifest.kind]))}
    # Where a run is led, nobody knows the labels of sites.
    at_sites = SITES in manifest.extra and not any(name.startswith(f"{FOLDER}/") for name in manifest.files)
    if manifest.classes is not None and not at_sites:
        kinds["y"] = ((), np.dtype(np.int64))
    arrays: dict[str, SampleArray | None] = dict.fromkeys(ARRAYS)
    for part, count in (("train", manifest.train), ("test", manifest.test)):
        check_file(folder, manifest, OWNER[part])
        if count or part == "train":
            division = Division(_array(folder / OWNER[part], manifest))
            for what, about in kinds.items():
                arrays[f"{part}_{what}"] = ClientArray(folder, f"{part}_{what}", division, *about, open_array)
    return arrays


def check_bytes(prepared: PreparedSet) -> None:
    """Read every byte of a set and compare with its manifest.

    Raises:
        DataError: names what differs, and how to get the set back.
    """
    folder = prepared.folder
    manifest = prepared.manifest
    if not is_by_client(manifest.files):
        arrays = {name: getattr(prepared, name) for name in ARRAYS}
        columns = {name: prepared.column(name) for name in prepared.columns()}
        digest = array_digest({**arrays, **columns})
        if digest != manifest.digest:
            raise DataError(
                f"the arrays in {folder} do not match its manifest (sha256 {digest[:12]}, expected "
                f"{manifest.digest[:12]}): {remedy(folder, manifest.extra)}"
            )
    for name in manifest.files:
        check_file(folder, manifest, name)


def check_file(folder: Path, manifest: Manifest, name: str) -> None:
    """Read a file of a set and compare it with the manifest.

    Args:
        folder: of the set.
        manifest: of the set.
        name: of the file within the folder.

    Raises:
        DataError: it is missing, or another one.
    """
    path = folder / name
    if not path.is_file() or file_digest(path) != manifest.files[name]:
        raise DataError(
            f"{path} is missing or is not the file that its manifest describes: {remedy(folder, manifest.extra)}"
        )
