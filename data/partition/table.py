"""The partition table: one row a sample, stored as Parquet with a manifest beside it.

    sample  client  split
         0       3  train

`sample` indexes the training arrays; `split` is train or validation.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from shoal.core.errors import PartitionError, short_text
from shoal.core.seal import BrokenSeal, sealed, unsealed

TRAIN = "train"
VALIDATION = "validation"
FACTS = ("data", "data_digest", "clients", "settings")
"""Fields of `Partition` that its manifest has as they are."""


@dataclass(frozen=True)
class Partition:
    """Samples given to clients.

    `sample`, `client`, `validation` are arrays of equal length, sorted by client, then sample.
    """

    data: str
    data_digest: str
    clients: int
    sample: np.ndarray
    client: np.ndarray
    validation: np.ndarray
    settings: dict[str, Any] = field(default_factory=dict)
    client_names: tuple[str, ...] = ()
    truth: tuple[int, ...] = ()
    """The planted group of each client; empty where none is planted."""

    def samples_of(self, client: int, *, validation: bool = False) -> np.ndarray:
        """Return the samples of one client, int64, ascending."""
        rows = self.rows(client)
        result: np.ndarray = self.sample[rows][self.validation[rows] == validation]
        return result

    def rows(self, client: int) -> slice:
        """Return the slice of the rows of one client."""
        # Numbers of the array's own type: with another type numpy would convert the whole array.
        first, last = np.searchsorted(self.client, np.array([client, client + 1], self.client.dtype))
        return slice(int(first), int(last))

    def counts(self) -> np.ndarray:
        """Return the number of training samples of each client, shape (clients,)."""
        return np.bincount(self.client[~self.validation], minlength=self.clients)

    def pooled(self) -> Partition:
        """Return a partition of the same samples and splits with a single client."""
        order = np.argsort(self.sample, kind="stable")
        return Partition(
            self.data,
            self.data_digest,
            1,
            self.sample[order],
            np.zeros_like(self.client),
            self.validation[order],
            {**self.settings, "pooled": True},
        )

    @property
    def digest(self) -> str:
        """sha256 of the table: equal digests mean equal partitions."""
        digest = hashlib.sha256(self.data_digest.encode())
        for array in (self.sample, self.client):
            digest.update(np.ascontiguousarray(array, dtype=np.int64).data)
        digest.update(np.ascontiguousarray(self.validation, dtype=np.uint8).data)
        return digest.hexdigest()


def save_partition(partition: Partition, folder: Path) -> None:
    """Write partition.parquet and partition.json to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = {
        "sample": partition.sample.astype(np.int64),
        "client": partition.client.astype(np.int32),
        "split": np.where(partition.validation, VALIDATION, TRAIN),
    }
    pd.DataFrame(columns).to_parquet(folder / "partition.parquet", index=False)
    about = {
        "digest": partition.digest,
        **{name: getattr(partition, name) for name in (*FACTS, "client_names", "truth")},
    }
    (folder / "partition.json").write_text(json.dumps(sealed(about), indent=1, sort_keys=True) + "\n")


def load_partition(folder: Path) -> Partition:
    """Read a stored partition.

    Raises:
        PartitionError: the table is missing or unreadable, or not the one its manifest describes.
    """
    from pyarrow import compute, default_memory_pool, parquet

    try:
        about = unsealed(json.loads((folder / "partition.json").read_text()))
        columns = ["sample", "client", "split"]
        table = parquet.read_table(folder / "partition.parquet", columns=columns)
        facts = {name: about[name] for name in FACTS}
        partition = Partition(
            **facts,
            client_names=tuple(about["client_names"]),
            truth=tuple(about["truth"]),
            sample=table["sample"].to_numpy().astype(np.int64, copy=False),
            client=table["client"].to_numpy().astype(np.int32),
            validation=compute.equal(table["split"], VALIDATION).to_numpy(),
        )
        del table
        default_memory_pool().release_unused()  # half a gigabyte, of ten million samples
        if partition.digest != about["digest"]:
            raise BrokenSeal("the table is not the one its manifest describes")
        # A lead could have one sample stand for the many behind which a site's rules hide each.
        if len(np.unique(partition.sample)) < len(partition.sample):
            raise BrokenSeal("it names a sample twice")
    except FileNotFoundError as error:
        raise PartitionError(f"no partition in {folder}: {error.filename} is missing") from None
    except Exception as error:  # pyarrow raises nearly anything on broken files
        raise PartitionError(
            f"the partition in {folder} cannot be read ({short_text(error)}): make it again"
        ) from error
    return partition
