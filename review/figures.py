"""Figures of runs, drawn without a display."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from engine.client_names import client_names, named
from engine.run_folder import RunFolder
from methods.scores.metrics import DESCRIBED, shown_in
from review.method_views import draw_method_views

LEGEND = 20
"""Lines of a figure that are named, at most."""


def draw_figures(run: RunFolder) -> list[Path]:
    """Scores, losses of clients and bytes over rounds, and what the method adds: files in the run's figures folder."""
    rounds, clients = run.table("rounds"), run.table("clients")
    drawn = []
    shown = [metric.name for metric in shown_in("figure") if metric.name in rounds]
    if shown:
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        for name in shown:
            points = rounds[["round", name]].dropna()
            axes.plot(points["round"], points[name], marker="o", markersize=3, label=name.upper())
        axes.set(title=run.name, xlabel="round", ylabel="score", ylim=(0, 1))
        axes.legend()
        axes.grid(alpha=0.3)
        drawn.append(save(figure, run.figures / "scores.png"))
    if "loss" in clients:
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        names = client_names(run, "client {}")
        for client, rows in clients.groupby("client"):
            axes.plot(rows["round"], rows["loss"], alpha=0.7, label=named(names, int(client)))
        axes.set(title="mean local loss", xlabel="round", ylabel="loss")
        if clients["client"].nunique() <= LEGEND:
            axes.legend(fontsize="small", ncols=1 + (clients["client"].nunique() > LEGEND // 2))
        axes.grid(alpha=0.3)
        drawn.append(save(figure, run.figures / "losses.png"))
    if len(rounds):
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        for way in ("up", "down", "d2d"):
            axes.plot(rounds["round"], rounds[f"bytes_{way}"].cumsum() / 1e6, label=way)
        axes.set(title="bytes moved", xlabel="round", ylabel="MB, summed over clients and rounds")
        axes.legend()
        axes.grid(alpha=0.3)
        drawn.append(save(figure, run.figures / "bytes.png"))
    return drawn + draw_method_views(run)


def compare_curves(tables: Mapping[str, pd.DataFrame], metric: str, path: Path) -> Path:
    """One metric over rounds for several runs.

    Args:
        tables: by label, tables with the columns `round` and `metric`.
        metric: which column.
        path: the PNG file.
    """
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.subplots()
    last = max(int(table["round"].max()) for table in tables.values())
    for label, table in tables.items():
        points = table[["round", metric]].dropna()
        if len(points) == 1:
            # One round only: a level to compare with.
            axes.axhline(float(points[metric].iloc[0]), linestyle="--", color="grey", label=label)
        else:
            axes.plot(points["round"], points[metric], marker="o", markersize=3, label=label)
    axes.set(xlabel="communication round", ylabel=metric.upper(), xlim=(0.5, last + 0.5))
    if metric in DESCRIBED and DESCRIBED[metric].unit in ("share", "index"):
        axes.set_ylim(0, 1)
    axes.legend()
    axes.grid(alpha=0.3)
    return save(figure, path)


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for axes in figure.axes:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))  # rounds are whole
    figure.savefig(path, dpi=120)
    return path
