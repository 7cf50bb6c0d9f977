"""Simulations of the CFL studies: the bipartition of noisy gradients, and a toy problem in the plane."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from shoal.core.streams import Streams
from shoal.methods.cfl.bipartition import bipartition, correct, separation_gap
from shoal.review.pages.figures import save
from shoal_research.definition import Study
from shoal_research.figures import draw_band, label_panel
from shoal_research.table import Group, Table


def noisy_gradients(settings: dict[str, Any], seed: int, folder: Path) -> dict[str, float]:
    """Simulate figure 3: how often noisy gradients at a stationary point can be separated by their groups.

    The k group gradients are normal with mean zero over groups (stationary). The gradient of a client is that of its
    group plus normal noise whose norm is `noise` times as large.

    Returns:
        Shares of `trials`: `gap_positive`, the separation gap is positive (eq. 30 is its probability), and
        `correct_bipartition`, no group is cut (definition 1), which happens less often: remark 2 equates the two.
    """
    k = settings["groups"]
    d = settings["dimension"]
    trials = settings["trials"]
    rng = Streams(seed).numpy(f"separation {k} {settings['noise']}")
    truth = np.repeat(np.arange(k), settings["clients_per_group"])
    positive = 0
    right = 0
    for _ in range(trials):
        gradients = rng.standard_normal((k, d))
        gradients -= gradients.mean(0)
        noise = rng.standard_normal((len(truth), d))
        noise *= np.linalg.norm(gradients, axis=1)[truth, None] / np.linalg.norm(noise, axis=1, keepdims=True)
        with_noise = gradients[truth] + settings["noise"] * noise
        with_noise /= np.linalg.norm(with_noise, axis=1, keepdims=True)
        alpha = with_noise @ with_noise.T
        positive += separation_gap(alpha, truth) > 0
        right += correct(bipartition(alpha), truth)
    return {"gap_positive": positive / trials, "correct_bipartition": right / trials}


def noise_bound(groups: int) -> float:
    """Return the relative noise below which theorem 1 says that clients are always separated.

    With the same noise g for every client, H = 1 - 2 g^2 is the cosine of 2 asin(g), and equation 24 holds where this
    angle is below half of pi / (k - 1).

    >>> round(noise_bound(2), 3), round(noise_bound(10), 3)
    (0.707, 0.087)
    """
    return math.sin(math.pi / (4 * (groups - 1)))


def separation_figure(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Draw figure 3: both shares over noise, a line a number of groups, and where theorem 1 guarantees them."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    titles = {"gap_positive": "positive gap (equation 30)", "correct_bipartition": "correct bipartition (definition 1)"}
    counts = list(dict.fromkeys(cell.row.settings["groups"] for cell in groups))
    for axes, (metric, title) in zip(panels, titles.items(), strict=True):
        for number, k in enumerate(counts):
            points = [
                (cell.column.settings["noise"], metrics[metric])
                for cell in groups
                if cell.row.settings["groups"] == k
                for metrics in cell.metrics.values()
            ]
            draw_band(axes, pd.DataFrame(points, columns=["noise", "share"]), "noise", "share", f"k = {k}")
            axes.axvspan(0, noise_bound(k), ymax=0.03, color=f"C{number}", alpha=0.5)
        label_panel(axes, "relative noise of gradients (bars: theorem 1)", "share of draws", title=title)
    save(figure, folder / "separation.png")
    return {}


def toy_paths(settings: dict[str, Any], seed: int, folder: Path) -> dict[str, float]:
    """Simulate figure 2: two clients in the plane, each with zero risk inside its own disc.

    A client's risk is half the squared distance to its disc. Overlapping discs are congruent: federated averaging comes
    to rest where both gradients vanish. Disjoint discs are not: at rest the gradients point apart.

    Returns:
        `mean_norm`, `max_norm` and `cosine` of the gradients at rest, and `split`: 1 where eps1 and eps2 ask for a
        split, else 0.
    """
    half = settings["distance"] / 2
    centres = np.array([[-half, 0.0], [half, 0.0]])
    radius = settings["radius"]

    def gradients(theta: np.ndarray) -> np.ndarray:
        away = theta - centres
        length = np.linalg.norm(away, axis=1, keepdims=True)
        result: np.ndarray = away * np.maximum(0.0, 1 - radius / np.maximum(length, 1e-12))
        return result

    rng = Streams(seed).numpy("toy path")
    path = [np.array([rng.uniform(-2, 2), rng.choice([-1, 1]) * rng.uniform(2, 3)])]
    for _ in range(settings["steps"]):
        path.append(path[-1] - settings["lr"] * gradients(path[-1]).mean(0))
    at_rest = gradients(path[-1])
    draw_path(np.array(path), centres, radius, -at_rest, folder / "paths.png")
    norms = np.linalg.norm(at_rest, axis=1)
    mean_norm = np.linalg.norm(at_rest.mean(0))
    cosine = 0.0
    if norms.min() > 1e-9:
        cosine = at_rest[0] @ at_rest[1] / norms.prod()
    split = mean_norm < settings["eps1"] and norms.max() > settings["eps2"]
    metrics = {"mean_norm": mean_norm, "max_norm": norms.max(), "cosine": cosine, "split": split}
    return {name: float(value) for name, value in metrics.items()}


def draw_path(walk: np.ndarray, centres: np.ndarray, radius: float, pulls: np.ndarray, file: Path) -> None:
    """Draw the path of federated averaging over the risk of both clients.

    Args:
        walk: (steps + 1, 2).
        centres: of the clients' discs, (2, 2).
        radius: of the discs.
        pulls: the direction that each client wants at rest, (2, 2).
        file: the PNG file.
    """
    figure = Figure(figsize=(5, 4.2), layout="constrained")
    axes = figure.subplots()
    side = np.linspace(-3.2, 3.2, 120)
    away = np.stack(np.meshgrid(side, side), -1)[:, :, None] - centres
    risk = np.maximum(0.0, np.linalg.norm(away, axis=-1) - radius) ** 2 / 2
    axes.contour(side, side, risk.sum(-1), 15, linewidths=0.5, cmap="viridis")
    colours = ("tab:blue", "tab:orange")
    for centre, colour in zip(centres, colours, strict=True):
        axes.add_patch(Circle(centre, radius, color=colour, alpha=0.25))
    axes.plot(*walk.T, "k.-", markersize=3, linewidth=0.8)
    axes.quiver(*walk[[-1, -1]].T, *pulls.T, color=colours, angles="xy", scale_units="xy", scale=1)
    axes.set_title("path of federated averaging; arrows: what each client wants at rest", fontsize="small")
    axes.set_aspect("equal")
    figure.savefig(file, dpi=120)
