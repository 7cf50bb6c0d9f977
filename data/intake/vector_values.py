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
from shoal.data.intake.tables import MAX_LOSS, NOTED_LOSS
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.wording import first_of

EXACT = ("f2", "f4", "b1", "i1", "u1", "i2", "u2")
"""Types whose every value float32 holds."""
_EXACT = 2.0**53
"""From this number on float64 does not hold every whole number."""


def vectors_of(files: Sequence[VectorFile], scratch: Path, intake: Intake) -> np.ndarray:
    """Return the vectors of files, one file after the other, float32 (n, d), memory-mapped.

    Args:
        files: all of the same width.
        scratch: an existing folder with room for them; nothing stays there.
        intake: notes of columns that lose digits, of truth values, and of arrays without zeros.

    Raises:
        DataError: a value is not finite (file, row and column are named), or float32 cannot tell the values of a column
            apart.
    """
    _note_kinds(files, intake)
    rounding = _Rounding(files[0].width)
    first = files[0]
    if len(files) == 1 and first.mapped is not None and first.mapped.dtype == np.float32 and first.dtype.isnative:
        for _ in float32_blocks(first, rounding):
            pass
        return first.mapped
    try:
        with tempfile.TemporaryFile(dir=scratch) as room:
            for file in files:
                for block in float32_blocks(file, rounding):
                    room.write(np.ascontiguousarray(block).data)
            room.flush()
            rows = sum(file.rows for file in files)
            x = np.memmap(room, np.float32, "r", shape=(rows, first.width))
    except OSError as error:
        raise DataError(
            f"the vectors of {first.path} could not be written to {scratch}: {short_text(error)}"
        ) from error
    rounding.tell(first, intake)
    return x


def _note_kinds(files: Sequence[VectorFile], intake: Intake) -> None:
    for file in files:
        if not file.dense:
            intake.adapt("array without zeros stored with them", file.path.name)
        if file.dtype.kind == "b":
            intake.adapt("array of true and false as 1 and 0", file.path.name)


def float32_blocks(file: VectorFile, rounding: _Rounding | None = None) -> Iterator[np.ndarray]:
    """Yield the vectors of a file as float32 (m, d), block by block.

    Args:
        file: the file.
        rounding: is told the values before and after.

    Raises:
        DataError: a value is not finite, or the file holds fewer rows than it says.
    """
    row = 0
    try:
        for block in file.blocks():
            with np.errstate(over="ignore", invalid="ignore"):
                x = block.astype(np.float32, copy=False)
            if not np.isfinite(x).all():
                _refuse(file, block, x, row)
            if rounding is not None and block.dtype.str[1:] not in EXACT:
                rounding.add(block, x)
            row += len(x)
            yield x
    except DataError:
        raise
    except Exception as error:  # a damaged block, as any library reports it
        raise DataError(f"{file.path} cannot be read after row {row} ({short_text(error)})") from error
    if row != file.rows:
        raise DataError(f"{file.path} ends after row {row}, and announces {file.rows}: it is truncated")


def _refuse(file: VectorFile, block: np.ndarray, x: np.ndarray, start: int) -> None:
    row, column = np.argwhere(~np.isfinite(x))[0]
    name = shown(file.columns[column]) if file.columns else str(column)
    value = block[row, column]
    what = "is too large for float32" if np.isfinite(value) else f"is {value}"
    raise DataError(f"{file.path}: row {start + row}, column {name} {what}: vectors must be finite numbers")


class _Rounding:
    """The largest error of rounding to float32 in each column, beside the column's standard deviation."""

    def __init__(self, width: int) -> None:
        self.rows = 0
        self.error = np.zeros(width)
        self.total = np.zeros(width)
        self.squares = np.zeros(width)
        self.origin: np.ndarray | None = None

    def add(self, block: np.ndarray, x: np.ndarray) -> None:
        """Take a block (m, d) before and after rounding."""
        if self.origin is None:
            self.origin = block[0].copy()
        exact = block
        rounded = x.astype(np.float64)
        if block.dtype.kind in "iu" and np.abs(x).max(initial=0.0) >= _EXACT:
            exact = block.astype(object)
            rounded = np.frompyfunc(int, 1, 1)(x)
        self.error = np.maximum(self.error, np.abs(exact - rounded).astype(np.float64).max(0, initial=0.0))
        shifted = (exact - self.origin.astype(exact.dtype)).astype(np.float64)  # not to lose small differences
        self.rows += len(block)
        self.total += shifted.sum(0)
        self.squares += np.square(shifted).sum(0)

    def tell(self, file: VectorFile, intake: Intake) -> None:
        """Note columns that lose digits.

        Raises:
            DataError: float32 cannot tell the values of a column apart.
        """
        if not self.rows:
            return
        mean = self.total / self.rows
        spread = np.sqrt(np.maximum(self.squares / self.rows - mean**2, 0))
        loss = np.divide(self.error, spread, out=np.zeros_like(spread), where=spread > 0)
        names = file.columns or tuple(str(k) for k in range(file.width))
        refused = [shown(names[k]) for k in np.flatnonzero(loss > MAX_LOSS)]
        if refused:
            raise DataError(
                f"{file.path}: float32 cannot tell the values apart in column {first_of(refused, 5)}: subtract a "
                "number from each of them, or leave such columns out"
            )
        for k in np.flatnonzero(loss > NOTED_LOSS):
            detail = f"by up to {loss[k]:.1%} of its standard deviation"
            intake.adapt("column rounded to float32", names[k], detail)
