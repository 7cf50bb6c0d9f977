"""Derived rows and figures of the CFL studies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from shoal.engine.store.run_folder import RunFolder
from shoal.review.pages.figures import save
from shoal_research.definition import Study
from shoal_research.figures import draw_band, label_panel, rounds_of
from shoal_research.table import Group, Table, each_run, last, metric_of, references, with_role

GAPS = {"gap": "weight updates", "gap_gradients": "gradients"}
"""Metrics of the separation gap, and what it is computed from."""
NORMS = {"mean_norm/0": "norm of the mean update", "max_norm/0": "largest client norm"}


def gap_over_points(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Draw figure 5: the final separation gap over points per client, of weight updates and of gradients."""
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    gaps = pd.DataFrame(
        {"row": group.row.caption, "points": group.column.value, **{gap: metric_of(run, gap) for gap in GAPS}}
        for group in groups
        for run in group.runs.values()
    )
    for axes, (metric, title) in zip(panels, GAPS.items(), strict=True):
        for caption, of_row in gaps.groupby("row", sort=False):
            draw_band(axes, of_row, "points", metric, str(caption), marker="o", markersize=4)
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
        tables = [run.table("rounds") for run in group.runs.values()]
        for (metric, title), style in zip(GAPS.items(), ("-", "--"), strict=True):
            label = f"{group.row.caption}, {title}"
            draw_band(axes, rounds_of(tables, metric), "round", metric, label, linestyle=style)
    axes.axhline(0, color="grey", linewidth=0.8)
    label_panel(axes, "communication round", "separation gap")
    save(figure, folder / "gap-over-rounds.png")

    def positive_from(run: RunFolder) -> float:
        table = run.table("rounds")
        return float(max([0, *table["round"][table["gap"] <= 0]])) + 1

    return each_run(groups, {"rounds_to_positive": positive_from})


def norms_over_rounds(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Return the largest norm at half of the rounds; draw figure 7: the norms with one model for all clients."""
    shown = [group for group in groups if group.column.key == "never_split"]
    if not shown:  # only the other column was run
        return {}
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, group in zip(panels, shown, strict=True):
        tables = [run.table("rounds") for run in group.runs.values()]
        for metric, label in NORMS.items():
            draw_band(axes, rounds_of(tables, metric), "round", metric, label)
        label_panel(axes, "communication round", "", title=group.row.caption)
    panels[0].set_ylabel("L2 norm over all weights")
    save(figure, folder / "norms.png")

    def at_half(run: RunFolder) -> float:
        rounds = run.table("rounds")
        return last(rounds["max_norm/0"][rounds["round"] <= run.settings().rounds / 2])

    return each_run(shown, {"max_norm_half": at_half})


def first_split(run: RunFolder) -> float:
    """Return the round at whose end the first cluster was split; NaN where none was."""
    table = run.table("rounds")
    return float(table["round"][table["clusters"] > 1].min())


def has_rested(run: RunFolder) -> float | None:
    """Return 1 where training came to rest by the paper's eps1 before a split, else 0; None for other methods.

    A split by eps1 and eps2 is due only at rest (equation 32): with less training the criteria say nothing. In early
    rounds there is no common direction yet, and a mean update below eps1 grows later: the last check counts.
    """
    method = run.settings().to_json()["method"]
    if method.get("criterion") != "absolute":
        return None
    norms = run.table("rounds").get("mean_norm/0", pd.Series(dtype=float))
    return float(first_split(run) > 0 or last(norms) < method["eps1"])


def before_and_after(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Return accuracy before the first split, the ratio of the final one to it, and whether training came to rest."""
    shown = with_role(groups, "method")

    def before(run: RunFolder) -> float:
        table = run.table("rounds")
        return last(table["acc"][table["round"] < first_split(run)])

    def times(run: RunFolder) -> float:
        return metric_of(run, "acc") / before(run)

    clusters_over_rounds(shown, "acc", folder)
    return each_run(shown, {"acc_before": before, "times_before": times, "rested": has_rested})


def perplexities(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Return by which share CFL's final perplexity is below that of one model for all, and whether training rested."""
    shown = with_role(groups, "method")
    clusters_over_rounds(shown, "perplexity", folder)
    fedavg = references(groups)

    def less(run: RunFolder) -> float | None:
        if run.name not in fedavg:
            return None
        return 1 - metric_of(run, "perplexity") / metric_of(fedavg[run.name], "perplexity")

    return each_run(shown, {"rested": has_rested, "less_than_fedavg": less})


def clusters_over_rounds(groups: Sequence[Group], metric: str, folder: Path) -> None:
    """Draw a metric of every cluster over rounds for each group's first run, with marks where clusters were split."""
    for group in groups:
        rounds = group.first_run.table("rounds")
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        for name, values in rounds.set_index("round").filter(regex=f"^{metric}/").items():
            points = values.dropna()
            axes.plot(points.index, points, marker=".", label=f"cluster {str(name).split('/')[1]}")
        counts = rounds[["round", "clusters"]].dropna()
        for round in counts["round"][counts["clusters"].diff() > 0]:
            axes.axvline(round, color="grey", linestyle=":", linewidth=1)
        label_panel(axes, "communication round", f"{metric}, over the cluster's clients")
        save(figure, folder / f"clusters-{'-'.join(group.keys)}.png")
