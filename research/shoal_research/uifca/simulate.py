"""Simulations and figures of the UIFCA studies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from shoal.core.streams import Streams
from shoal.data.partition.deal import NOBODY, deal_majority
from shoal.data.sets import synthetic
from shoal.methods.clustering.k_means import kmeans
from shoal.methods.scores.clustering import purity
from shoal.methods.uifca.kfed import local_clustering
from shoal.review.pages.figures import save
from shoal_research.definition import Study
from shoal_research.figures import draw_band, label_panel
from shoal_research.table import Group, Table
from shoal_research.uifca.batched import run_batched


def federated_points(settings: dict[str, Any], seed: int) -> tuple[Tensor, np.ndarray]:
    """Return synthetic points of equally large clients: x (clients, points, d) and true clusters (clients, points)."""
    k = settings["clusters"]
    n = settings["points"]
    d = settings["dimension"]
    if settings["data"] == "gaussian":
        x, y = synthetic.gaussian(k, n, d, seed)
    else:
        x, y = synthetic.subspace(k, n, d, settings["rank"], seed)
    owner = deal_majority(y, np.arange(k), k, settings["p"], Streams(seed).numpy("partition majority"))
    assert not (owner == NOBODY).any()
    order = np.argsort(owner, kind="stable")
    return torch.from_numpy(x[order].reshape(k, -1, d)), y[order].reshape(k, -1)


def affine_starts(clusters: int, dimension: int, spread: float, seed: int) -> Tensor:
    """Return the K starts of affine flows, as the method `uifca` makes them: identity and zero, plus N(0, spread^2)."""
    common = torch.cat((torch.eye(dimension).flatten(), torch.zeros(dimension)))
    rows = []
    for k in range(clusters):
        noise = torch.randn(len(common), generator=Streams(seed).torch(f"flow start {k}"))
        rows.append(common + spread * noise)
    return torch.stack(rows)


def table1(settings: dict[str, Any], seed: int, folder: Path) -> dict[str, float]:
    """Simulate a cell of table 1: purity of UIFCA or k-FED on synthetic points.

    Returns:
        `purity`; for UIFCA also the number of `cluster_rounds`, `purity/0` (at random) to `purity/T` after each, and
        `rounds_to_all`: the first with every point in its cluster, T + 1 where there is none.
    """
    x, truth = federated_points(settings, seed)
    if settings["method"] == "kfed":
        return {"purity": purity(truth.ravel(), kfed_clusters(x, settings["clusters"], seed))}
    found = run_batched(
        x,
        affine_starts(settings["clusters"], settings["dimension"], settings["spread"], seed),
        seed=seed,
        lr=settings["lr"],
        batch=100,
        cluster_rounds=settings["cluster_rounds"],
        comm_rounds=settings["comm_rounds"],
        steps=settings["steps"],
    )
    purities = [purity(truth.ravel(), a.numpy().ravel()) for a in found.assignments]
    # Once no assignment changes, later rounds keep it.
    purities += purities[-1:] * (settings["cluster_rounds"] + 1 - len(purities))
    after = {f"purity/{t}": value for t, value in enumerate(purities)}
    to_all = next((t for t, value in enumerate(purities) if value == 1.0), settings["cluster_rounds"] + 1)
    rounds = {"cluster_rounds": float(found.cluster_rounds), "rounds_to_all": float(to_all)}
    return {"purity": purities[-1], **rounds, **after}


def purity_rounds(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Draw figure 3: purity over cluster rounds, a line a column (heterogeneity p) and a panel a row.

    Kept cells lack most of the rounds, and are not drawn.
    """
    groups = [group for group in groups if all("purity/0" in metrics for metrics in group.metrics)]
    if not groups:
        return {}
    rows = list({cell.row.key: cell.row for cell in groups}.values())
    figure = Figure(figsize=(5.5 * len(rows), 4), layout="constrained")
    for axes, row in zip(figure.subplots(1, len(rows), squeeze=False)[0], rows, strict=True):
        for cell in groups:
            if cell.row.key != row.key:
                continue
            points = [
                (int(key.partition("/")[2]), value)
                for metrics in cell.metrics
                for key, value in metrics.items()
                if key.startswith("purity/")
            ]
            table = pd.DataFrame(points, columns=["round", "purity"])
            draw_band(axes, table, "round", "purity", cell.column.caption)
        label_panel(axes, "cluster round", "purity", title=row.caption, ylim=(0, 1.02))
    save(figure, folder / "purity-rounds.png")
    return {}


def kfed_clusters(x: Tensor, clusters: int, seed: int) -> np.ndarray:
    """Run k-FED on points (clients, points, d), and return the cluster of each point, client after client."""
    local = []
    centres = []
    for i, points in enumerate(x.numpy()):
        found = local_clustering(points, clusters, Streams(seed, 1, i).numpy("kfed"), min_points=2)
        local.append(found.cluster)
        centres.append(found.centres)
    labels = kmeans(np.concatenate(centres), clusters, Streams(seed).numpy("kfed server")).cluster
    firsts = np.cumsum([0, *map(len, centres)])
    return np.concatenate([labels[first + own] for first, own in zip(firsts, local, strict=False)])
