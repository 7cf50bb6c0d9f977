"""Readers of the official file formats: idx, CIFAR records and pickles, the AG News CSV.

Each takes the bytes of one file and its name, and refuses what is not whole.
"""

from __future__ import annotations

import csv
import gzip
import io
import lzma
import math
import pickle
import pickletools
import warnings
import zlib
from typing import Any

import numpy as np

from shoal.core.errors import DataError, short_text, shown

MAX_UNPACKED_BYTES = 256 << 20
"""Largest size of an unpacked raw file: the largest official one, CIFAR-100's training part, has 155 MB."""
MAX_LZMA_BYTES = 256 << 20
"""Largest dictionary of an .xz file in memory; its strongest preset takes 65 MB."""
CIFAR_SHAPE = (3, 32, 32)
MAX_MEMO_NUMBER = 1_000_000
"""Largest memo number in a pickle; CIFAR-100's pickle numbers each of 50,000 names."""
_CIFAR_PIXELS = 3 * 32 * 32


def unpack(content: bytes, name: str) -> bytes:
    """Return the content of a .gz or .xz file; for any other name `content` itself.

    Raises:
        DataError: the compressed stream is broken or ends early, or holds more than `MAX_UNPACKED_BYTES` bytes.
    """
    try:
        if name.endswith(".gz"):
            unpacked = gunzip(content, MAX_UNPACKED_BYTES)
        elif name.endswith(".xz"):
            unpacked = _unxz(content, MAX_UNPACKED_BYTES)
        else:
            return content
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(
            f"{name} is truncated or is not a {name[-3:]} file ({short_text(error)}): get the file again"
        ) from error
    if len(unpacked) > MAX_UNPACKED_BYTES:
        raise DataError(
            f"{name} unpacks to more than {MAX_UNPACKED_BYTES:,} bytes, which no official file does: get the file again"
        )
    return unpacked


def gunzip(content: bytes, max_bytes: int) -> bytes:
    """Return the content of a .gz file; of one with more than `max_bytes` bytes, the first `max_bytes` + 1.

    Raises:
        OSError, EOFError, zlib.error: it is not a complete .gz file.
    """
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        return file.read(max_bytes + 1)


def _unxz(content: bytes, max_bytes: int) -> bytes:
    unpacked = b""
    while len(unpacked) <= max_bytes:
        stream = lzma.LZMADecompressor(memlimit=MAX_LZMA_BYTES)
        try:
            unpacked += stream.decompress(content, max_length=max_bytes + 1 - len(unpacked))
        except lzma.LZMAError:
            if unpacked:  # no other stream follows the first one
                break
            raise
        if not stream.eof and len(unpacked) <= max_bytes:
            raise EOFError("the stream ends before its end marker")
        content = stream.unused_data
        if not content:
            break
    return unpacked


def read_idx(content: bytes, name: str) -> np.ndarray:
    """Read an idx file of bytes: a 4-byte magic (0, 0, 8, dimensions), big-endian sizes, then the values.

    Returns:
        uint8, of the shape in the header.

    Source: https://yann.lecun.com/exdb/mnist/.

    Raises:
        DataError: the magic is another one, or the number of values is not the one in the header.
    """
    if len(content) < 4 or content[:3] != b"\x00\x00\x08" or not 1 <= content[3] <= 4:
        raise DataError(f"{name} is not an idx file of bytes: it begins with {content[:4].hex()}, expected 000008nn")
    dimensions = content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DataError(f"{name} ends within its header: get the file again")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", dimensions, offset=4))
    expected = start + math.prod(shape)
    if len(content) != expected:
        raise DataError(
            f"{name} has {len(content):,} bytes, expected {expected:,} for shape {shape}: get the file again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_cifar_records(content: bytes, name: str, *, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Read records of CIFAR's binary version: the label, then the red, green and blue plane, 1,024 bytes each.

    CIFAR-100's records begin with two label bytes, coarse and fine; the fine one is kept.

    Args:
        content: the file.
        name: the file's name, for errors.
        classes: 10 or 100.

    Returns:
        images uint8 (n, 3, 32, 32); labels int64 (n,).

    Raises:
        DataError: the file is not a whole number of records, or a label is out of range.
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


class _Bytes:
    """Stand-in for numpy.dtype in a pickle: CIFAR's arrays hold bytes only."""

    def __init__(self, code: str, *_: Any) -> None:
        if code not in ("u1", "uint8"):
            raise pickle.UnpicklingError(f"it has an array of {short_text(ValueError(code))}")

    def __setstate__(self, state: Any) -> None:
        """Ignore byte order and alignment, which bytes do not have."""


class _Array:
    """Stand-in for numpy.ndarray in a pickle: numpy's own does not check a broken state, and ends the process."""

    pixels: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, in_columns, content = state
        if not isinstance(dtype, _Bytes) or in_columns:
            raise pickle.UnpicklingError("it has an array that is not of bytes in rows")
        raw = content.encode("latin1") if isinstance(content, str) else bytes(memoryview(content))
        self.pixels = np.frombuffer(raw, np.uint8).reshape(shape)


def _begin_array(*_: Any) -> _Array:
    return _Array()


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it has text in {short_text(ValueError(encoding))}")
    return text.encode("latin1")


# The names that a pickled numpy array asks for, and their stand-ins; anything else could run code.
_STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _begin_array,
    ("numpy._core.multiarray", "_reconstruct"): _begin_array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Bytes,
    ("_codecs", "encode"): _encode,
}


class _ArrayUnpickler(pickle.Unpickler):
    """An unpickler that builds dictionaries, lists, strings and arrays of bytes, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _STAND_INS[module, name]


def _check_memo(content: bytes) -> None:
    """Refuse a pickle with a memo number so high that the memo alone would fill the memory."""
    for operation, argument, _ in pickletools.genops(content):
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and (argument or 0) > MAX_MEMO_NUMBER:
            raise pickle.UnpicklingError(f"it numbers a value {argument}")


def read_cifar_pickle(content: bytes, name: str) -> dict[str, Any]:
    """Read a dictionary of CIFAR's Python version without running code from the file.

    Raises:
        DataError: it is not a pickle of a dictionary of arrays of bytes, lists and strings.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _check_memo(content)
            loaded = _ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # unpickling broken bytes raises nearly anything
        raise DataError(f"{name} cannot be read as a CIFAR pickle ({short_text(error)}): get the file again") from error
    if not isinstance(loaded, dict):
        raise DataError(f"{name} holds a {type(loaded).__name__}, expected CIFAR's dictionary")
    return {key: entry.pixels if isinstance(entry, _Array) else entry for key, entry in loaded.items()}


def cifar_batch(batch: dict[str, Any], name: str, *, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Return images and labels of one dictionary of CIFAR's Python version.

    Returns:
        images uint8 (n, 3, 32, 32); labels int64 (n,).

    Raises:
        DataError: an entry is missing or has another shape, or a label is out of range.
    """
    key = "labels" if classes == 10 else "fine_labels"
    if "data" not in batch or key not in batch:
        have = ", ".join(sorted(map(shown, batch))[:10]) or "none"
        raise DataError(f"{name} has the entries {have}; expected 'data' and {key!r}")
    try:
        images = np.asarray(batch["data"])
        labels = np.asarray(batch[key])
    except Exception as error:  # lists of anything
        raise DataError(f"{name} holds data that are not arrays ({short_text(error)}): get the file again") from error
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(f"{name}: {key} is {labels.dtype} {labels.shape}, expected a whole number an image")
    labels = labels.astype(np.int64)
    if images.dtype != np.uint8 or images.shape != (len(labels), _CIFAR_PIXELS):
        raise DataError(f"{name}: data is {images.dtype} {images.shape}, expected uint8 {(len(labels), _CIFAR_PIXELS)}")
    _check_labels(labels, classes, name)
    return images.reshape(-1, *CIFAR_SHAPE), labels


def read_ag_news(content: bytes, name: str, *, classes: int = 4) -> tuple[list[str], np.ndarray]:
    """Read the AG News CSV: no header; class index from 1, title, description.

    Returns:
        n texts, each the title, a line feed and the description; labels from 0, int64 (n,).

    Raises:
        DataError: names a line that is not such a row.
    """
    texts: list[str] = []
    labels: list[int] = []
    known = {str(number) for number in range(1, classes + 1)}
    try:
        reader = csv.reader(io.StringIO(content.decode("utf-8"), newline=""), strict=True)
        for row in reader:
            if len(row) != 3 or row[0] not in known:
                raise DataError(
                    f"{name}, line {reader.line_num}: expected a class from 1 to {classes}, a title and a "
                    f"description, found {len(row)} fields beginning with {row[0][:20] if row else ''!a}"
                )
            labels.append(int(row[0]) - 1)
            texts.append(f"{row[1]}\n{row[2]}")
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{name} is not a whole CSV file in UTF-8 ({short_text(error)}): get the file again") from error
    if not texts:
        raise DataError(f"{name} is empty: get the file again")
    return texts, np.asarray(labels, dtype=np.int64)


def _check_labels(labels: np.ndarray, classes: int, name: str) -> None:
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        bad = int(((labels < 0) | (labels >= classes)).argmax())
        raise DataError(f"{name}: sample {bad} has label {int(labels[bad])}, expected 0 to {classes - 1}")
