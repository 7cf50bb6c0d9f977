"""Derived rows and figures of the CF-CL studies; who got whose samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from sklearn.decomposition import PCA

from core.streams import SERVER, Streams
from engine.checkpoint import newest_valid
from engine.opened_run import OpenedClients, OpenedRun
from engine.run_folder import RunFolder
from methods.cfcl.memory import NOBODY, at_hand, read_inbox
from review.delay import delays
from review.result import run_result
from studies.cfl.derive import each
from studies.cfl.derive import row as derived

Groups = dict[tuple[str, str], list[RunFolder]]
SHOWN = 1500
"""Samples of an embedding figure."""


def exchange_table(run: RunFolder) -> pd.DataFrame:
    """Who got whose samples: columns sample, from, to, round; of all pulls up to the newest checkpoint."""
    checkpoint = newest_valid(run)
    rows = []
    if checkpoint is not None:
        clients = OpenedClients(OpenedRun(run), checkpoint.server.round, checkpoint.memory_index)
        for client in clients:
            memory = dict(client.memory)
            read_inbox(client, memory)
            for sample, sender, round in memory.get("received", torch.zeros(0, 3)).tolist():
                rows.append((int(sample), int(sender), client.id, int(round)))
    return pd.DataFrame(rows, columns=["sample", "from", "to", "round"])


def convergence(study: dict[str, Any], groups: Groups, folder: Path) -> list[dict[str, Any]]:
    """Figure 3b: probe accuracy over steps and over delay.

    `probe_over_steps` is the mean of a run's probes; `steps_to_uniform` and `delay_to_uniform` (seconds) are when a run
    first reached the mean final accuracy of uniform pulls whose negatives are drawn as its own; runs that never did are
    left out. `curve_steps_to_uniform` and `curve_delay_to_uniform` are of the mean over seeds, as it is drawn.
    """
    figure = Figure(figsize=(10, 4), layout="constrained")
    over_steps, over_delay = figure.subplots(1, 2, sharey=True)
    goals = {
        (column, negatives_of(runs[0])): float(np.mean([run_result(run).metrics["probe"] for run in runs]))
        for (row, column), runs in groups.items()
        if row.startswith("uniform")
    }
    reached = []
    for (row, column), runs in groups.items():
        tables = pd.concat([curve(run) for run in runs])
        mean = tables.groupby("step")[["probe", "delay"]].mean()
        low, high = tables.groupby("step")["probe"].min(), tables.groupby("step")["probe"].max()
        (line,) = over_steps.plot(mean.index, mean["probe"], marker=".", label=row)
        over_steps.fill_between(mean.index, low, high, alpha=0.12, color=line.get_color())
        over_delay.plot(mean["delay"], mean["probe"], marker=".", label=row)
        there = mean[mean["probe"] >= goals.get((column, negatives_of(runs[0])), np.inf)]
        if len(there):
            reached.append(derived((row, column), "curve_steps_to_uniform", [float(there.index[0])]))
            reached.append(derived((row, column), "curve_delay_to_uniform", [float(there["delay"].iloc[0])]))
    over_steps.set(xlabel="local steps", ylabel="linear probe accuracy")
    over_delay.set(xlabel="simulated delay, s (1 Mbit/s links)")
    for axes in (over_steps, over_delay):
        axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
    figure.savefig(folder / "convergence.png", dpi=120)
    draw_graph(next(iter(groups.values()))[0], folder / "graph.png")
    for (row, _), runs in groups.items():
        if row == "CF-CL":
            draw_graph(runs[0], folder / "graph.png")
            exchange_table(runs[0]).to_csv(folder / "exchange.csv", index=False)

    def until(column: str) -> Any:
        def reach(run: RunFolder) -> float | None:
            goal = goals.get((study_column(groups, run), negatives_of(run)))
            table = curve(run)
            there = table[table["probe"] >= goal] if goal is not None else table[:0]
            return float(there[column].iloc[0]) if len(there) else None

        return reach

    return reached + each(
        groups,
        {
            "probe_over_steps": lambda run: float(curve(run)["probe"].mean()),
            "steps_to_uniform": until("step"),
            "delay_to_uniform": until("delay"),
        },
    )


def negatives_of(run: RunFolder) -> str:
    """What the negatives of a run's triplets are drawn from."""
    return str(run.settings().plain()["method"]["negatives"])


def study_column(groups: Groups, run: RunFolder) -> str:
    """The column a run belongs to."""
    return next(column for (_, column), runs in groups.items() if run in runs)


def curve(run: RunFolder) -> pd.DataFrame:
    """Columns step, probe, delay of one run, where the probe was measured."""
    table = run.table("rounds").merge(delays(run), on="round")
    return table[["step", "probe", "delay"]].dropna()


def traffic(study: dict[str, Any], groups: Groups, folder: Path) -> list[dict[str, Any]]:
    """Megabytes between devices."""
    return each(groups, {"MB d2d": lambda run: run_result(run).bytes["d2d"] / 1e6})


def labels_over_rounds(study: dict[str, Any], groups: Groups, folder: Path) -> list[dict[str, Any]]:
    """Figure 3c: variance of label counts over steps; and how many of each label every device holds at the end.

    `label_variance_mean` is the mean over all rounds, as in the paper's right panel.
    """
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for (row, _), runs in groups.items():
        tables = pd.concat([run.table("rounds")[["step", "label_variance"]].dropna() for run in runs])
        mean = tables.groupby("step")["label_variance"].mean()
        axes.plot(mean.index, mean, label=row)
    axes.set(xlabel="local steps", ylabel="variance of label counts across devices")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(folder / "label-variance.png", dpi=120)
    for (row, _), runs in groups.items():
        draw_labels(runs[0], folder / f"labels-{''.join(c if c.isalnum() else '-' for c in row.lower())}.png")
    return each(
        groups, {"label_variance_mean": lambda run: float(run.table("rounds")["label_variance"].dropna().mean())}
    )


def draw_labels(run: RunFolder, path: Path) -> Path:
    """How many samples of each label every device trains on after the last pull."""
    checkpoint = newest_valid(run)
    assert checkpoint is not None
    opened = OpenedRun(run)
    classes = opened.prepared.spec.classes or 0
    counts = []
    for client in OpenedClients(opened, checkpoint.server.round, checkpoint.memory_index):
        labels = at_hand(client.train, client.memory.get("pulled", NOBODY)).y()
        counts.append(torch.bincount(labels, minlength=classes).numpy())
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(np.log10(1 + np.array(counts)), aspect="auto")
    axes.set(xlabel="label", ylabel="device", title=run.name)
    figure.colorbar(image, ax=axes, label="log10(1 + samples)")
    figure.savefig(path, dpi=120)
    return path


def embeddings(study: dict[str, Any], groups: Groups, folder: Path) -> list[dict[str, Any]]:
    """Figure 3a: the test set's embeddings on their first two principal components, coloured by class."""
    shown = {row: runs[0] for (row, _), runs in groups.items()}
    figure = Figure(figsize=(5 * len(shown), 4.6), layout="constrained")
    for axes, (row, run) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown.items(), strict=True):
        opened, checkpoint = OpenedRun(run), newest_valid(run)
        assert checkpoint is not None
        data = opened.data
        order = torch.randperm(len(data.test_x), generator=Streams(0, 0, SERVER).torch("shown"))[:SHOWN]
        h = opened.method.predictor(checkpoint.server)(data.test_x[order].float().div(255)).embedding
        flat = PCA(2, random_state=0).fit_transform(h.cpu().numpy())
        assert data.test_y is not None
        axes.scatter(flat[:, 0], flat[:, 1], c=data.test_y[order].cpu().numpy(), cmap="tab10", s=5)
        axes.set(title=row, xticks=[], yticks=[])
    figure.savefig(folder / "embeddings.png", dpi=120)
    return []


def draw_graph(run: RunFolder, path: Path) -> Path:
    """The devices on a circle, links as wide as the samples that went over them."""
    checkpoint = newest_valid(run)
    assert checkpoint is not None
    facts = checkpoint.server.facts
    count = facts["clients"]
    turn = 2 * np.pi * np.arange(count) / count
    places = np.stack((np.cos(turn), np.sin(turn)), 1)
    table = exchange_table(run)
    flows = table.groupby(["from", "to"]).size().to_dict() if len(table) else {}
    most = max(flows.values(), default=1)
    figure = Figure(figsize=(5, 5), layout="constrained")
    axes = figure.subplots()
    for i, j in facts["edges"]:
        moved = flows.get((i, j), 0) + flows.get((j, i), 0)
        axes.plot(*places[[i, j]].T, color="tab:blue" if moved else "lightgrey", linewidth=0.5 + 3 * moved / (2 * most))
    axes.scatter(places[:, 0], places[:, 1], s=260, color="white", edgecolor="black", zorder=2)
    for k, (x, y) in enumerate(places):
        axes.text(x, y, str(k), ha="center", va="center", zorder=3)
    axes.set(aspect="equal", title=f"samples pulled: {len(table):,}", xticks=[], yticks=[])
    figure.savefig(path, dpi=120)
    return path
