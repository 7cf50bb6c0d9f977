"""UIFCA's table 1 and figure 3: affine flows of all clients and clusters trained side by side.

The draws, steps and averages are those of `shoal.methods.uifca.uifca` with `flow: affine` and SGD without momentum.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from shoal.core.streams import Streams
from shoal.data.partition.deal import NOBODY, deal_majority
from shoal.data.sets import synthetic
from shoal.methods.clustering.k_means import kmeans
from shoal.methods.scores.clustering import purity
from shoal.methods.uifca.flow_method import minibatches
from shoal.methods.uifca.kfed import local_clustering
from shoal.review.pages.figures import save
from shoal_research.definition import Study
from shoal_research.figures import draw_band, label_panel
from shoal_research.table import Group, Table

BATCH = 100
"""Points in a step."""


def table1(settings: dict[str, Any], seed: int, folder: Path) -> dict[str, float]:
    """Simulate a cell of table 1: purity of UIFCA or k-FED on synthetic points.

    Returns:
        `purity`; for UIFCA also the number of `cluster_rounds`, `purity/0` (at random) to `purity/T` after each, and
        `rounds_to_all`: the first with every point in its cluster, T + 1 where there is none.
    """
    x, truth = federated_points(settings, seed)
    clusters = settings["clusters"]
    last = settings["cluster_rounds"]
    if settings["method"] == "kfed":
        return {"purity": purity(truth.ravel(), kfed_clusters(x, clusters, seed))}
    starts = affine_starts(clusters, settings["dimension"], settings["spread"], seed)
    schedule = (last, settings["comm_rounds"], settings["steps"])
    _, assignments = run_batched(x, starts, schedule, lr=settings["lr"], seed=seed)
    purities = [purity(truth.ravel(), assignment.numpy().ravel()) for assignment in assignments]
    # Once no assignment changes, later rounds keep it.
    purities += purities[-1:] * (last + 1 - len(purities))
    return {
        "purity": purities[-1],
        "cluster_rounds": float(len(assignments) - 1),
        "rounds_to_all": float([*purities, 1.0].index(1.0)),
        **{f"purity/{t}": value for t, value in enumerate(purities)},
    }


def federated_points(settings: dict[str, Any], seed: int) -> tuple[Tensor, np.ndarray]:
    """Return synthetic points of equally large clients: x (clients, points, d) and true clusters (clients, points)."""
    k = settings["clusters"]
    d = settings["dimension"]
    if settings["data"] == "gaussian":
        x, y = synthetic.gaussian(k, settings["points"], d, seed)
    else:
        x, y = synthetic.subspace(k, settings["points"], d, settings["rank"], seed)
    owner = deal_majority(y, np.arange(k), k, settings["p"], Streams(seed).numpy("partition majority"))
    assert not (owner == NOBODY).any()
    order = np.argsort(owner, kind="stable")
    return torch.from_numpy(x[order].reshape(k, -1, d)), y[order].reshape(k, -1)


def affine_starts(clusters: int, dimension: int, spread: float, seed: int) -> Tensor:
    """Return the K starts of affine flows, as the method `uifca` makes them: identity and zero, plus N(0, spread^2)."""
    common = torch.cat((torch.eye(dimension).flatten(), torch.zeros(dimension)))
    generators = [Streams(seed).torch(f"flow start {k}") for k in range(clusters)]
    return torch.stack([common + spread * torch.randn(len(common), generator=one) for one in generators])


def run_batched(
    x: Tensor, starts: Tensor, schedule: tuple[int, int, int], *, lr: float, seed: int, batch: int = BATCH
) -> tuple[Tensor, list[Tensor]]:
    """Run UIFCA on clients with equally many points.

    Args:
        x: points, float32 (clients, points, d).
        starts: the K flows that every cluster round begins from: matrix, then shift, (K, d * d + d).
        schedule: T, tau and M; the run ends early where no assignment changes.
        lr: learning rate of SGD.
        seed: of the run.
        batch: points in a step.

    Returns:
        The flows, and the assignment at the start of each cluster round, then the final one, int64 (clients, points).
    """
    cluster_rounds, comm_rounds, steps = schedule
    draws = [Streams(seed, 1, client).torch("assignment") for client in range(len(x))]
    assignments = [torch.stack([torch.randint(len(starts), (x.shape[1],), generator=draw) for draw in draws])]
    flows = starts
    for t in range(cluster_rounds):
        flows = starts
        parts = by_cluster(x, assignments[-1], len(starts))
        for round in range(t * comm_rounds + 1, (t + 1) * comm_rounds + 1):
            streams = [Streams(seed, round, client) for client in range(len(x))]
            rows = [minibatches(streams[i], k, len(points), steps, batch) for (i, k), points in parts.items()]
            flows = communication_round(parts, flows, starts, torch.stack(rows, 1), lr)
        losses = affine_loss(flows, x.flatten(0, 1)[None]).nan_to_num(nan=float("inf"))
        assignments.append(losses.argmin(0).view(x.shape[:2]))
        if torch.equal(assignments[-1], assignments[-2]):
            break
    return flows, assignments


def by_cluster(x: Tensor, assignment: Tensor, clusters: int) -> dict[tuple[int, int], Tensor]:
    """Return the points (n, d) of each client in each cluster that has any, by their numbers."""
    parts = {(i, k): x[i][own == k] for i, own in enumerate(assignment) for k in range(clusters)}
    return {pair: points for pair, points in parts.items() if len(points)}


def affine_loss(flows: Tensor, x: Tensor) -> Tensor:
    """Return -log p without its constant, of points x (k or 1, n, d) under flows (k, d * d + d): (k, n)."""
    d = x.shape[-1]
    matrix = flows[:, : d * d].view(-1, d, d)
    z = (x - flows[:, None, d * d :]) @ matrix.mT
    loss: Tensor = 0.5 * z.square().sum(-1) - torch.linalg.slogdet(matrix)[1][:, None]
    return loss


def communication_round(
    parts: dict[tuple[int, int], Tensor], flows: Tensor, starts: Tensor, rows: Tensor, lr: float
) -> Tensor:
    """Take the local steps of every (client, cluster), then average each flow by points.

    The mean loss of z = A (x - b) has the gradients A mean((x - b) (x - b)^T) - A^-T in A, and -A^T A mean(x - b) in b.

    Args:
        parts: as of `by_cluster`.
        flows: (K, p).
        starts: (K, p), of flows that nobody trained.
        rows: of the minibatches among the points of a part, int64 (steps, parts, batch).
        lr: learning rate.
    """
    clusters = torch.tensor([k for _, k in parts])
    sizes = torch.tensor([len(points) for points in parts.values()])
    points = torch.cat(list(parts.values()))
    d = points.shape[1]
    matrix = flows[clusters, : d * d].view(-1, d, d)
    shift = flows[clusters, None, d * d :]
    inverse = torch.linalg.inv(matrix)
    for step in rows + (sizes.cumsum(0) - sizes)[:, None]:
        offset = points[step] - shift
        second = offset.mT @ offset / step.shape[1]
        shift = shift + lr * (offset.mean(1, keepdim=True) @ matrix.mT @ matrix)
        matrix = matrix - lr * (matrix @ second - inverse.mT)
        # A Newton step: exact to second order, since the step is small.
        inverse = 2 * inverse - inverse @ matrix @ inverse
    trained = torch.cat((matrix.flatten(1), shift.flatten(1)), 1)
    weights = F.one_hot(clusters, len(flows)).T * (sizes * torch.isfinite(trained).all(1)).double()
    total = weights.sum(1, keepdim=True)
    averages = weights @ trained.double().nan_to_num() / total.clamp(min=1)
    return torch.where(total > 0, averages.float(), starts)


def kfed_clusters(x: Tensor, clusters: int, seed: int) -> np.ndarray:
    """Run k-FED on points (clients, points, d), and return the cluster of each point, client after client."""
    draws = [Streams(seed, 1, client).numpy("kfed") for client in range(len(x))]
    local = [local_clustering(own, clusters, draw, min_points=2) for own, draw in zip(x.numpy(), draws, strict=True)]
    centres = np.concatenate([one.centres for one in local])
    labels = kmeans(centres, clusters, Streams(seed).numpy("kfed server")).cluster
    firsts = np.cumsum([0, *(len(one.centres) for one in local)])
    return np.concatenate([labels[first + one.cluster] for first, one in zip(firsts, local, strict=False)])


def purity_rounds(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Draw figure 3: purity over cluster rounds, a line a column (heterogeneity p) and a panel a row.

    Kept cells lack most of the rounds, and are not drawn.
    """
    groups = [group for group in groups if all("purity/0" in metrics for metrics in group.metrics.values())]
    rows = {group.row.key: group.row for group in groups}
    if not rows:
        return {}
    figure = Figure(figsize=(5.5 * len(rows), 4), layout="constrained")
    for axes, (key, row) in zip(figure.subplots(1, len(rows), squeeze=False)[0], rows.items(), strict=True):
        for group in groups:
            if group.row.key == key:
                curves = (
                    pd.DataFrame(group.metrics.values())
                    .filter(like="purity/")
                    .rename(columns=lambda name: int(name[7:]))
                )
                draw_band(axes, curves.melt(var_name="round"), "round", "value", group.column.caption)
        label_panel(axes, "cluster round", "purity", title=row.caption, ylim=(0, 1.02))
    save(figure, folder / "purity-rounds.png")
    return {}
