"""Derived rows and figures of the CFL studies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from shoal.engine.store.run_folder import RunFolder
from shoal.review.pages.figures import save
from shoal_research.definition import Study
from shoal_research.figures import draw_band, label_panel, rounds_of
from shoal_research.table import Group, Table, Values, each_run, metric_of, reference_of, same_seeds, with_role

GAPS = {"gap": "weight updates", "gap_gradients": "gradients"}
"""Metrics of the separation gap, and what it is computed from."""


def gap_over_points(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Draw figure 5: the final separation gap over points per client, of weight updates and of gradients."""
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, metric, title in zip(panels, GAPS, GAPS.values(), strict=True):
        points = pd.DataFrame(
            [
                (group.row.caption, group.column.value, metric_of(run, metric))
                for group in groups
                if group.column.value is not None
                for run in group.runs
            ],
            columns=["row", "points", metric],
        )
        for caption, own in points.groupby("row", sort=False):
            draw_band(axes, own, "points", metric, str(caption), {"marker": "o", "markersize": 4})
        axes.axhline(0, color="grey", linewidth=0.8)
        axes.set(title=title, xlabel="points per client", xscale="log")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("separation gap")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize="small")
    figure.savefig(folder / "gap-over-points.png", dpi=120)
    return {}


def gap_over_rounds(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Draw figure 6, the gap over rounds; return the round from which on it is positive.

    Where the gap is not positive at the end, that round is the one after the last.
    """
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for group in groups:
        tables = [run.table("rounds") for run in group.runs]
        for (metric, title), style in zip(GAPS.items(), ("-", "--"), strict=True):
            label = f"{group.row.caption}, {title}"
            draw_band(axes, rounds_of(tables, metric), "round", metric, label, {"linestyle": style})
    axes.axhline(0, color="grey", linewidth=0.8)
    label_panel(axes, "communication round", "separation gap")
    save(figure, folder / "gap-over-rounds.png")

    def positive_from(run: RunFolder) -> float:
        table = run.table("rounds").dropna(subset=["gap"])
        wrong = table[table["gap"] <= 0]["round"]
        return float(wrong.max()) + 1 if len(wrong) else 1.0

    return each_run(groups, {"rounds_to_positive": positive_from})


def norms_over_rounds(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Return the largest norm at half of the rounds; draw figure 7: the norms with one model for all clients."""
    shown = [group for group in groups if group.column.key == "never_split"]
    if not shown:  # only the other column was run
        return {}
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, group in zip(panels, shown, strict=True):
        table = pd.concat([run.table("rounds") for run in group.runs]).groupby("round").mean(numeric_only=True)
        table = table.dropna(subset=["mean_norm/0"])  # rounds that were not evaluated would leave no line
        axes.plot(table.index, table["mean_norm/0"], label="norm of the mean update")
        axes.plot(table.index, table["max_norm/0"], label="largest client norm")
        label_panel(axes, "communication round", "", title=group.row.caption)
    panels[0].set_ylabel("L2 norm over all weights")
    save(figure, folder / "norms.png")

    def at_half(run: RunFolder) -> float:
        rounds = run.table("rounds").dropna(subset=["max_norm/0"])
        return float(rounds[rounds["round"] <= run.settings().rounds / 2]["max_norm/0"].iloc[-1])

    return each_run(shown, {"max_norm_half": at_half})


def first_split(run: RunFolder) -> int | None:
    """Return the round at whose end the first cluster was split; None where none was."""
    table = run.table("rounds").dropna(subset=["clusters"])
    split = table[table["clusters"] > 1]["round"]
    if len(split):
        return int(split.min())
    return None


def has_rested(run: RunFolder) -> float | None:
    """Return 1 where training came to rest by the paper's eps1 before a split, else 0; None for other methods.

    A split by eps1 and eps2 is due only at rest (equation 32): with less training the criteria say nothing. In early
    rounds there is no common direction yet, and a mean update below eps1 grows later: the last check counts.
    """
    method = run.settings().to_json()["method"]
    if method.get("criterion") != "absolute":
        return None
    table = run.table("rounds")
    norms = table["mean_norm/0"].dropna() if "mean_norm/0" in table else table["round"][:0]
    is_at_rest = len(norms) > 0 and norms.iloc[-1] < method["eps1"]
    return float(first_split(run) is not None or is_at_rest)


def before_and_after(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Return accuracy before the first split, the ratio of the final one to it, and whether training came to rest."""
    found = with_role(groups, "method")

    def before(run: RunFolder) -> float | None:
        first = first_split(run)
        if first is None:
            return None
        table = run.table("rounds").dropna(subset=["acc"])
        earlier = table[table["round"] < first]
        if len(earlier):
            return float(earlier["acc"].iloc[-1])
        return None

    def times(run: RunFolder) -> float | None:
        earlier = before(run)
        if earlier:
            return metric_of(run, "acc") / earlier
        return None

    clusters_over_rounds(found, "acc", folder)
    return each_run(found, {"acc_before": before, "times_before": times, "rested": has_rested})


def perplexities(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Return by which share CFL's final perplexity is below that of one model for all, and whether training rested."""
    found = with_role(groups, "method")
    clusters_over_rounds(found, "perplexity", folder)
    table = each_run(found, {"rested": has_rested})
    for group in found:
        if (reference := reference_of(groups, group)) is not None:
            shares: Values = {
                seed: 1 - metric_of(run, "perplexity") / metric_of(reference_run, "perplexity")
                for seed, (run, reference_run) in same_seeds(group, reference).items()
            }
            if shares:
                table[group.place("less_than_fedavg")] = shares
    return table


def clusters_over_rounds(groups: Sequence[Group], metric: str, folder: Path) -> None:
    """Draw a metric of every cluster over rounds for each group's first run, with marks where clusters were split."""
    for group in groups:
        figure = clusters_figure(group.runs[0].table("rounds"), metric)
        save(figure, folder / f"clusters-{group.row.key}-{group.column.key}.png")


def clusters_figure(rounds: pd.DataFrame, metric: str) -> Figure:
    """Draw a metric of every cluster of one run over rounds, with marks where clusters were split."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name in [str(c) for c in rounds if str(c).startswith(f"{metric}/")]:
        points = rounds[["round", name]].dropna()
        axes.plot(points["round"], points[name], marker=".", label=f"cluster {name.split('/')[1]}")
    counts = rounds[["round", "clusters"]].dropna()
    for round in counts["round"][counts["clusters"].diff() > 0]:
        axes.axvline(round, color="grey", linestyle=":", linewidth=1)
    axes.set(xlabel="communication round", ylabel=f"{metric}, over the cluster's clients")
    axes.legend(fontsize="x-small", ncols=2)
    axes.grid(alpha=0.3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure
