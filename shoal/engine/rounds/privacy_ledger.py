"""The privacy ledger of a data set: it adds up the privacy loss of all private runs on the set.

    privacy/mnist.json      sealed; for each run the number of updates of each client, and rho of each state

An entry is on the disk before the event for which it accounts: an update before its client is asked for it, a state
before it is evaluated and kept. So a killed run has revealed no more than its ledger says. An entry stays even if its
event did not happen, since a reader may have seen part of it.

A set has one ledger by its name, for all its later samples, partitions and parts: a built-in set with other options,
and what `shoal data embed` makes of a set, count as that set. A client may hold other samples in another run; so runs
add up as if the client with the most updates were the same in all of them. Runs without secret noise protect nothing
and have no entry.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from shoal.core.durable import lock_if_free, private_folder, sync_folder
from shoal.core.errors import short_text
from shoal.core.records import record_from_json, record_to_json
from shoal.core.seal import SEAL
from shoal.data.sets.prepare import is_built_in, resolve
from shoal.engine.rounds.privacy import Ledger, Spent, epsilon
from shoal.engine.settings import places
from shoal.engine.settings.sections import DataSection
from shoal.engine.store.codec import PRIVATE, StoreError, read_json, read_sealed, write_sealed, writing
from shoal.engine.store.embedded import embedded_set

FOLDER = "privacy"


def set_name(data: DataSection) -> str:
    """Return the name of the set of a run's samples, without options; of embedded images, the set of the images.

    >>> set_name(DataSection(name="gaussian-clusters10", options={"seed": 3}))
    'gaussian'
    """
    return _origin(data.name, data.options)


def _origin(name: str, options: dict[str, int]) -> str:
    origin = embedded_set(name)
    if origin is not None and origin.images != name:  # else the vectors have replaced their images
        return _origin(origin.images, {})
    if not is_built_in(name):
        return name
    return resolve(name, options)[0].name


@dataclass
class SetLedger:
    """The file that adds up the privacy loss of one data set.

    Args:
        path: the file.
        name: name of the set.
    """

    path: Path
    name: str

    @classmethod
    def from_settings(cls, data: DataSection) -> SetLedger:
        """Return the ledger of a run's data set, in the home folder."""
        name = set_name(data)
        return cls(places.home() / FOLDER / f"{quote(name, safe='')}.json", name)

    @contextlib.contextmanager
    def changing(self) -> Iterator[dict[str, Ledger]]:
        """Lock the ledger, yield its entries by run, and write them at the end of this context.

        Raises:
            StoreError: it is damaged, or cannot be written; the file stays unchanged.
        """
        with self._locked():
            runs = self.runs()
            yield runs
            entries = {name: record_to_json(ledger) for name, ledger in runs.items()}
            write_sealed(self.path, {"data": self.name, "runs": entries}, mode=PRIVATE)
            sync_folder(self.path.parent)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other runs out, for the short time of writing a small file."""
        path = self.path.with_suffix(".lock")
        with writing(path):
            private_folder(path.parent)
            path.touch()
        with lock_if_free(path, math.inf):
            yield

    def runs(self) -> dict[str, Ledger]:
        """Return the ledgers by name of their run; empty if there was no private run.

        Raises:
            StoreError: the file is damaged.
        """
        if not self.path.exists():
            return {}
        try:
            if SEAL not in read_json(self.path):
                raise ValueError("it has no seal")
            record = read_sealed(self.path)
            if record["data"] != self.name:
                raise ValueError(f"it belongs to data set {record['data']!r}")
            ledgers = {name: record_from_json(Ledger, entry) for name, entry in record["runs"].items()}
            if wrong := [name for name, ledger in ledgers.items() if not ledger.is_possible]:
                raise ValueError(f"the entry of run {wrong[0]!r} has numbers that no run can have")
            return ledgers
        except (StoreError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise StoreError(
                f"the privacy ledger of data set {self.name!r} is damaged: {self.path}: {short_text(error)}. Restore "
                "it from a backup: without it no private run can begin or resume, since earlier losses are unknown"
            ) from None

    def spent(self, delta: float) -> Spent:
        """Return epsilon of all private runs on the set together, for a delta."""
        return total(list(self.runs().values()), delta)


def total(ledgers: Sequence[Ledger], delta: float) -> Spent:
    """Return epsilon of several runs together."""
    return Spent(
        epsilon(sum(ledger.rho_sent for ledger in ledgers), delta),
        epsilon(sum(ledger.rho_mean for ledger in ledgers), delta),
    )
