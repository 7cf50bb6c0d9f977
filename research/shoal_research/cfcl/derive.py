"""Derived rows and figures of the CF-CL studies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from sklearn.decomposition import PCA

from shoal.core.streams import SERVER, Streams
from shoal.engine.store.kept_state import read_state_if_any
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.run_folder import RunFolder
from shoal.review.pages.figures import save
from shoal_research.cfcl.delay import delays
from shoal_research.cfcl.exchange import exchange_table
from shoal_research.definition import Study
from shoal_research.figures import draw_band, label_panel
from shoal_research.table import Group, Table, each_run, metric_of, with_role

MAX_SAMPLES = 1500
"""Samples in a figure of embeddings."""


def convergence(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Draw figure 3b, probe accuracy over steps and over delay; return when each run reached the goal.

    The goal is the mean final accuracy of uniform pulls whose negatives are drawn in the same way. `steps_to_uniform`
    and `delay_to_uniform` (seconds) are when a run first reached it; for a run that never did they are its end, which
    is too early. `probe_over_steps` is the mean of a run's probes.
    """
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    over_steps, over_delay = figure.subplots(1, 2, sharey=True)
    for group in groups:
        table = pd.concat([curve(run) for run in group.runs.values()])
        draw_band(over_steps, table, "step", "probe", group.row.caption, marker=".")
        mean = table.groupby("step")[["probe", "delay"]].mean()
        over_delay.plot(mean["delay"], mean["probe"], marker=".", label=group.row.caption)
    over_steps.set(xlabel="local steps", ylabel="linear probe accuracy")
    over_delay.set(xlabel="simulated delay, s (1 Mbit/s links)")
    for axes in (over_steps, over_delay):
        axes.grid(alpha=0.3)
    figure.legend(*over_steps.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize="small")
    save(figure, folder / "convergence.png")
    goals = {
        run.name: np.mean([metric_of(other, "probe") for other in reference.runs.values()])
        for reference in with_role(groups, "reference")
        for group in groups
        for run in group.runs.values()
        if group.column == reference.column and negatives_of(run) == negatives_of(reference.first_run)
    }

    def reached(run: RunFolder, axis: str) -> float | None:
        table = curve(run)
        if run.name not in goals or table.empty:
            return None
        return float(pd.concat([table[table["probe"] >= goals[run.name]], table.tail(1)])[axis].iloc[0])

    times = {"steps_to_uniform": partial(reached, axis="step"), "delay_to_uniform": partial(reached, axis="delay")}
    return mean_probe(study, groups, folder) | each_run(groups, times)


def mean_probe(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Return `probe_over_steps`, the mean of each run's probes."""
    return each_run(groups, {"probe_over_steps": lambda run: float(curve(run)["probe"].mean())})


def negatives_of(run: RunFolder) -> str:
    """Return what the negatives of a run's triplets are drawn from."""
    return str(run.settings().to_json()["method"]["negatives"])


def curve(run: RunFolder) -> pd.DataFrame:
    """Return columns step, probe, delay of one run, where the probe was measured."""
    table = run.table("rounds").merge(delays(run), on="round")
    return table[["step", "probe", "delay"]].dropna()


def labels_over_rounds(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Draw figure 3c, the variance of label counts over steps.

    Returns:
        `label_variance_mean`, the mean over rounds from the first pull on, as in the paper's right panel; over all
        rounds where nothing is pulled.
    """
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for group in groups:
        table = pd.concat([from_first_pull(run) for run in group.runs.values()])
        draw_band(axes, table, "step", "label_variance", group.row.caption)
    label_panel(axes, "local steps", "variance of label counts across devices")
    save(figure, folder / "label-variance.png")
    return each_run(groups, {"label_variance_mean": lambda run: float(from_first_pull(run)["label_variance"].mean())})


def from_first_pull(run: RunFolder) -> pd.DataFrame:
    """Return the table of a run's rounds without those before the first pull, when devices hold only their own."""
    table = run.table("rounds")
    first = exchange_table(run)["round"].min()
    return table[~(table["round"] < first)]


def redundancy(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Return `redundancy_mean`: the share of pulled samples whose label the receiver holds itself, mean over rounds.

    It is computed from labels, which no device has.
    """

    def mean(run: RunFolder) -> float:
        return float(run.table("rounds").get("redundancy", pd.Series(dtype=float)).mean())

    return each_run(groups, {"redundancy_mean": mean})


def embeddings(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Draw figure 3a: the test set's embeddings on their first two principal components, coloured by class."""
    figure = Figure(figsize=(5 * len(groups), 4.6), layout="constrained")
    for axes, group in zip(figure.subplots(1, len(groups), squeeze=False)[0], groups, strict=True):
        opened = OpenedRun(group.first_run)
        checkpoint = read_state_if_any(group.first_run)
        data = opened.data
        assert checkpoint is not None
        assert data.test_y is not None
        order = torch.randperm(len(data.test_x), generator=Streams(0, 0, SERVER).torch("shown"))[:MAX_SAMPLES]
        h = opened.method.predictor(checkpoint.judged)(data.test_x[order].float().div(255)).embedding
        plane = PCA(2, random_state=0).fit_transform(h.cpu().numpy())
        axes.scatter(plane[:, 0], plane[:, 1], c=data.test_y[order].cpu().numpy(), cmap="tab10", s=5)
        axes.set(title=group.row.caption, xticks=[], yticks=[])
    save(figure, folder / "embeddings.png")
    return {}
