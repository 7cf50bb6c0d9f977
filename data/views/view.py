"""Data on the device: a set is loaded once per worker, and a client is an index into it.

Of a set that is stored apart by client, a worker loads the arrays of those clients alone whose samples it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shoal.data.partition.table import Partition
from shoal.data.sets.by_client import ClientArray
from shoal.data.sets.lazy_array import LazyArray, SampleArray
from shoal.data.sets.prepared import DataSpec, PreparedSet

MIN_SHARED_BYTES = 1 << 27
"""Size from which the processes of a machine share an array."""


class ClientTensors:
    """One array of a set that is stored by client, as tensors on a device; a client's is loaded at its first use.

    Args:
        array: the array.
        device: where the tensors lie.
    """

    def __init__(self, array: ClientArray, device: torch.device) -> None:
        self.division = array.division
        self.shape = torch.Size(array.shape)
        self.device = device
        self._array = array
        self._loaded: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return self.shape[0]

    def rows_of_client(self, client: int) -> Tensor:
        """Return the rows of one client (m, ...), in the order of their numbers in the set."""
        if client not in self._loaded:
            array = _writable(self._array.part(client), self._array.nbytes)
            self._loaded[client] = torch.from_numpy(array).to(self.device)
        return self._loaded[client]

    def __getitem__(self, key: Tensor | slice) -> Tensor:
        """Return samples by their numbers in the set; a slice chooses among these numbers."""
        rows = torch.arange(len(self))[key].cpu().numpy()
        owner = self.division.owner[rows]
        place = torch.from_numpy(self.division.place[rows]).to(self.device)
        clients = np.unique(owner)
        if len(clients) == 1:
            return self.rows_of_client(int(clients[0]))[place]
        dtype = torch.from_numpy(np.empty(0, self._array.dtype)).dtype
        samples = torch.empty((len(rows), *self.shape[1:]), dtype=dtype, device=self.device)
        for client in clients:
            mine = torch.from_numpy(np.flatnonzero(owner == client)).to(self.device)
            samples[mine] = self.rows_of_client(int(client))[place[mine]]
        return samples


DeviceArray = Tensor | ClientTensors
"""The samples or labels of a set on a device; indexing with numbers of samples gives a tensor."""


class DeviceData:
    """A prepared set as tensors on one device, in its stored dtype.

    Attributes:
        spec: name, kind, shape, counts.
        train_x, test_x: (n, *shape); test_x has zero rows where the set has no test part.
        train_y, test_y: int64 (n,), or None without labels.
    """

    def __init__(self, prepared: PreparedSet, device: torch.device | str = "cpu") -> None:
        self.spec: DataSpec = prepared.spec
        self.device = torch.device(device)
        self.train_x = self._tensor(prepared.train_x)
        self.train_y = None if prepared.train_y is None else self._tensor(prepared.train_y)
        if prepared.test_x is None:
            self.test_x: DeviceArray = self.train_x[:0]
            self.test_y: DeviceArray | None = None if self.train_y is None else self.train_y[:0]
        else:
            self.test_x = self._tensor(prepared.test_x)
            self.test_y = None if prepared.test_y is None else self._tensor(prepared.test_y)

    def computable(self, raw: Tensor) -> Tensor:
        """Return stored samples as numbers to compute with: images float32 in [0, 1], others as they are."""
        if self.spec.kind != "image":
            return raw
        if raw.device.type == "cpu":
            return raw.float().div_(255)
        return raw / 255  # one launch; on a CPU it takes longer

    def _tensor(self, array: SampleArray) -> DeviceArray:
        if isinstance(array, ClientArray):
            return ClientTensors(array, self.device)
        whole = np.asarray(array) if isinstance(array, LazyArray) else array
        return torch.from_numpy(_writable(whole, whole.nbytes)).to(self.device)


def _writable(array: np.ndarray, set_bytes: int) -> np.ndarray:
    """Return an array that torch accepts, which has no read-only tensors: a copy that does not follow its file.

    Pages of a large set are shared with the other processes of this machine, and a page is copied when it is written
    to; files of the store are replaced whole, never written to.

    Args:
        array: all of a set, or what one client has of it.
        set_bytes: the size of all of it.
    """
    if isinstance(array, np.memmap) and set_bytes >= MIN_SHARED_BYTES and isinstance(array.filename, str | Path):
        return np.memmap(array.filename, array.dtype, "c", array.offset, array.shape)
    return np.array(array)


@dataclass(frozen=True)
class Samples:
    """An ordered list of samples.

    Attributes:
        data: the set they index into.
        index: int64 (n,), on the set's device.
        owner: the client of the set that has all of them, where the set is stored by client; None: several, or another
            set.
        place: their rows among those of the owner, int64 (n,).
    """

    data: DeviceData
    index: Tensor
    owner: int | None = None
    place: Tensor | None = None

    def __len__(self) -> int:
        return len(self.index)

    def take(self, positions: Tensor) -> Samples:
        """Return the samples at `positions` (int64) of this list, in that order."""
        place = None if self.place is None else self.place[positions]
        return Samples(self.data, self.index[positions], self.owner, place)

    def _of(self, array: DeviceArray) -> Tensor:
        """Return the rows of these samples in an array of their set."""
        if self.owner is not None and self.place is not None and isinstance(array, ClientTensors):
            return array.rows_of_client(self.owner)[self.place]
        return array[self.index]

    def _at(self, positions: Tensor | None) -> Samples:
        return self if positions is None else self.take(positions)

    def raw(self, positions: Tensor | None = None) -> Tensor:
        """Return samples in their stored dtype, (n, *shape)."""
        here = self._at(positions)
        return here._of(here.data.train_x)

    def x(self, positions: Tensor | None = None) -> Tensor:
        """Return samples for computing: images float32 in [0, 1], others as `raw` returns them."""
        return self.data.computable(self.raw(positions))

    def y(self, positions: Tensor | None = None) -> Tensor:
        """Return labels, int64 (n,).

        Raises:
            ValueError: the set has no labels.
        """
        here = self._at(positions)
        if here.data.train_y is None:
            raise ValueError(f"data set {here.data.spec.name!r} has no labels")
        return here._of(here.data.train_y)


def client_samples(data: DeviceData, partition: Partition, client: int, *, validation: bool = False) -> Samples:
    """Return the training samples of one client, or its validation samples."""
    rows = partition.rows(client)
    split = partition.validation[rows] == validation
    sample = partition.sample[rows][split]
    owner = None
    place = None
    if isinstance(data.train_x, ClientTensors):
        division = data.train_x.division
        owner = division.only_owner(sample)
        place = torch.from_numpy(division.place[sample]).to(data.device)
    return Samples(data, torch.from_numpy(sample).to(data.device), owner, place)


def all_samples(data: DeviceData, partition: Partition) -> Samples:
    """Return every sample that the partition gives to a client, in the order of the set."""
    return Samples(data, torch.from_numpy(np.sort(partition.sample)).to(data.device))
