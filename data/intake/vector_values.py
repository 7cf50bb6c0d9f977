"""Vectors as float32 in one memory-mapped array, all finite; other types are rounded, and this is told.

Values pass block by block through an unnamed scratch file, so that memory does not grow with them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from shoal.core.errors import DataError, short_text, shown
from shoal.data.intake.array_files import VectorFile
from shoal.data.sets.intake_notes import Intake


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
        if file.dtype != np.float32:
            intake.adapt(f"array of {file.dtype} as float32", file.path.name)
    try:
        with tempfile.TemporaryFile(dir=scratch) as room:
            for file in files:
                for block in float32_blocks(file):
                    room.write(np.ascontiguousarray(block).data)
            room.flush()
            return np.memmap(room, np.float32, "r", shape=(sum(file.rows for file in files), files[0].width))
    except OSError as error:
        raise DataError(
            f"the vectors of {files[0].path} could not be written to {scratch}: {short_text(error)}"
        ) from error


def float32_blocks(file: VectorFile) -> Iterator[np.ndarray]:
    """Yield the vectors of a file as float32 (m, d), block by block.

    Raises:
        DataError: a value is not finite, or the file holds fewer rows than it says.
    """
    row = 0
    try:
        for block in file.blocks():
            with np.errstate(over="ignore", invalid="ignore"):
                x = block.astype(np.float32, copy=False)
            for place, column in np.argwhere(~np.isfinite(x))[:1]:
                name = shown(file.columns[column]) if file.columns else str(column)
                value = block[place, column]
                what = "is too large for float32" if np.isfinite(value) else f"is {value}"
                raise DataError(f"{file.path}: row {row + place}, column {name} {what}: vectors must be finite numbers")
            row += len(x)
            yield x
    except DataError:
        raise
    except Exception as error:  # a damaged block, as any library reports it
        raise DataError(f"{file.path} cannot be read after row {row} ({short_text(error)})") from error
    if row != file.rows:
        raise DataError(f"{file.path} ends after row {row}, and announces {file.rows}: it is truncated")
