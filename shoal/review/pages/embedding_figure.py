"""A model's features of a run's samples in two dimensions (t-SNE), by cluster, client and label.

t-SNE (van der Maaten and Hinton 2008) and not UMAP, which needs a compiler of 170 MB and takes ten seconds a process to
compile itself.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from shoal.engine.store.run_folder import RunFolder
from shoal.review.pages.cluster_sheets import named_clusters
from shoal.review.pages.figures import MARKERS, PALETTE, legend_label, save
from shoal.review.results.clusters import FEATURES, read_cluster_tensors
from shoal.review.results.cross_tables import by_number

FILE = "embedding.png"
PERPLEXITY = 30.0
"""The perplexity of t-SNE, about the number of near samples; a third of the samples if there are fewer than 91."""
STEPS = 500
MAX_GROUPS = 14
"""Groups that have a colour, a marker and a name, the largest first; the others are grey."""
GREY = "0.8"
JITTER = 0.006
"""By which points are moved, as a share of the figure's width."""


def draw_embedding(run: RunFolder) -> list[Path]:
    """Draw figures/embedding.png of a run with clusters: a point a sample, a panel each for cluster, client and label.

    Returns:
        The file; none where the run has no features, or too few of them.
    """
    tensors = read_cluster_tensors(run, FEATURES)
    table = named_clusters(run)
    if tensors is None or table is None:
        return []
    points = plane(tensors["features"].numpy())
    if points is None:
        return []
    table = table.iloc[tensors["rows"].numpy()]
    panels = [("cluster", "cluster"), ("client_name", "client"), ("label", "label")]
    # One client alone says nothing.
    shown = [
        (column, name) for column, name in panels if column in table and table[column].nunique() > (name == "client")
    ]
    figure = Figure(figsize=(4.2 * len(shown), 4.6), layout="constrained")
    for axes, (column, name) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        draw_groups(axes, points, table[column].astype("string"), name)
    return [save(figure, run.figures / FILE, dpi=110)]


def plane(features: np.ndarray) -> np.ndarray | None:
    """Return points (m, 2) for features (m, p) by t-SNE from their first two principal components.

    Returns:
        None where there are fewer than four samples, or all of them are equal.
    """
    from sklearn.manifold import TSNE  # here: it takes seconds to import

    if len(features) < 4 or features.shape[1] < 2 or not np.ptp(features, axis=0).any():
        return None
    with threadpool_limits(1):  # the same points on any number of cores
        near = min(PERPLEXITY, (len(features) - 1) / 3)
        points = np.asarray(
            TSNE(perplexity=near, init="pca", random_state=0, n_jobs=1, max_iter=STEPS).fit_transform(features)
        )
    # Hundreds of equal samples must not look like one.
    shift = np.random.default_rng(0).normal(size=points.shape)
    moved: np.ndarray = points + shift * JITTER * np.ptp(points, axis=0).max()
    return moved


def draw_groups(axes: Axes, points: np.ndarray, groups: pd.Series, name: str) -> None:
    """Draw one panel: each group in a colour and a marker, with its name at the middle of its points.

    Args:
        axes: the axes to draw on.
        points: (m, 2).
        groups: the group of each point, missing where it has none.
        name: the kind of groups.
    """
    group_of = groups.fillna("").to_numpy(dtype=str)
    largest = sorted(groups.value_counts().index[:MAX_GROUPS], key=by_number)
    others = points[~np.isin(group_of, largest)]
    if len(others):
        axes.scatter(others[:, 0], others[:, 1], s=6, color=GREY, label=f"others, or no {name}")
    for number, group in enumerate(largest):
        members = points[group_of == group]
        colour = PALETTE[number % len(PALETTE)]
        marker = MARKERS[number // len(PALETTE)]
        label = legend_label(group)
        x, y = members.T
        axes.scatter(x, y, s=9, color=colour, marker=marker, alpha=0.6, linewidths=0, label=label)
        if name != "client":  # a client's samples are everywhere
            halo = [withStroke(linewidth=2, foreground="white")]
            axes.annotate(group, np.median(members, axis=0), ha="center", va="center", fontsize=8, path_effects=halo)
    axes.legend(fontsize=6, ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.02), markerscale=1.5)
    axes.set_title(f"by {name}", fontsize=9)
    axes.set(xticks=[], yticks=[])
