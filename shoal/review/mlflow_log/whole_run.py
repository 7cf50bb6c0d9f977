"""A check of every file of a finished run against its digest, before the run is copied to another place."""

from __future__ import annotations

from shoal.engine.store.checkpoint import load_manifest
from shoal.engine.store.codec import StoreError
from shoal.engine.store.kept_state import read_state
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.tables import TABLES
from shoal.review.mlflow_log.rounds import lost_rounds
from shoal.review.results.clusters import CENTRES, FEATURES, read_cluster_tensors, read_clusters


def check_whole(run: RunFolder) -> None:
    """Refuse a finished run with a damaged file; figures and the report, which are views, are not checked.

    Raises:
        StoreError, RunError: names the run, the file, and what to do.
    """
    run.settings()
    run.whole_events()
    for name in TABLES:
        run.table(name)
    lost = lost_rounds(run)
    for round in range(run.status().round + 1):
        if round in lost:
            continue
        try:
            load_manifest(run, round)
        except StoreError as error:
            raise StoreError(
                f"run {run.name}: {error}; `shoal run --resume {run.name}` writes the tables without round {round}"
            ) from error
    read_state(run)
    read_clusters(run)
    for name in (CENTRES, FEATURES):
        read_cluster_tensors(run, name)
