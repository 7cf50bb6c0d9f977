"""Figures of UIFCA runs: purity and losses over rounds, clusters against the truth, images drawn from each flow."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from pandas import DataFrame
from sklearn.metrics.cluster import contingency_matrix
from torch import Tensor

from shoal.core.streams import SERVER, Streams
from shoal.methods.averaging.vectors import Vectors
from shoal.models.normalising_flows import Flow

IMAGES_PER_FLOW = 10
"""Number of images drawn from each flow."""


def rounds_figure(rounds: DataFrame) -> Figure:
    """Draw purity and mean losses of right and wrong points over rounds, with lines where cluster rounds end."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, columns in ((left, ("purity", "purity_held")), (right, ("loss_right", "loss_wrong"))):
        for name in columns:
            if name in rounds:
                points = rounds[["round", name]].dropna()
                axes.plot(points["round"], points[name], marker=".", label=name.replace("_", ", "))
        for end in rounds["round"][rounds["cluster_round"].diff() > 0]:
            axes.axvline(end, color="grey", linewidth=0.5, alpha=0.5)
        axes.set(xlabel="communication round")
        if axes.has_data() and axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
    left.set(ylabel="purity", ylim=(0, 1.02))
    right.set(ylabel="mean -log p under the point's flow\n(nats; images: bits per dimension)")
    return figure


def confusion_figure(truth: np.ndarray, cluster: np.ndarray, clusters: int, names: tuple[str, ...]) -> Figure:
    """Draw how many points of each class are in each cluster, (classes, K)."""
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
    return figure


def samples_figure(flow: Flow, flows: Tensor, seed: int) -> Figure:
    """Draw a row of images from each flow, (K, IMAGES_PER_FLOW).

    Args:
        flow: a network; each flow's weights are loaded into it.
        flows: weights of the K flows, (K, p).
        seed: of the run.
    """
    vectors = Vectors(flow)
    figure = Figure(figsize=(IMAGES_PER_FLOW * 0.7, len(flows) * 0.75), layout="constrained")
    rows = figure.subplots(len(flows), IMAGES_PER_FLOW, squeeze=False)
    for k, axes in enumerate(rows):
        vectors.load(flow, flows[k])
        generator = Streams(seed, 0, SERVER).torch(f"figure {k}")
        images = flow.eval().sample(IMAGES_PER_FLOW, generator).nan_to_num().cpu()
        for image, place in zip(images, axes, strict=True):
            place.imshow(image.mean(0), cmap="gray", vmin=0, vmax=255)
            place.axis("off")
        axes[0].set_title(f"flow {k}", fontsize=7, loc="left", pad=1)
    return figure
