"""Every file of a finished run compared with what was written: before it is copied to another place."""

from __future__ import annotations

from engine.checkpoint import load_manifest
from engine.codec import StoreError
from engine.kept_state import read_state
from engine.run_folder import TABLES, RunFolder
from review.clusters import CENTRES, FEATURES, read_cluster_tensors, read_clusters
from review.mlflow_rounds import lost_rounds


def check_whole(run: RunFolder) -> None:
    """Refuse a finished run of which a file is damaged; figures and the report, which are views, are not looked at.

    Raises:
        StoreError, RunError: names the run, the file, and what to do.
    """
    run.settings()
    run.whole_events()
    for name in TABLES:
        run.table(name)
    lost = lost_rounds(run)
    for round in range(int(run.status()["round"]) + 1):
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
