"""Arrays whose values are read when they are asked for: a choice of rows, two arrays in a row, files of clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

BLOCK_BYTES = 1 << 24
"""About so many bytes are read at once."""


class LazyArray(ABC):
    """An array that is not in memory. Indexing its rows gives numpy arrays, `np.asarray` all of it.

    A subclass implements `take`.

    Args:
        shape: (n, ...).
        dtype: of its values.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape = shape
        self.dtype = dtype

    @abstractmethod
    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return rows by their numbers, int64 (m,), each from 0 to n - 1."""

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> np.ndarray:
        """Return the rows of a slice, of numbers or of truth values; of one number that row.

        Of a tuple the first entry chooses rows, and the others index each of them.
        """
        if isinstance(key, tuple):
            rows_read = self[key[0]]
            inner = key[1:] if rows_read.ndim < self.ndim else (slice(None), *key[1:])
            part: np.ndarray = rows_read[inner]
            return part
        rows = np.arange(len(self))[key]
        if rows.ndim == 0:
            row: np.ndarray = self.take(rows[None])[0]
            return row
        return self.take(rows)

    def __iter__(self) -> Iterator[np.ndarray]:
        for block in blocks(self):
            yield from block

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return all values; they are always a copy.

        Raises:
            ValueError: a view is asked for.
        """
        if copy is False:
            raise ValueError("the values of this array are in files: there is no view of all of them")
        return self.take(np.arange(len(self))).astype(dtype or self.dtype, copy=False)

    def tolist(self) -> list[Any]:
        """Return all values as a list."""
        return list(np.asarray(self).tolist())


SampleArray = np.ndarray | LazyArray
"""The samples or labels of a set."""


class ArrayRows(LazyArray):
    """Some rows of an array.

    Args:
        array: (n, ...).
        rows: their numbers, int64 (m,).
    """

    def __init__(self, array: SampleArray, rows: np.ndarray) -> None:
        super().__init__((len(rows), *array.shape[1:]), array.dtype)
        self._array = array
        self._rows = rows

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return rows by their numbers among those selected."""
        return np.asarray(self._array[self._rows[rows]])


class ConcatenatedArray(LazyArray):
    """Two arrays, one after the other.

    Args:
        first, second: of one type, and of one shape except for their length.
    """

    def __init__(self, first: SampleArray, second: SampleArray) -> None:
        super().__init__((len(first) + len(second), *first.shape[1:]), first.dtype)
        self._first = first
        self._second = second

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return rows by their numbers in both arrays together."""
        n = len(self._first)
        rows_read = np.empty((len(rows), *self.shape[1:]), self.dtype)
        early = rows < n
        rows_read[early] = self._first[rows[early]]
        rows_read[~early] = self._second[rows[~early] - n]
        return rows_read


def blocks(array: SampleArray) -> Iterator[np.ndarray]:
    """Yield the rows of an array in order, about `BLOCK_BYTES` at once."""
    row_bytes = max(1, int(np.prod(array.shape[1:])) * array.dtype.itemsize)
    count = max(1, BLOCK_BYTES // row_bytes)
    for start in range(0, len(array), count):
        yield np.asarray(array[start : start + count])
