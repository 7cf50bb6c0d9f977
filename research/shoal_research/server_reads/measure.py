"""The share of patients whose measurements a server reads, on the table that a hospital would know.

The set is scikit-learn's breast cancer table: 569 patients, 30 measurements, dealt evenly to six clients.

    python -m shoal_research.server_reads.measure       # measures all cases, and writes the table of docs/privacy.md
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer

from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.opened_run import OpenedRun
from shoal.lifecycle.starting import new_run
from shoal.review.served.server_view import played
from shoal_research.kept import RESULTS
from shoal_research.own_sets import add_table, missing
from shoal_research.words import between, markdown_table

FILE = RESULTS / "server_reads.json"
PAGE = RESULTS.parents[2] / "docs" / "privacy.md"
BEGIN = "<!-- made by python -m shoal_research.server_reads.measure -->"
END = "<!-- end of what a server reads -->"
SET = "patients"
CLUSTERS = (2, 5, 8)
SEEDS = range(5)
BASE: Mapping[str, Any] = {
    "data": {"name": SET},
    "partition": {"kind": "iid", "clients": 6},
    "rounds": 60,
    "evaluate": {"every": 100},
    "workers": {"device": "cpu", "precision": "fp32", "slots": 1},
    "tracking": {"mlflow": False, "prefect": "off"},
}
CASES: Mapping[str, dict[str, Any]] = {
    "`fedkmeans`": {"method": {"name": "fedkmeans"}},
    "`fedkmeans`, `min_points: 10`": {"method": {"name": "fedkmeans", "min_points": 10}},
    "`fedkmeans`, `landmarks: 60`": {"method": {"name": "fedkmeans", "landmarks": 60}},
    "`fedkmeans`, `privacy.sums: masked`": {"method": {"name": "fedkmeans"}, "privacy": {"sums": "masked"}},
    "`kfed`": {"method": {"name": "kfed"}},
    "`kfed`, `min_points: 1`": {"method": {"name": "kfed", "min_points": 1}},
}
"""Settings of each row."""


def add_set() -> None:
    """Add the table to the store, if it is not there: all rows are trained on."""
    if missing([SET]):
        table = load_breast_cancer(as_frame=True).frame
        rows = table.assign(client=np.arange(len(table)) % 6)  # dealt again by each run
        add_table(SET, rows, label_column="target", licence="CC BY 4.0")


def measure() -> dict[str, Any]:
    """Return the shares of each case by number of clusters: those of each seed."""
    add_set()
    found: dict[str, Any] = {}
    for case, changes in CASES.items():
        for clusters in CLUSTERS:
            views = []
            for seed in SEEDS:
                more = {"model": {"clusters": clusters}, "seed": seed}
                run = new_run(make_settings(merge(dict(BASE), changes, more)))
                view, _ = played(OpenedRun(run), summed="privacy" in changes)
                views.append(view._asdict())
                print(case, clusters, seed, views[-1], flush=True)
            found.setdefault(case, {})[str(clusters)] = views
    return found


def table() -> str:
    """Return the shares of rows that are read exactly, the mean of the seeds and the largest, by case and clusters."""
    body = []
    for case, by_clusters in json.loads(FILE.read_text()).items():
        exact = [[view["exact"] for view in by_clusters[str(clusters)]] for clusters in CLUSTERS]
        wrong = [view["wrong"] / view["rows"] for views in by_clusters.values() for view in views]
        shares = [f"{np.mean(of_seeds):.1%} ({max(of_seeds):.1%})" for of_seeds in exact]
        body.append([case, *shares, f"{np.mean(wrong):.1%}"])
    return markdown_table(["rows read exactly (up to)", *(f"K = {k}" for k in CLUSTERS), "wrongly read"], body)


def page_with_table(page: str) -> str:
    """Return the text of the page with the table between the marks made again."""
    return between(page, BEGIN, END, table())


if __name__ == "__main__":
    FILE.write_text(json.dumps(measure(), indent=1) + "\n")
    PAGE.write_text(page_with_table(PAGE.read_text()))
