"""Figures 5 and 6 of UIFCA: the effect of longer training on one cluster round."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal.core.streams import Streams
from shoal.data.sets import synthetic
from shoal.methods.scores.clustering import purity
from shoal.methods.training.steps import descend
from shoal.methods.uifca.quality import majority
from shoal_research.uifca.flows import make_flow


def longer_training(settings: dict[str, Any], seed: int, folder: Path) -> dict[str, float]:
    """Simulate one cluster round on two Gaussian clusters: purity and losses after each epoch.

    An epoch over more points has more steps: over epochs, figure 6 mixes the two effects. With `steps` the flows take
    the same number of steps, whatever the number of points.

    Points start in their true cluster with probability `right`. One flow is trained on each cluster; after each epoch
    all points are given to the likelier flow.

    Args:
        settings: points (in all), dimension, right, flow, width, epochs or steps (of each flow), batch, lr (Adam).
        seed: of the points, the first assignment, weights and batches.
        folder: unused.

    Returns:
        `purity_first` (of the first assignment), `purity_best` over epochs, `purity_last`, and `apart`: the share of
        epochs after which the wrong points of cluster 1 were, on average, likelier under flow 2 (figure 6c: all).
    """
    x, truth, cluster = draw_points(settings, seed)
    arguments = (settings["flow"], (settings["dimension"],), settings["width"])
    flows = [make_flow(seed, f"overfitting flow {k}", *arguments) for k in range(2)]
    optimisers = [torch.optim.Adam(flow.parameters(), settings["lr"]) for flow in flows]
    epochs = settings["epochs"]
    if "steps" in settings:
        steps_per_epoch = math.ceil(int((cluster == 0).sum()) / settings["batch"])
        epochs = max(1, round(settings["steps"] / steps_per_epoch))
    wrong = (cluster == 0) & ~majority(truth, cluster)
    purities = []
    apart = []
    for epoch in range(1, epochs + 1):
        for k in range(2):
            own = x[cluster == k]
            order = torch.randperm(len(own), generator=Streams(seed, epoch, k).torch("overfitting batches"))
            flows[k].train()
            for points in own[order].split(settings["batch"]):
                descend(-flows[k].log_prob(points).mean(), flows[k].parameters(), optimisers[k])
        with torch.no_grad():
            losses = torch.stack([-flow.eval().log_prob(x) for flow in flows], 1)
        purities.append(purity(truth.numpy(), losses.argmin(1).numpy()))
        apart.append(float(losses[wrong, 1].mean() < losses[wrong, 0].mean()))
    return {
        "purity_first": purity(truth.numpy(), cluster.numpy()),
        "purity_best": max(purities),
        "purity_last": purities[-1],
        "apart": sum(apart) / epochs,
    }


def draw_points(settings: dict[str, Any], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return points (n, d), their true clusters and their first assignment, int64 (n,)."""
    count = settings["points"]
    x, y = synthetic.gaussian(2, count // 2, settings["dimension"], seed)
    truth = torch.from_numpy(y)
    draw = Streams(seed).torch("overfitting assignment")
    cluster = torch.where(torch.rand(count, generator=draw) < settings["right"], truth, 1 - truth)
    return torch.from_numpy(x), truth, cluster
