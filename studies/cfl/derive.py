"""Derived rows, figures and simulations of the CFL studies."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from core.streams import Streams
from engine.run_folder import RunFolder
from methods.cfl.bipartition import bipartition, correct
from review.cfl_figures import draw_clusters
from review.figures import save
from review.result import run_result

Groups = dict[tuple[str, str], list[RunFolder]]


def row(name: tuple[str, str], metric: str, values: Sequence[float]) -> dict[str, Any]:
    """A derived row: mean and deviation of a value over runs."""
    return {
        "row": name[0],
        "column": name[1],
        "metric": metric,
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else 0.0,
        "seeds": len(values),
    }


def each(groups: Groups, values: dict[str, Callable[[RunFolder], float | None]]) -> list[dict[str, Any]]:
    """Rows of values computed from each run; runs that have none are left out."""
    rows = []
    for name, runs in groups.items():
        for metric, compute in values.items():
            found = [value for run in runs if (value := compute(run)) is not None]
            if found:
                rows.append(row(name, metric, found))
    return rows


def bytes_and_seconds(study: dict[str, Any], groups: Groups, folder: Path) -> list[dict[str, Any]]:
    """Megabytes moved and seconds of each method."""

    def moved(run: RunFolder) -> float:
        return sum(run_result(run).bytes.values()) / 1e6

    return each(groups, {"MB": moved, "seconds": lambda run: run_result(run).seconds})


def gap_over_points(study: dict[str, Any], groups: Groups, folder: Path) -> list[dict[str, Any]]:
    """Figure 5: the gap after the last round over points per client; and how often the bipartition was correct."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name in dict.fromkeys(key[0] for key in groups):
        for metric, style in (("gap", "-o"), ("gap_gradients", "--s")):
            points: dict[int, list[float]] = {}
            for (other, column), runs in groups.items():
                if other == name:
                    points[int(column.split()[0])] = [run_result(run).metrics[metric] for run in runs]
            x = sorted(points)
            means = [statistics.fmean(points[p]) for p in x]
            label = f"{name}, {'weight updates' if metric == 'gap' else 'gradients'}"
            (line,) = axes.plot(x, means, style, markersize=4, label=label)
            low, high = [min(points[p]) for p in x], [max(points[p]) for p in x]
            axes.fill_between(x, low, high, alpha=0.15, color=line.get_color())
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set(xlabel="points per client", ylabel="separation gap", xscale="log")
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    figure.savefig(folder / "gap-over-points.png", dpi=120)
    return []


def gap_over_rounds(study: dict[str, Any], groups: Groups, folder: Path) -> list[dict[str, Any]]:
    """Figure 6: the gap over rounds; and the first round from which it stays positive."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for (name, _), runs in groups.items():
        tables = [run.table("rounds") for run in runs]
        for metric, style in (("gap", "-"), ("gap_gradients", "--")):
            curve = pd.concat(tables).groupby("round")[metric].agg(["mean", "min", "max"])
            label = f"{name}, {'weight updates' if metric == 'gap' else 'gradients'}"
            (line,) = axes.plot(curve.index, curve["mean"], style, label=label)
            axes.fill_between(curve.index, curve["min"], curve["max"], alpha=0.15, color=line.get_color())
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set(xlabel="communication round", ylabel="separation gap")
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    save(figure, folder / "gap-over-rounds.png")

    def positive_from(metric: str) -> Callable[[RunFolder], float | None]:
        def first(run: RunFolder) -> float | None:
            table = run.table("rounds").dropna(subset=[metric])
            wrong = table[table[metric] <= 0]["round"]
            last = int(wrong.max()) if len(wrong) else 0
            return float(last + 1) if last < int(table["round"].max()) else None

        return first

    return each(
        groups,
        {
            "rounds_to_positive": positive_from("gap"),
            "rounds_to_positive_gradients": positive_from("gap_gradients"),
        },
    )


def norms_over_rounds(study: dict[str, Any], groups: Groups, folder: Path) -> list[dict[str, Any]]:
    """Figure 7: the norm of the mean update and the largest client norm, one model for all."""
    shown = {name: runs for (name, column), runs in groups.items() if column == "never split"}
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, (name, runs) in zip(panels, shown.items(), strict=True):
        table = pd.concat([run.table("rounds") for run in runs]).groupby("round").mean(numeric_only=True)
        axes.plot(table.index, table["mean_norm/0"], label="norm of the mean update")
        axes.plot(table.index, table["max_norm/0"], label="largest client norm")
        axes.set(title=name, xlabel="communication round")
        axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
    save(figure, folder / "norms.png")
    return []


def first_split(run: RunFolder) -> int | None:
    """The round at whose end the first cluster was split."""
    table = run.table("rounds").dropna(subset=["clusters"])
    split = table[table["clusters"] > 1]["round"]
    return int(split.min()) if len(split) else None


def before_and_after(study: dict[str, Any], groups: Groups, folder: Path) -> list[dict[str, Any]]:
    """Accuracy in the round before the first split, and the final one over it."""
    found = {key: runs for key, runs in groups.items() if key[0].startswith("CFL")}

    def before(run: RunFolder) -> float | None:
        first = first_split(run)
        if first is None:
            return None
        table = run.table("rounds").dropna(subset=["acc"])
        earlier = table[table["round"] < first]
        return float(earlier["acc"].iloc[-1]) if len(earlier) else None

    def times(run: RunFolder) -> float | None:
        base = before(run)
        return None if not base else float(run_result(run).metrics["acc"]) / base

    clusters_over_rounds(found, "acc", folder)
    return each(found, {"acc_before": before, "times_before": times})


def perplexities(study: dict[str, Any], groups: Groups, folder: Path) -> list[dict[str, Any]]:
    """How far CFL's final perplexity is below FedAvg's, as a share, run by run of the same seed."""
    clusters_over_rounds({k: v for k, v in groups.items() if k[0].startswith("CFL")}, "perplexity", folder)
    rows = []
    for (name, column), runs in groups.items():
        if not name.startswith("CFL"):
            continue
        shares = []
        for run, plain in zip(runs, groups[("FedAvg", column)], strict=True):
            ours, theirs = (run_result(r).metrics["perplexity"] for r in (run, plain))
            shares.append(1 - ours / theirs)
        rows.append(row((name, column), "less_than_fedavg", shares))
    return rows


def clusters_over_rounds(groups: Groups, metric: str, folder: Path) -> None:
    """A metric of every cluster over rounds, of each group's first run, with marks where clusters were split."""
    for (name, column), runs in groups.items():
        draw_clusters(runs[0], metric, folder / f"clusters-{_stem(name)}-{_stem(column)}.png")


def _stem(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower())


# --- simulations ------------------------------------------------------------------------------------------------------


def separation_probability(settings: dict[str, Any], seed: int, folder: Path) -> dict[str, float]:
    """Figure 3: how often the bipartition of noisy gradients at a stationary point is correct (definition 1).

    k group gradients are normal with mean zero over groups (stationary), each client's is its group's plus normal
    noise whose norm is `noise` times as large.

    Returns:
        `probability`, the share of `trials` that were correct.
    """
    k, d, trials = settings["groups"], settings["dimension"], settings["trials"]
    rng = Streams(seed).numpy(f"separation {k} {settings['noise']}")
    truth = np.repeat(np.arange(k), settings["clients_per_group"])
    right = 0
    for _ in range(trials):
        gradients = rng.standard_normal((k, d))
        gradients -= gradients.mean(0)
        noise = rng.standard_normal((len(truth), d))
        noise *= np.linalg.norm(gradients, axis=1)[truth, None] / np.linalg.norm(noise, axis=1, keepdims=True)
        seen = gradients[truth] + settings["noise"] * noise
        seen /= np.linalg.norm(seen, axis=1, keepdims=True)
        right += correct(bipartition(seen @ seen.T), truth)
    return {"probability": right / trials}


def toy_paths(settings: dict[str, Any], seed: int, folder: Path) -> dict[str, float]:
    """Figure 2: two clients in the plane, each with zero risk inside a disc of its own.

    A client's risk is half the squared distance to its disc. Discs that overlap are congruent: federated averaging
    comes to rest where both gradients vanish; disjoint ones are not, and the gradients point apart at rest.

    Returns:
        `mean_norm`, `max_norm` and `cosine` of the gradients at rest, and `split`: 1 where eps1 and eps2 ask for one.
    """
    half = settings["distance"] / 2
    centres = np.array([[-half, 0.0], [half, 0.0]])
    radius = settings["radius"]

    def gradients(theta: np.ndarray) -> np.ndarray:
        away = theta - centres
        length = np.linalg.norm(away, axis=1, keepdims=True)
        return away * np.maximum(0.0, 1 - radius / np.maximum(length, 1e-12))

    rng = Streams(seed).numpy("toy path")
    path = [np.array([rng.uniform(-2, 2), rng.choice([-1, 1]) * rng.uniform(2, 3)])]
    for _ in range(settings["steps"]):
        path.append(path[-1] - settings["lr"] * gradients(path[-1]).mean(0))
    at_rest = gradients(path[-1])
    norms = np.linalg.norm(at_rest, axis=1)
    mean_norm, max_norm = float(np.linalg.norm(at_rest.mean(0))), float(norms.max())
    cosine = float(at_rest[0] @ at_rest[1] / (norms[0] * norms[1])) if norms.min() > 1e-9 else 0.0

    figure = Figure(figsize=(5, 4.2), layout="constrained")
    axes = figure.subplots()
    side = np.linspace(-3.2, 3.2, 120)
    xx, yy = np.meshgrid(side, side)
    grid = np.stack((xx, yy), -1)[:, :, None, :] - centres
    risk = (np.maximum(0.0, np.linalg.norm(grid, axis=-1) - radius) ** 2 / 2).sum(-1)
    axes.contour(xx, yy, risk, 15, linewidths=0.5, cmap="viridis")
    for centre, colour in zip(centres, ("tab:blue", "tab:orange"), strict=True):
        turn = np.linspace(0, 2 * np.pi, 100)
        axes.fill(centre[0] + radius * np.cos(turn), centre[1] + radius * np.sin(turn), color=colour, alpha=0.25)
    walked = np.array(path)
    axes.plot(walked[:, 0], walked[:, 1], "k.-", markersize=3, linewidth=0.8)
    for pull, colour in zip(-at_rest, ("tab:blue", "tab:orange"), strict=True):
        if np.linalg.norm(pull) > 1e-6:
            axes.annotate("", tuple(path[-1] + pull), tuple(path[-1]), arrowprops={"arrowstyle": "->", "color": colour})
    axes.set(aspect="equal", title="path of federated averaging; arrows: what each client wants at rest")
    axes.title.set_fontsize("small")
    figure.savefig(folder / "paths.png", dpi=120)
    split = mean_norm < settings["eps1"] and max_norm > settings["eps2"]
    return {"mean_norm": mean_norm, "max_norm": max_norm, "cosine": cosine, "split": float(split)}
