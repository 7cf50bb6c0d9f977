"""The tables of a run, made from the manifests of its rounds: rounds and clients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from shoal.engine.store.manifest import COUNTED, Manifest, RoundRecord

Row = dict[str, Any]
TABLES = ("rounds", "clients")


def round_row(manifest: Manifest, record: RoundRecord) -> Row:
    """Return the row of a round."""
    return {
        "round": manifest.round,
        "clients": len(record.clients),
        "left_out": len(record.left_out),
        **{name: sum(getattr(row, name) for row in record.clients) for name in ("bytes_up", "bytes_down", "bytes_d2d")},
        **{f"seconds_{step}": seconds for step, seconds in vars(record.seconds).items()},
        "finished_at": manifest.finished_at,
        **dict(sorted(record.metrics.items())),
    }


def make_tables(manifests: Iterable[Manifest]) -> dict[str, pd.DataFrame]:
    """Return the tables of the rounds with these manifests, by name; round 0 has no rows."""
    rounds = []
    clients = []
    for manifest in manifests:
        if manifest.record is not None:
            rounds.append(round_row(manifest, manifest.record))
            for row in manifest.record.clients:
                counted = {name: getattr(row, name) for name in COUNTED[1:]}
                clients.append({"round": manifest.round, **counted, **dict(sorted(row.metrics.items()))})
    return {"rounds": pd.DataFrame(rounds), "clients": pd.DataFrame(clients)}
