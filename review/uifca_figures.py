"""Figures of UIFCA runs: purity and losses over rounds, clusters against the truth, images drawn from each flow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.metrics.cluster import contingency_matrix
from torch import Tensor

from core.streams import SERVER, Streams
from engine.checkpoint import newest_valid
from engine.opened_run import OpenedClients, OpenedRun
from engine.run_folder import RunFolder
from methods.training.vectors import Vectors
from methods.uifca.state import UIFCAState
from methods.uifca.uifca import UIFCA

IMAGES = 10
"""Drawn from each flow."""


def draw_uifca(run: RunFolder) -> list[Path]:
    """All figures of a UIFCA run, into its figures folder."""
    drawn = draw_rounds(run, run.figures / "purity.png")
    checkpoint = newest_valid(run)
    if checkpoint is None or not checkpoint.server.round or not UIFCAState.of(checkpoint.server).assigned:
        return drawn
    opened = OpenedRun(run)
    method = opened.method
    assert isinstance(method, UIFCA)
    clients = OpenedClients(opened, checkpoint.server.round, checkpoint.memory_index)
    held = method.current_assignment(checkpoint.server, clients)
    if held.truth is not None:
        names = opened.prepared.manifest.class_names
        path = run.figures / "confusion.png"
        drawn.append(draw_confusion(held.truth.numpy(), held.cluster.numpy(), method.context.clusters, names, path))
    if opened.prepared.spec.kind == "image":
        drawn.append(draw_samples(method, checkpoint.server.tensors["flows"], run.figures / "samples.png"))
    return drawn


def draw_rounds(run: RunFolder, path: Path) -> list[Path]:
    """Purity, and mean losses of right and wrong points, over communication rounds; lines where cluster rounds end."""
    table = run.table("rounds")
    if "purity" not in table:
        return []
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, columns in ((left, ("purity", "purity_held")), (right, ("loss_right", "loss_wrong"))):
        for name in columns:
            if name in table:
                points = table[["round", name]].dropna()
                axes.plot(points["round"], points[name], marker=".", label=name.replace("_", ", "))
        for end in table["round"][table["cluster_round"].diff() > 0]:
            axes.axvline(end, color="grey", linewidth=0.5, alpha=0.5)
        axes.set(xlabel="communication round")
        if axes.has_data() and axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
    left.set(ylabel="purity", ylim=(0, 1.02))
    right.set(ylabel="mean -log p under the point's flow\n(nats; images: bits per dimension)")
    return [_save(figure, path)]


def draw_confusion(truth: np.ndarray, cluster: np.ndarray, clusters: int, names: tuple[str, ...], path: Path) -> Path:
    """How many points of each class are in each cluster, (classes, K)."""
    classes = sorted(set(truth.tolist()))
    found = sorted(set(cluster.tolist()))
    counts = np.zeros((len(classes), clusters), dtype=int)
    counts[:, found] = contingency_matrix(truth, cluster)
    figure = Figure(figsize=(1.6 + 0.55 * clusters, 1.4 + 0.42 * len(classes)), layout="constrained")
    axes = figure.subplots()
    axes.imshow(counts, cmap="Blues", aspect="auto")
    for (row, column), count in np.ndenumerate(counts):
        dark = count > counts.max() / 2
        axes.text(column, row, f"{count}", ha="center", va="center", fontsize=8, color="white" if dark else "black")
    axes.set(xlabel="cluster", ylabel="class", xticks=range(clusters), yticks=range(len(classes)))
    axes.set_yticklabels([names[c] if c < len(names) else str(c) for c in classes])
    return _save(figure, path)


def draw_samples(method: UIFCA, flows: Tensor, path: Path) -> Path:
    """A row of images drawn from each flow, (K, IMAGES)."""
    vectors = Vectors(flow := method.flow())
    figure = Figure(figsize=(IMAGES * 0.7, method.context.clusters * 0.75), layout="constrained")
    rows = figure.subplots(method.context.clusters, IMAGES, squeeze=False)
    for k, axes in enumerate(rows):
        vectors.load(flow, flows[k])
        generator = Streams(method.context.seed, 0, SERVER).torch(f"figure {k}")
        images = flow.eval().sample(IMAGES, generator).nan_to_num().cpu()
        for image, at in zip(images, axes, strict=True):
            at.imshow(image.mean(0), cmap="gray", vmin=0, vmax=255)
            at.axis("off")
        axes[0].set_title(f"flow {k}", fontsize=7, loc="left", pad=1)
    return _save(figure, path)


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path
