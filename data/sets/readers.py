"""Readers of the official file formats: idx, CIFAR records, the AG News CSV.

Each takes the bytes of one file, whose checksum is that of the published one (`shoal.data.sets.sources`).
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


def read_idx(content: bytes) -> np.ndarray:
    """Read an idx file of bytes: a 4-byte magic (0, 0, 8, dimensions), big-endian sizes, then the values.

    Returns:
        uint8, of the shape in the header.

    Source: https://yann.lecun.com/exdb/mnist/.
    """
    dimensions = content[3]
    shape = np.frombuffer(content, ">u4", dimensions, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def read_cifar_records(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Read records of CIFAR-10's binary version: the label, then the red, green and blue plane, 1,024 bytes each.

    Returns:
        images uint8 (n, 3, 32, 32); labels int64 (n,).
    """
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + math.prod(CIFAR_SHAPE))
    return records[:, 1:].reshape(-1, *CIFAR_SHAPE), records[:, 0].astype(np.int64)


def read_ag_news(content: bytes) -> tuple[list[str], np.ndarray]:
    """Read the AG News CSV: no header; class index from 1, title, description.

    Returns:
        n texts, each the title, a line feed and the description; labels from 0, int64 (n,).
    """
    rows = list(csv.reader(io.StringIO(content.decode("utf-8"), newline="")))
    labels = np.array([int(row[0]) - 1 for row in rows], dtype=np.int64)
    return [f"{title}\n{description}" for _, title, description in rows], labels
