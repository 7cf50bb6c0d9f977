"""Readers of the official file formats: idx, CIFAR records and pickles, the AG News CSV.

Each takes the bytes of one file and its name, and refuses what is not whole.
"""

from __future__ import annotations

import csv
import gzip
import io
import lzma
import pickle
import zlib
from typing import Any

import numpy as np

from core.errors import DataError

CIFAR_SHAPE = (3, 32, 32)
_CIFAR_PIXELS = 3 * 32 * 32
# What a pickled numpy array needs; anything else in a pickle could run code.
_PICKLE_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


def unpack(content: bytes, name: str) -> bytes:
    """The content of a .gz or .xz file; of any other name, `content` itself.

    Raises:
        DataError: the compressed stream is broken or ends early.
    """
    try:
        if name.endswith(".gz"):
            return gzip.decompress(content)
        if name.endswith(".xz"):
            return lzma.decompress(content)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{name} is truncated or is not a {name[-3:]} file ({error}): get the file again") from error
    return content


def read_idx(content: bytes, name: str) -> np.ndarray:
    """An idx file of bytes: a 4-byte magic (0, 0, 8, dimensions), big-endian sizes, then the values.

    Returns:
        uint8, of the shape that the header gives.

    Source: https://yann.lecun.com/exdb/mnist/.

    Raises:
        DataError: another magic, or more or fewer values than the header announces.
    """
    if len(content) < 4 or content[:3] != b"\x00\x00\x08" or not 1 <= content[3] <= 4:
        raise DataError(f"{name} is not an idx file of bytes: it begins with {content[:4].hex()}, expected 000008nn")
    dimensions = content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DataError(f"{name} ends within its header: get the file again")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", dimensions, offset=4))
    expected = start + int(np.prod(shape, dtype=np.int64))
    if len(content) != expected:
        raise DataError(
            f"{name} has {len(content):,} bytes, expected {expected:,} for shape {shape}: get the file again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_cifar_records(content: bytes, name: str, *, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Records of CIFAR's binary version: the label, then the red, green and blue plane, 1,024 bytes each.

    CIFAR-100's records begin with two label bytes, coarse and fine; the fine one is kept.

    Args:
        content: the file.
        name: the file's name, for errors.
        classes: 10 or 100.

    Returns:
        images uint8 (n, 3, 32, 32); labels int64 (n,).

    Raises:
        DataError: not a whole number of records, or a label out of range.
    """
    label_bytes = 2 if classes == 100 else 1
    record = label_bytes + _CIFAR_PIXELS
    if not content or len(content) % record:
        raise DataError(
            f"{name} has {len(content):,} bytes, expected a whole number of {record}-byte records: get the file again"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    labels = records[:, label_bytes - 1].astype(np.int64)
    _check_labels(labels, classes, name)
    return records[:, label_bytes:].reshape(-1, *CIFAR_SHAPE), labels


class _ArrayUnpickler(pickle.Unpickler):
    """Builds dictionaries, lists, strings and numpy arrays, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _PICKLE_ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


def read_cifar_pickle(content: bytes, name: str) -> dict[str, Any]:
    """A dictionary of CIFAR's Python version, read without running code from the file.

    Raises:
        DataError: not a pickle, not a dictionary, or it holds other things than arrays, lists and strings.
    """
    try:
        loaded = _ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # unpickling broken bytes raises nearly anything
        raise DataError(f"{name} cannot be read as a CIFAR pickle ({error}): get the file again") from error
    if not isinstance(loaded, dict):
        raise DataError(f"{name} holds a {type(loaded).__name__}, expected CIFAR's dictionary")
    return loaded


def cifar_batch(batch: dict[str, Any], name: str, *, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of one dictionary of CIFAR's Python version.

    Returns:
        images uint8 (n, 3, 32, 32); labels int64 (n,).

    Raises:
        DataError: an entry is missing or has the wrong shape, or a label is out of range.
    """
    key = "labels" if classes == 10 else "fine_labels"
    if "data" not in batch or key not in batch:
        raise DataError(f"{name} has the entries {sorted(map(str, batch))}, expected 'data' and {key!r}")
    images, labels = np.asarray(batch["data"]), np.asarray(batch[key], dtype=np.int64)
    if images.dtype != np.uint8 or images.shape != (len(labels), _CIFAR_PIXELS):
        raise DataError(f"{name}: data is {images.dtype} {images.shape}, expected uint8 {(len(labels), _CIFAR_PIXELS)}")
    _check_labels(labels, classes, name)
    return images.reshape(-1, *CIFAR_SHAPE), labels


def read_ag_news(content: bytes, name: str, *, classes: int = 4) -> tuple[list[str], np.ndarray]:
    """The AG News CSV: no header; class index from 1, title, description.

    Returns:
        n texts, each the title, a line feed and the description; labels from 0, int64 (n,).

    Raises:
        DataError: names the line that is not such a row.
    """
    texts: list[str] = []
    labels: list[int] = []
    try:
        reader = csv.reader(io.StringIO(content.decode("utf-8"), newline=""), strict=True)
        for row in reader:
            if len(row) != 3 or not row[0].isdigit() or not 1 <= int(row[0]) <= classes:
                raise DataError(
                    f"{name}, line {reader.line_num}: expected a class from 1 to {classes}, a title and a "
                    f"description, found {len(row)} fields beginning with {row[0][:20] if row else ''!r}"
                )
            labels.append(int(row[0]) - 1)
            texts.append(f"{row[1]}\n{row[2]}")
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{name} is not a whole CSV file in UTF-8 ({error}): get the file again") from error
    if not texts:
        raise DataError(f"{name} is empty: get the file again")
    return texts, np.asarray(labels, dtype=np.int64)


def _check_labels(labels: np.ndarray, classes: int, name: str) -> None:
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        bad = int(((labels < 0) | (labels >= classes)).argmax())
        raise DataError(f"{name}: sample {bad} has label {int(labels[bad])}, expected 0 to {classes - 1}")
