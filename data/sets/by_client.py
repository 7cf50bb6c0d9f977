"""Sets that are stored apart by client: a folder for each, opened when its samples are asked for.

    data/store/own/photos/
      manifest.json
      column_client.npy  test_client.npy      the client of each training and each test sample, by number
      clients/0000/{train_x,train_y,test_x,test_y}.npy  files.parquet
      clients/0001/...

The number of a sample in the set does not depend on where it lies: a client's arrays have its samples in the order of
these numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.errors import DataError
from shoal.data.sets.lazy_array import LazyArray

FOLDER = "clients"
OWNER = {"train": "column_client.npy", "test": "test_client.npy"}
"""The file with the client of each sample, by part of the set."""
Open = Callable[[Path], np.ndarray]
"""Opens an array memory-mapped, or raises a `DataError`."""


def is_by_client(files: Mapping[str, str]) -> bool:
    """Return whether a set is stored by client, by the names of its files in the manifest."""
    return OWNER["train"] in files


def client_file(client: int, name: str) -> str:
    """Return the path of a client's file within the set's folder.

    >>> client_file(3, "train_x.npy")
    'clients/0003/train_x.npy'
    """
    return f"{FOLDER}/{client:04d}/{name}"


class Division:
    """Which client has each sample of a part of a set.

    Args:
        owner: the client of each sample, whole numbers (n,).
    """

    def __init__(self, owner: np.ndarray) -> None:
        self.owner = owner.astype(np.int32)

    @cached_property
    def counts(self) -> np.ndarray:
        """The number of samples of each client, int64 (clients,)."""
        return np.bincount(self.owner)

    @cached_property
    def place(self) -> np.ndarray:
        """The row of each sample among those of its client, int64 (n,)."""
        order = np.argsort(self.owner, kind="stable")
        starts = np.cumsum(self.counts) - self.counts
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order)) - starts[self.owner[order]]
        return place

    def rows(self, client: int) -> np.ndarray:
        """Return the samples of a client, ascending, int64."""
        return np.flatnonzero(self.owner == client)

    def only_owner(self, rows: np.ndarray) -> int | None:
        """Return the client that has all of these samples; None where there are several, or no samples."""
        owners = self.owner[rows]
        if len(owners) and (owners == owners[0]).all():
            return int(owners[0])
        return None


class ClientArray(LazyArray):
    """One array of a set, in the files of its clients.

    Args:
        folder: of the set.
        name: of the array, such as train_x.
        division: whose each sample is.
        shape: of a sample.
        dtype: of its values.
        open_array: opens a file.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        division: Division,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        open_array: Open,
    ) -> None:
        super().__init__((len(division.owner), *shape), dtype)
        self.division = division
        self._folder = folder
        self._name = name
        self._open = open_array
        self._parts: dict[int, np.ndarray] = {}

    def path(self, client: int) -> Path:
        """Return the file of a client."""
        return self._folder / client_file(client, f"{self._name}.npy")

    def part(self, client: int) -> np.ndarray:
        """Return the rows of one client, memory-mapped.

        Raises:
            DataError: its file is missing, damaged, or of another shape or type.
        """
        if client not in self._parts:
            path = self.path(client)
            array = self._open(path)
            expected = (int(self.division.counts[client]), *self.shape[1:])
            if array.shape != expected or array.dtype != self.dtype:
                raise DataError(f"{path} is {array.dtype} {array.shape}, expected {self.dtype} {expected}")
            self._parts[client] = array
        return self._parts[client]

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return samples by their numbers in the set; files of other clients than theirs stay closed."""
        owner = self.division.owner[rows]
        place = self.division.place[rows]
        samples = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for client in np.unique(owner):
            mine = owner == client
            samples[mine] = np.asarray(self.part(int(client)))[place[mine]]
        return samples
