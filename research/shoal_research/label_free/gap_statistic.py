"""The number of clusters of the tuning tables by the gap statistic (Tibshirani, Walther and Hastie 2001).

    python -m shoal_research.label_free.gap_statistic FILE        # some minutes on a core

Rows are pooled, in columns as `method: auto` has them. Of each number from 1 to 15 the logarithm of K-means' sum of
squares is compared with that of uniform samples in the box of the principal axes; the smallest number counts whose gap
is at least the next one's less its deviation. The file gets the numbers by table, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from shoal.methods.clustering.k_means import kmeans
from shoal_research.label_free.sites import evened, some_of
from shoal_research.label_free.tuning_sets import TABLES

MOST = 15
REFERENCES = 20
STARTS = 3


def log_costs(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the logarithm of K-means' sum of squares of rows (n, d) for 1 to `MOST` clusters, (`MOST`,)."""
    found = []
    for clusters in range(1, MOST + 1):
        result = kmeans(x, clusters, rng, starts=STARTS)
        found.append(np.log(((x - result.centres[result.cluster]) ** 2).sum()))
    return np.array(found)


def gap_number(x: np.ndarray, rng: np.random.Generator) -> int:
    """Return the number of clusters of rows (n, d); `MOST` where no gap is large enough."""
    axes = np.linalg.svd(x - x.mean(0), full_matrices=False)[2]
    z = (x - x.mean(0)) @ axes.T
    drawn = np.stack([log_costs(rng.uniform(z.min(0), z.max(0), z.shape), rng) for _ in range(REFERENCES)])
    gap = drawn.mean(0) - log_costs(z, rng)
    deviation = drawn.std(0) * np.sqrt(1 + 1 / REFERENCES)
    enough = np.flatnonzero(gap[:-1] >= gap[1:] - deviation[1:])
    return int(enough[0]) + 1 if len(enough) else MOST


if __name__ == "__main__":
    numbers = {}
    with threadpool_limits(1):
        for name, make in TABLES.items():
            rows, y = some_of(make)
            number = gap_number(evened(np.asarray(rows, dtype=float)), np.random.default_rng(0))
            numbers[name] = [len(np.unique(y)), number]
            print(name, numbers[name], file=sys.stderr, flush=True)
    Path(sys.argv[1]).write_text(json.dumps(numbers) + "\n")
