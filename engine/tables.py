"""The tables of a run, a row a round, a client's part in a round, and a message between clients: from the manifests."""

from __future__ import annotations

from collections import Counter
from typing import Any

from engine.manifest import Manifest, RoundRecord
from engine.run_folder import RunFolder


class RunTables:
    """rounds.parquet, clients.parquet and, where clients sent each other something, links.parquet.

    Attributes:
        seconds: how long each client's newest update took.
        refusals: in how many rounds each client was refused.
    """

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._rounds: list[dict[str, Any]] = []
        self._clients: list[dict[str, Any]] = []
        self._links: list[dict[str, Any]] = []
        self.seconds: dict[int, float] = {}
        self.refusals: Counter[int] = Counter()

    def add(self, manifest: Manifest) -> None:
        """Add a round; round 0 has no row."""
        record = manifest.record
        if record is None:
            return
        self._clients += [row.plain() for row in record.clients]
        self.seconds |= {row.client: row.seconds for row in record.clients}
        self.refusals = Counter(record.refusals) if record.refusals is not None else self.refused_by(record)
        self._links += [row.plain() for row in record.links]
        self._rounds.append(
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
        """In how many rounds each client was refused by the end of the round that follows those added."""
        return self.refusals + Counter(record.refused)

    def write(self) -> None:
        """Write all of them."""
        self._run.set_table("rounds", self._rounds)
        self._run.set_table("clients", self._clients)
        if self._links:
            self._run.set_table("links", self._links)
