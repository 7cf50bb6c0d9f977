"""The number of clusters of five kinds of tables that chose no rule, at five sites that differ by offsets.

    python -m shoal_research.label_free.own_tables FILE        # an hour on a core

Each table is dealt to five sites, evenly or by Dirichlet(.1); columns of each site are moved by some of their
deviations. `method.name` and `model.clusters` are auto. Before: the number that is sought without taking offsets off,
and a run with it; after: a run as it is. Lines of the file are records as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import shoal

SITES = 5
SEEDS = 3
CASES = (("even", 0.0), ("Dirichlet", 0.0), ("even", 0.8), ("Dirichlet", 0.8), ("even", 2.5))
Table = tuple[np.ndarray, np.ndarray]


def labels(rng: np.random.Generator, count: int, kinds: int, ratio: float) -> np.ndarray:
    """Return kinds int (count,), the first `ratio` times as frequent as the last."""
    share = ratio ** (-np.arange(kinds) / (kinds - 1))
    return rng.choice(kinds, count, p=share / share.sum())


def heavy(rng: np.random.Generator) -> Table:
    """Draw five kinds, 3:1, with heavy tails."""
    y = labels(rng, 800, 5, 3)
    means = rng.normal(size=(5, 6)) * 4
    return means[y] + rng.standard_t(5, size=(800, 6)), y


def sensors(rng: np.random.Generator) -> Table:
    """Draw four kinds in columns of several units, half of which tell nothing."""
    y = labels(rng, 700, 4, 1)
    means = np.zeros((4, 12))
    means[:, :6] = rng.normal(size=(4, 6)) * 2.5
    return (means[y] + rng.normal(size=(700, 12))) * 10.0 ** rng.uniform(-1, 3, 12) + 50, y


def ellipses(rng: np.random.Generator) -> Table:
    """Draw six kinds, each stretched to 1:3 its own way."""
    y = labels(rng, 900, 6, 1)
    x = np.zeros((900, 8))
    means = rng.normal(size=(6, 8)) * 3
    for kind in range(6):
        axes = np.linalg.qr(rng.normal(size=(8, 8)))[0] * np.geomspace(0.5, 1.5, 8)
        x[y == kind] = means[kind] + rng.normal(size=(int((y == kind).sum()), 8)) @ axes.T
    return x, y


def pair(rng: np.random.Generator) -> Table:
    """Draw two kinds, 2:1, five deviations apart."""
    y = labels(rng, 500, 2, 2)
    means = rng.normal(size=(2, 4))
    means *= 5 / np.linalg.norm(means[0] - means[1])
    return means[y] + rng.normal(size=(500, 4)), y


def logs(rng: np.random.Generator) -> Table:
    """Draw three kinds of lognormal amounts."""
    y = labels(rng, 600, 3, 1)
    means = rng.normal(2, 0.5, 10) + rng.normal(size=(3, 10)) * 0.9
    return np.exp((means[y] + rng.normal(size=(600, 10)) * 0.35) * 0.6), y


KINDS: Mapping[str, Callable[[np.random.Generator], Table]] = {
    "heavy": heavy,
    "sensors": sensors,
    "ellipses": ellipses,
    "pair": pair,
    "logs": logs,
}


def dealt(y: np.ndarray, dealing: str, rng: np.random.Generator) -> np.ndarray:
    """Return the site of each row, int (n,)."""
    if dealing == "even":
        return rng.integers(0, SITES, len(y))
    site = np.zeros(len(y), int)
    for kind in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == kind))
        ends = np.cumsum(rng.dirichlet([0.1] * SITES))[:-1] * len(rows)
        site[rows] = np.searchsorted(ends, np.arange(len(rows)), side="right")
    return site


def record(kind: str, dealing: str, deviations: float, seed: int) -> dict[str, Any]:
    """Return the number and the scores of a table, before and after."""
    rng = np.random.default_rng([seed, sum(map(ord, kind))])
    x, y = KINDS[kind](rng)
    site = dealt(y, dealing, rng)
    x = x + (deviations * rng.normal(size=(SITES, x.shape[1])) * x.std(0))[site]
    columns = {f"c{number}": x[:, number] for number in range(x.shape[1])}
    found: dict[str, Any] = {"kind": kind, "dealing": dealing, "deviations": deviations, "seed": seed}
    with tempfile.TemporaryDirectory() as home:
        os.environ["SHOAL_HOME"] = home
        file = Path(home) / "mine.csv"
        pd.DataFrame({"client": [f"s{s}" for s in site], "kind": y, **columns}).to_csv(file, index=False)
        shoal.add_data(file, "mine", label_column="kind")
        settings = {
            "data.name": "mine",
            "partition.kind": "by_column",
            "method.name": "auto",
            "seed": seed,
            "tracking.mlflow": False,
            "tracking.prefect": "off",
        }
        found["after"] = scores(settings, "auto")
        try:
            ignored = shoal.run({**settings, "model.clusters": "auto", "method.sites": "ignore"})
            found["before"] = scores(settings, ignored.settings.model.clusters)
        except shoal.ShoalError as error:
            found["before"] = str(error)
    return found


def scores(settings: Mapping[str, Any], clusters: int | str) -> dict[str, Any]:
    """Return number of clusters, ACC and ARI of a run."""
    run = shoal.run({**settings, "model.clusters": clusters})
    metrics = run.result.metrics
    return {"number": run.settings.model.clusters, "acc": metrics["acc"], "ari": metrics["ari"]}


if __name__ == "__main__":
    with open(sys.argv[1], "a", encoding="utf-8") as lines:
        for seed in range(SEEDS):
            for kind in KINDS:
                for dealing, deviations in CASES:
                    print(json.dumps(record(kind, dealing, deviations, seed)), file=lines, flush=True)
