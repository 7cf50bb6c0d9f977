"""Vectors as float32 in one memory-mapped array: finite, and without a loss of precision that is not told.

Values pass block by block through an unnamed scratch file, so that memory does not grow with them. One float32 array
in a .npy file is taken as it lies there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from shoal.core.errors import DataError, short_text, shown
from shoal.data.intake.array_files import VectorFile
from shoal.data.intake.tables import MAX_LOSS, MAX_WHOLE, NOTED_LOSS
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.wording import first_of


def vectors_of(files: Sequence[VectorFile], scratch: Path, intake: Intake) -> np.ndarray:
    """Return the vectors of files, one file after the other, float32 (n, d), memory-mapped.

    Args:
        files: all of the same width.
        scratch: an existing folder with room for them; nothing stays there.
        intake: notes of columns that lose digits, and of truth values.

    Raises:
        DataError: a value is not finite (file, row and column are named), or float32 cannot tell the values of a column
            apart.
    """
    first = files[0]
    losses = np.zeros(first.width)
    try:
        with tempfile.TemporaryFile(dir=scratch) as room:
            for file in files:
                if file.dtype.kind == "b":
                    intake.adapt("array of true and false as 1 and 0", file.path.name)
                for x in float32_blocks(file, losses):
                    if not _as_it_lies(files):
                        room.write(np.ascontiguousarray(x).data)
            if _as_it_lies(files):
                assert first.mapped is not None
                return first.mapped
            room.flush()
            x = np.memmap(room, np.float32, "r", shape=(sum(file.rows for file in files), first.width))
    except OSError as error:
        raise DataError(
            f"the vectors of {first.path} could not be written to {scratch}: {short_text(error)}"
        ) from error
    _judge(losses, first, intake)
    return x


def _as_it_lies(files: Sequence[VectorFile]) -> bool:
    mapped = files[0].mapped
    return len(files) == 1 and mapped is not None and mapped.dtype == np.float32 and mapped.dtype.isnative


def float32_blocks(file: VectorFile, losses: np.ndarray | None = None) -> Iterator[np.ndarray]:
    """Yield the vectors of a file as float32 (m, d), block by block.

    Args:
        file: the file.
        losses: gets for each column the largest error of rounding, over the standard deviation in the first block.

    Raises:
        DataError: a value is not finite, or the file holds fewer rows than it says.
    """
    row = 0
    spread: np.ndarray | None = None
    try:
        for block in file.blocks():
            with np.errstate(over="ignore", invalid="ignore"):
                x = block.astype(np.float32, copy=False)
            _check(file, block, x, row)
            if spread is None:
                spread = block.std(axis=0, dtype=np.float64)
            if losses is not None:
                error = np.abs(block - x.astype(np.float64)).max(axis=0, initial=0.0)
                np.maximum(losses, np.divide(error, spread, out=np.zeros_like(error), where=spread > 0), out=losses)
            row += len(x)
            yield x
    except DataError:
        raise
    except Exception as error:  # a damaged block, as any library reports it
        raise DataError(f"{file.path} cannot be read after row {row} ({short_text(error)})") from error
    if row != file.rows:
        raise DataError(f"{file.path} ends after row {row}, and announces {file.rows}: it is truncated")


def _check(file: VectorFile, block: np.ndarray, x: np.ndarray, start: int) -> None:
    """Refuse values that float32 does not hold at all."""
    if block.dtype.kind in "iu" and np.abs(x).max(initial=0.0) >= MAX_WHOLE:
        raise DataError(f"{file.path} holds whole numbers of 2^53 and more: subtract a number from each column")
    for row, column in np.argwhere(~np.isfinite(x))[:1]:
        name = shown(file.columns[column]) if file.columns else str(column)
        value = block[row, column]
        what = "is too large for float32" if np.isfinite(value) else f"is {value}"
        raise DataError(f"{file.path}: row {start + row}, column {name} {what}: vectors must be finite numbers")


def _judge(losses: np.ndarray, file: VectorFile, intake: Intake) -> None:
    """Refuse columns that float32 cannot hold, and note those that lose digits."""
    names = file.columns or tuple(map(str, range(file.width)))
    refused = [shown(names[k]) for k in np.flatnonzero(losses > MAX_LOSS)]
    if refused:
        raise DataError(
            f"{file.path}: float32 cannot tell the values apart in column {first_of(refused)}: subtract a number from "
            "each of them, or leave such columns out"
        )
    for k in np.flatnonzero(losses > NOTED_LOSS):
        intake.adapt("column rounded to float32", names[k], f"by up to {losses[k]:.1%} of its standard deviation")
