"""Figures 5 and 6 of UIFCA: the effect of longer training on one cluster round."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from shoal.core.streams import Streams
from shoal.data.sets import synthetic
from shoal.methods.scores.clustering import purity
from shoal.methods.uifca.quality import majority
from shoal.models.normalising_flows import Flow
from shoal_research.uifca.flows import descend, make_flow


def longer_training(settings: dict[str, Any], seed: int, folder: Path) -> dict[str, float]:
    """Simulate one cluster round on two Gaussian clusters: purity and losses after each epoch, with its steps.

    An epoch over more points has more steps: over epochs, figure 6 mixes the two effects. With `steps` the flows take
    the same number of steps, whatever the number of points.

    Points start in their true cluster with probability `right`. One flow is trained on each cluster; after each epoch
    all points are given to the likelier flow.

    Args:
        settings: points (in all), dimension, right, flow, width, epochs or steps (of each flow), batch, lr (Adam).
        seed: of the points, the first assignment, weights and batches.
        folder: unused.

    Returns:
        `purity_first` (of the first assignment), `purity_best` over epochs, `purity_last`, `epoch_best`, `steps_best`,
        `steps_last`, and `apart`: the share of epochs after which the wrong points of cluster 1 were, on average,
        likelier under flow 2 (figure 6c: all).
    """
    x, truth, cluster = draw_points(settings, seed)
    arguments = (settings["flow"], (settings["dimension"],), settings["width"])
    flows = [make_flow(seed, f"overfitting flow {k}", *arguments) for k in range(2)]
    optimisers = [torch.optim.Adam(flow.parameters(), settings["lr"]) for flow in flows]
    per_epoch = math.ceil(int((cluster == 0).sum()) / settings["batch"])
    if "steps" in settings:
        epochs = max(1, round(settings["steps"] / per_epoch))
    else:
        epochs = settings["epochs"]
    wrong = (cluster == 0) & ~majority(truth, cluster)
    table = []
    for epoch in range(1, epochs + 1):
        for k in range(2):
            own = x[cluster == k]
            order = torch.randperm(len(own), generator=Streams(seed, epoch, k).torch("overfitting batches"))
            train_epoch(flows[k], optimisers[k], own[order], settings["batch"])
        with torch.no_grad():
            losses = torch.stack([-flow.eval().log_prob(x) for flow in flows], 1)
        found = purity(truth.numpy(), losses.argmin(1).numpy())
        apart = bool(losses[wrong, 1].mean() < losses[wrong, 0].mean())
        table.append({"epoch": epoch, "steps": epoch * per_epoch, "purity": found, "apart": apart})
    return {"purity_first": purity(truth.numpy(), cluster.numpy()), **summary(pd.DataFrame(table))}


def draw_points(settings: dict[str, Any], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return points (n, d), their true clusters and their first assignment, int64 (n,)."""
    count = settings["points"]
    x, y = synthetic.gaussian(2, count // 2, settings["dimension"], seed)
    truth = torch.from_numpy(y)
    draw = Streams(seed).torch("overfitting assignment")
    cluster = torch.where(torch.rand(count, generator=draw) < settings["right"], truth, 1 - truth)
    return torch.from_numpy(x), truth, cluster


def summary(frame: pd.DataFrame) -> dict[str, float]:
    """Return the metrics of `longer_training` but the first purity, given a row an epoch."""
    best = int(np.argmax(frame["purity"].to_numpy()))
    return {
        "purity_best": float(frame["purity"][best]),
        "purity_last": float(frame["purity"].iloc[-1]),
        "epoch_best": float(frame["epoch"][best]),
        "steps_best": float(frame["steps"][best]),
        "steps_last": float(frame["steps"].iloc[-1]),
        "apart": float(frame["apart"].mean()),
    }


def train_epoch(flow: Flow, optimiser: torch.optim.Optimizer, points: Tensor, batch: int) -> None:
    """Train a flow for one pass over the points of a cluster, in their order."""
    flow.train()
    for rows in points.split(batch):
        loss = -flow.log_prob(rows).mean()
        descend(optimiser, loss)
