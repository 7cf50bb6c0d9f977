"""Figures 5 and 6 of UIFCA: the effect of longer training on one cluster round, and of held-out likelihoods."""

from __future__ import annotations

import math
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Points:
    """The points of one cluster round.

    Attributes:
        x: float32 (n, d).
        y: the true cluster, int64 (n,).
        cluster: the assigned cluster, int64 (n,).
        trained: which points the flows are trained on, bool (n,).
        counted: which points purity is computed on, bool (n,).
    """

    x: Tensor
    y: Tensor
    cluster: Tensor
    trained: Tensor
    counted: Tensor

    def purity(self, assignment: Tensor) -> float:
        """Return the purity of an assignment (n,) of the points that count."""
        return purity(self.y[self.counted].numpy(), assignment[self.counted].numpy())


def longer_training(settings: dict[str, Any], seed: int, folder: Path) -> dict[str, float]:
    """Simulate one cluster round on two Gaussian clusters: purity and losses after each epoch, with its steps.

    An epoch over more points has more steps: over epochs, figure 6 mixes the two effects. With `steps` the flows take
    the same number of steps, whatever the number of points.

    Points start in their true cluster with probability `right`. One flow is trained on each cluster; after each epoch
    all points that count are given to the likelier flow. With `held_out` the flows are trained on one half of the
    points, and the other half counts (as `folds: 2` of the method does). With `watch`, this share of the points is
    held out of training and still counts (as `stop: validation` of the method does).

    Where points are held out, their mean loss under the flow of their cluster says when to stop, without any truth.

    Args:
        settings: points (in all), dimension, right, held_out, watch (by default 0), flow, width, epochs or steps (of
            each flow), batch, lr (Adam).
        seed: of the points, the first assignment, weights and batches.
        folder: unused.

    Returns:
        `purity_first` (of the first assignment), `purity_best` over epochs, `purity_last`, `epoch_best`, `steps_best`,
        `steps_last`, and `apart`: the share of epochs after which the wrong points of cluster 1 were, on average,
        likelier under flow 2 (figure 6c: all). Where points are held out, also `purity_stopped`, `epoch_stopped` and
        `steps_stopped`: at the lowest mean loss of the held-out points.
    """
    points = draw_points(settings, seed)
    arguments = (settings["flow"], (settings["dimension"],), settings["width"])
    flows = [make_flow(seed, f"overfitting flow {k}", *arguments) for k in range(2)]
    optimisers = [torch.optim.Adam(flow.parameters(), settings["lr"]) for flow in flows]
    per_epoch = math.ceil(int((points.trained & (points.cluster == 0)).sum()) / settings["batch"])
    if "steps" in settings:
        epochs = max(1, round(settings["steps"] / per_epoch))
    else:
        epochs = settings["epochs"]
    table = []
    for epoch in range(1, epochs + 1):
        for k in range(2):
            own = points.x[points.trained & (points.cluster == k)]
            order = torch.randperm(len(own), generator=Streams(seed, epoch, k).torch("overfitting batches"))
            train_epoch(flows[k], optimisers[k], own[order], settings["batch"])
        with torch.no_grad():
            losses = torch.stack([-flow.eval().log_prob(points.x) for flow in flows], 1)
        table.append({"epoch": epoch, "steps": epoch * per_epoch, **measure(points, losses)})
    frame = pd.DataFrame(table)
    return summary(frame, points.purity(points.cluster))


def draw_points(settings: dict[str, Any], seed: int) -> Points:
    """Draw points, their first assignment, and which of them are held out of training."""
    count = settings["points"]
    x, y = synthetic.gaussian(2, count // 2, settings["dimension"], seed)
    truth = torch.from_numpy(y)
    draw = Streams(seed).torch("overfitting assignment")
    cluster = torch.where(torch.rand(count, generator=draw) < settings["right"], truth, 1 - truth)
    trained = torch.ones(count, dtype=torch.bool)
    if settings["held_out"]:
        held_out = count // 2
    else:
        held_out = int(settings.get("watch", 0.0) * count)
    if held_out:
        trained[torch.randperm(count, generator=draw)[:held_out]] = False
    if settings["held_out"]:
        counted = ~trained
    else:
        counted = torch.ones_like(trained)
    return Points(torch.from_numpy(x), truth, cluster, trained, counted)


def measure(points: Points, losses: Tensor) -> dict[str, float]:
    """Return purity, and mean losses of the wrong points of cluster 1 and of the held-out points.

    Args:
        points: of the round.
        losses: of each point under both flows (n, 2).
    """
    right = majority(points.y, points.cluster)
    wrong = points.counted & (points.cluster == 0) & ~right
    row = {f"wrong_{k + 1}": float(losses[wrong, k].mean()) for k in range(2)}
    row["purity"] = points.purity(losses.argmin(1))
    held_out = ~points.trained
    if held_out.any():
        row["kept_loss"] = float(losses[held_out].gather(1, points.cluster[held_out, None]).mean())
    return row


def summary(frame: pd.DataFrame, first: float) -> dict[str, float]:
    """Return the metrics of `longer_training`, given a row an epoch and the purity of the first assignment."""
    found: dict[str, float] = {}
    if "kept_loss" in frame:
        stop = int(np.argmin(frame["kept_loss"].to_numpy()))
        found = {f"{name}_stopped": float(frame[name][stop]) for name in ("purity", "epoch", "steps")}
    best = int(np.argmax(frame["purity"].to_numpy()))
    return found | {
        "purity_first": first,
        "purity_best": float(frame["purity"][best]),
        "purity_last": float(frame["purity"].iloc[-1]),
        "epoch_best": float(frame["epoch"][best]),
        "steps_best": float(frame["steps"][best]),
        "steps_last": float(frame["steps"].iloc[-1]),
        "apart": float((frame["wrong_2"] < frame["wrong_1"]).mean()),
    }


def train_epoch(flow: Flow, optimiser: torch.optim.Optimizer, points: Tensor, batch: int) -> None:
    """Train a flow for one pass over the points of a cluster, in their order."""
    flow.train()
    for rows in points.split(batch):
        loss = -flow.log_prob(rows).mean()
        descend(optimiser, loss)
