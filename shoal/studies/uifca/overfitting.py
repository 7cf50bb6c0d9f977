"""Figures 5 and 6 of UIFCA: what longer training does to one cluster round, and assignment by held-out likelihood."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from shoal.core.streams import Streams, stream_seed
from shoal.data import synthetic
from shoal.data.csv_file import write_csv
from shoal.methods.scores.clustering import purity
from shoal.methods.training.local import seeded_build
from shoal.methods.uifca.quality import majority
from shoal.models.normalising_flows import Flow, build_flow
from shoal.review.pages.figures import save


def longer_training(settings: dict[str, Any], seed: int, folder: Path) -> dict[str, float]:
    """One cluster round on two Gaussian clusters: purity and losses after each epoch, and after how many steps that is.

    An epoch of more points is more steps: over epochs, figure 6 mixes the one with the other. With `steps` the flows
    take so many of them, whatever the number of points.

    Points start in the cluster of their own type with probability `right`. One flow is trained on each cluster; after
    each epoch all points that count are given to the likelier flow. With `held_out` the flows are trained on one half
    of the points, and the other half counts (as `folds: 2` of the method does). With `watch`, a share, so many points
    are kept from training, though they count (as `stop: validation` of the method does).

    Where points are kept from training, the mean loss of these under the flow of their cluster says when to stop: no
    truth is needed for it.

    Args:
        settings: points (in all), dimension, right, held_out, watch (0 where it is missing), flow, width, epochs or
            steps (of each flow), batch, lr (Adam).
        seed: of the points, the first assignment, weights and batches.
        folder: for the table over epochs and its figure.

    Returns:
        `purity_first` (of the given assignment), `purity_best` over epochs, `purity_last`, `epoch_best`, `steps_best`,
        `steps_last`, and `apart`: the share of the epochs after which the wrong points of cluster 1 were, on average,
        likelier under flow 2 (figure 6c: all). Where points are kept from training, `purity_stopped`, `epoch_stopped`
        and `steps_stopped`: at the lowest mean loss of these.
    """
    count = settings["points"]
    x_all, y_all = synthetic.gaussian(2, count // 2, settings["dimension"], seed)
    x, y = torch.from_numpy(x_all), torch.from_numpy(y_all)
    draw = Streams(seed).torch("overfitting assignment")
    cluster = torch.where(torch.rand(count, generator=draw) < settings["right"], y, 1 - y)
    trained = torch.ones(count, dtype=torch.bool)
    kept = count // 2 if settings["held_out"] else int(settings.get("watch", 0.0) * count)
    if kept:
        trained[torch.randperm(count, generator=draw)[:kept]] = False
    counted = ~trained if settings["held_out"] else torch.ones_like(trained)
    flows = []
    for k in range(2):
        built = seeded_build(
            lambda: build_flow(settings["flow"], (settings["dimension"],), settings["width"]),
            stream_seed(seed, f"overfitting flow {k}"),
        )
        assert isinstance(built, Flow)
        flows.append(built)
    optimisers = [torch.optim.Adam(flow.parameters(), settings["lr"]) for flow in flows]
    right = majority(y, cluster)
    table = []
    per_epoch = math.ceil(int((trained & (cluster == 0)).sum()) / settings["batch"])
    epochs = max(1, round(settings["steps"] / per_epoch)) if "steps" in settings else settings["epochs"]
    for epoch in range(1, epochs + 1):
        for k in range(2):
            own = x[trained & (cluster == k)]
            order = torch.randperm(len(own), generator=Streams(seed, epoch, k).torch("overfitting batches"))
            train_epoch(flows[k], optimisers[k], own[order], settings["batch"])
        with torch.no_grad():
            losses = torch.stack([-flow.eval().log_prob(x) for flow in flows], 1)
        first = counted & (cluster == 0)
        row: dict[str, float] = {"epoch": epoch, "steps": epoch * per_epoch}
        for name, rows in (("right", first & right), ("wrong", first & ~right)):
            for k in range(2):
                row[f"{name}_{k + 1}"] = float(losses[rows, k].mean())
        row["purity"] = purity(y[counted].numpy(), losses[counted].argmin(1).numpy())
        if kept:
            row["kept_loss"] = float(losses[~trained].gather(1, cluster[~trained, None]).mean())
        table.append(row)
    frame = pd.DataFrame(table)
    write_csv(frame, folder / "epochs.csv")
    given = purity(y[counted].numpy(), cluster[counted].numpy())
    draw_round(frame, given, folder / "epochs.png")
    stopped: dict[str, float] = {}
    if kept:
        stop = int(np.argmin(frame["kept_loss"].to_numpy()))
        stopped = {f"{name}_stopped": float(frame[name][stop]) for name in ("purity", "epoch", "steps")}
    best = int(np.argmax(frame["purity"].to_numpy()))
    return stopped | {
        "purity_first": given,
        "purity_best": float(frame["purity"][best]),
        "purity_last": float(frame["purity"].iloc[-1]),
        "epoch_best": float(frame["epoch"][best]),
        "steps_best": float(frame["steps"][best]),
        "steps_last": float(frame["steps"].iloc[-1]),
        "apart": float((frame["wrong_2"] < frame["wrong_1"]).mean()),
    }


def train_epoch(flow: Flow, optimiser: torch.optim.Optimizer, points: Tensor, batch: int) -> None:
    """One pass over the points of a cluster, in the order given."""
    flow.train()
    for rows in points.split(batch):
        loss = -flow.log_prob(rows).mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()


def draw_round(frame: pd.DataFrame, given: float, path: Path) -> None:
    """Purity over steps, and mean losses of right and wrong points of cluster 1 under both flows; epochs above."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, middle = figure.subplots(1, 2)
    left.plot(frame["steps"], frame["purity"], marker=".")
    left.axhline(given, color="tab:red", linestyle="--", label="assignment that was trained on")
    left.set(ylabel="purity if assigned now", ylim=(0.45, 1.02))
    left.legend(fontsize="small")
    for name, style in (("right", "-"), ("wrong", "--")):
        for k, colour in ((1, "tab:blue"), (2, "tab:orange")):
            middle.plot(
                frame["steps"], frame[f"{name}_{k}"], style, color=colour, label=f"{name} points of cluster 1, flow {k}"
            )
    low, high = frame[["right_1", "wrong_1", "wrong_2"]].min().min(), frame["wrong_2"].quantile(0.9)
    middle.set(ylabel="mean -log p", ylim=(low - 2, max(high, low + 1) * 1.1))
    middle.legend(fontsize="x-small")
    per_epoch = float(frame["steps"].iloc[0])
    for axes in (left, middle):
        axes.set(xlabel="steps of each flow")
        epochs = axes.secondary_xaxis("top", functions=(lambda x: x / per_epoch, lambda x: x * per_epoch))
        epochs.set_xlabel("epoch")
        axes.grid(alpha=0.3)
    save(figure, path)
