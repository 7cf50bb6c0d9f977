"""Readers of the official file formats: idx, CIFAR records, the AG News CSV.

Each takes the bytes of one file and its name, and refuses what is not whole.
"""

from __future__ import annotations

import csv
import gzip
import io
import lzma
import math
import zlib

import numpy as np

from shoal.core.errors import DataError, short_text

MAX_UNPACKED_BYTES = 256 << 20
"""Largest size of an unpacked raw file: the largest official one, CIFAR-100's training part, has 155 MB."""
CIFAR_SHAPE = (3, 32, 32)


def unpack(content: bytes, name: str) -> bytes:
    """Return the content of a .gz or .xz file; for any other name `content` itself.

    Raises:
        DataError: the compressed stream is broken or ends early, or holds more than `MAX_UNPACKED_BYTES` bytes.
    """
    try:
        if name.endswith(".gz"):
            unpacked = gunzip(content, MAX_UNPACKED_BYTES)
        elif name.endswith(".xz"):
            with lzma.open(io.BytesIO(content)) as file:
                unpacked = file.read(MAX_UNPACKED_BYTES + 1)
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


def read_cifar_records(content: bytes, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Read records of CIFAR-10's binary version: the label, then the red, green and blue plane, 1,024 bytes each.

    Args:
        content: the file.
        name: the file's name, for errors.

    Returns:
        images uint8 (n, 3, 32, 32); labels int64 (n,).

    Raises:
        DataError: the file is not a whole number of records, or a label is out of range.
    """
    record = 1 + math.prod(CIFAR_SHAPE)
    if not content or len(content) % record:
        raise DataError(
            f"{name} has {len(content):,} bytes, expected a whole number of {record}-byte records: get the file again"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    labels = records[:, 0].astype(np.int64)
    if labels.max() > 9:
        bad = int((labels > 9).argmax())
        raise DataError(f"{name}: sample {bad} has label {labels[bad]}, expected 0 to 9")
    return records[:, 1:].reshape(-1, *CIFAR_SHAPE), labels


def read_ag_news(content: bytes, name: str, *, classes: int = 4) -> tuple[list[str], np.ndarray]:
    """Read the AG News CSV: no header; class index from 1, title, description.

    Returns:
        n texts, each the title, a line feed and the description; labels from 0, int64 (n,).

    Raises:
        DataError: names a line that is not such a row.
    """
    texts = []
    labels = []
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
