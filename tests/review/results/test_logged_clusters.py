"""The table of clusters gives the numbers that were logged, whatever the method: both are of the same samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.workers.worker import Worker
from shoal.methods.registry import BUILT_IN as METHODS
from shoal.methods.scores.clustering import label_table
from shoal.methods.scores.evaluation import table_metrics
from shoal.review.results.clusters import can_have_clusters, cluster_facts, keep_clusters, read_clusters
from tests.conftest import SMALL
from tests.engine.test_recorded_bits import CASES, case_settings, write_sets
from tests.runs import straight

MAJORITY = {"partition": {"kind": "majority", "p": 0.5, "clients": 3}}
SLOW = ("uifca, images", "fedpnp, colour", "fedpnp, part of the clients")
"""Cases that judge clusters as another case of their method does."""
OTHERS: dict[str, dict[str, Any]] = {
    "fedsimclr_kmeans": {"method": {"name": "fedsimclr_kmeans", "kmeans_rounds": 3}, "rounds": 5},
}
"""Methods without a recorded case."""


def settings_by_method() -> dict[str, Any]:
    """Return small settings of each method whose samples have clusters, by name of case."""
    found = {}
    for name, case in CASES.items():
        kind = METHODS[case["method"]["name"]]
        if kind.finds_clusters and can_have_clusters(kind) and name not in SLOW:
            found[name] = case_settings(case)
    for name, case in OTHERS.items():
        found[name] = make_settings(merge({**SMALL, "method": {}}, {"data": {"limit": 160}}, case))
    return found


def test_every_method_that_finds_clusters_has_a_case() -> None:
    covered = {settings.method.name for settings in settings_by_method().values()}
    expected = {name for name, kind in METHODS.items() if kind.finds_clusters and can_have_clusters(kind)}
    assert expected - covered == set()


@pytest.mark.long
@pytest.mark.parametrize("name", list(settings_by_method()))
def test_the_table_gives_the_logged_scores(home: Path, name: str) -> None:
    write_sets()
    worker = Worker()
    run = straight(settings_by_method()[name], worker.handle)
    assert keep_clusters(run, worker.handle)
    logged = run.table("rounds").iloc[-1]
    table = read_clusters(run)
    assert table is not None
    labels = table["label"]
    truth = np.unique(labels.to_numpy().astype(str), return_inverse=True)[1]
    cluster = table["cluster"].to_numpy()
    owner = table["client"].fillna(-1).to_numpy(dtype=int)
    facts = cluster_facts(run)
    assert facts is not None
    parts = [owner == client for client in np.unique(owner)]
    tables = [label_table(cluster[here], truth[here], facts.clusters, len(set(truth))) for here in parts]
    for metric, value in table_metrics(np.sum(tables, axis=0)).items():
        assert value == pytest.approx(logged[metric], abs=1e-12), metric
