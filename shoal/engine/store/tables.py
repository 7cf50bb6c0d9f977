"""The tables of a run, made from the manifests of its rounds: rounds and clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pandas as pd

from shoal.engine.store.manifest import COUNTED, Manifest, RoundRecord

Row = dict[str, Any]


def round_rows(manifest: Manifest, record: RoundRecord) -> Iterator[Row]:
    """Yield the row of a round."""
    yield {
        "round": manifest.round,
        "clients": len(record.clients),
        "left_out": len(record.left_out),
        **{name: sum(getattr(row, name) for row in record.clients) for name in ("bytes_up", "bytes_down", "bytes_d2d")},
        **{f"seconds_{step}": seconds for step, seconds in vars(record.seconds).items()},
        "finished_at": manifest.finished_at,
        **dict(sorted(record.metrics.items())),
    }


def client_rows(manifest: Manifest, record: RoundRecord) -> Iterator[Row]:
    """Yield a row for each client of a round."""
    for row in record.clients:
        counted = {name: getattr(row, name) for name in COUNTED[1:]}
        yield {"round": manifest.round, **counted, **dict(sorted(row.metrics.items()))}


TABLES: dict[str, Callable[[Manifest, RoundRecord], Iterator[Row]]] = {
    "rounds": round_rows,
    "clients": client_rows,
}
"""What yields the rows of each table from a manifest."""


def make_tables(manifests: Iterable[Manifest]) -> dict[str, pd.DataFrame]:
    """Return the tables of the rounds with these manifests, by name; round 0 has no rows."""
    rows: dict[str, list[Row]] = {name: [] for name in TABLES}
    for manifest in manifests:
        if manifest.record is not None:
            for name, rows_of in TABLES.items():
                rows[name] += rows_of(manifest, manifest.record)
    return {name: pd.DataFrame(rows[name]) for name in TABLES}
