"""The tables of a run, made from its manifests."""

from __future__ import annotations

from collections import Counter
from typing import Any

from shoal.engine.store.client_seconds import ClientSeconds
from shoal.engine.store.manifest import Manifest, RoundRecord
from shoal.engine.store.run_folder import TABLES, RunFolder


class RunTables:
    """The tables rounds.parquet, clients.parquet and, if clients sent each other messages, links.parquet.

    Attributes:
        seconds: time of each client's newest update.
        measured_seconds: the sum of these.
        measured_samples: number of training samples of these clients.
        refusals: number of rounds in which each client was refused.
    """

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._new: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
        self.seconds = ClientSeconds()
        self.measured_seconds = 0.0
        self.measured_samples = 0
        self.refusals: Counter[int] = Counter()

    def add(self, manifest: Manifest) -> None:
        """Add the rows of a round in memory; round 0 has none."""
        record = manifest.record
        if record is None:
            return
        self._new["clients"] += [row.to_json() for row in record.clients]
        for row in record.clients:
            before = self.seconds.get(row.client)
            self.measured_seconds += row.seconds - (before or 0.0)
            if before is None:
                self.measured_samples += row.samples
            self.seconds[row.client] = row.seconds
        self.refusals = Counter(record.refusals)
        self._new["links"] += [row.to_json() for row in record.links]
        self._new["rounds"].append(
            {
                "round": manifest.round,
                "clients": len(record.clients),
                "left_out": len(record.left_out),
                **record.totals(),
                "seconds_train": record.seconds.train,
                "seconds_aggregate": record.seconds.aggregate,
                "seconds_evaluate": record.seconds.evaluate,
                "seconds_round": record.seconds.round,
                "finished_at": manifest.finished_at,
                **dict(sorted(record.metrics.items())),
            }
        )

    def refused_by(self, record: RoundRecord) -> Counter[int]:
        """Return in how many rounds each client was refused, with a round that is not added yet."""
        return self.refusals + Counter(record.refused)

    def begin(self) -> None:
        """Replace the tables by the rows that were added so far."""
        for name, rows in self._new.items():
            if rows or name != "links":
                self._run.set_table(name, rows)
        self._new = {name: [] for name in TABLES}

    def write(self) -> None:
        """Write the rows that were added since the last call."""
        for name, rows in self._new.items():
            if rows:
                self._run.add_rows(name, rows)
        self._new = {name: [] for name in TABLES}

    def end(self) -> None:
        """Merge all new rows into their tables, after the last round."""
        for name in TABLES:
            self._run.merge_new_rows(name)
