"""Derived rows and figures of the CFL studies."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from shoal.engine.store.run_folder import RunFolder
from shoal.methods.cfl.figures import clusters_figure
from shoal.review.pages.figures import save
from shoal.studies.definition import Study
from shoal.studies.rows import Group, StudyRow, each_run, metric_of, of_role, reference_of, same_seeds, study_row


def gap_over_points(study: Study, groups: Sequence[Group], folder: Path) -> list[StudyRow]:
    """Figure 5: the gap after the last round over points per client; and how often the bipartition was correct."""
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    panels = dict(zip(("gap", "gap_gradients"), figure.subplots(1, 2, sharey=True), strict=True))
    for row in {group.row.key: group.row for group in groups}.values():
        for metric, axes in panels.items():
            points = {
                group.column.value: [metric_of(run, metric) for run in group.runs]
                for group in groups
                if group.row.key == row.key and group.column.value is not None
            }
            x = sorted(points)
            means = [statistics.fmean(points[p]) for p in x]
            (line,) = axes.plot(x, means, "-o", markersize=4, label=row.caption)
            low, high = [min(points[p]) for p in x], [max(points[p]) for p in x]
            axes.fill_between(x, low, high, alpha=0.15, color=line.get_color())
    for title, axes in zip(("weight updates", "gradients"), panels.values(), strict=True):
        axes.axhline(0, color="grey", linewidth=0.8)
        axes.set(title=title, xlabel="points per client", xscale="log")
        axes.grid(alpha=0.3)
    panels["gap"].set_ylabel("separation gap")
    figure.legend(*panels["gap"].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize="small")
    figure.savefig(folder / "gap-over-points.png", dpi=120)
    return []


def gap_over_rounds(study: Study, groups: Sequence[Group], folder: Path) -> list[StudyRow]:
    """Figure 6: the gap over rounds; and from which round on it is positive: the next one, where it never is."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for group in groups:
        tables = [run.table("rounds") for run in group.runs]
        for metric, style in (("gap", "-"), ("gap_gradients", "--")):
            curve = pd.concat(tables).groupby("round")[metric].agg(["mean", "min", "max"])
            label = f"{group.row.caption}, {'weight updates' if metric == 'gap' else 'gradients'}"
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
            return float(wrong.max()) + 1 if len(wrong) else 1.0

        return first

    return each_run(
        study,
        groups,
        {
            "rounds_to_positive": positive_from("gap"),
            "rounds_to_positive_gradients": positive_from("gap_gradients"),
        },
    )


def norms_over_rounds(study: Study, groups: Sequence[Group], folder: Path) -> list[StudyRow]:
    """Figure 7: the norm of the mean update and the largest client norm, one model for all."""
    shown = [group for group in groups if group.column.key == "never_split"]
    if not shown:  # the study was asked for its other column alone
        return []
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, group in zip(panels, shown, strict=True):
        table = pd.concat([run.table("rounds") for run in group.runs]).groupby("round").mean(numeric_only=True)
        axes.plot(table.index, table["mean_norm/0"], label="norm of the mean update")
        axes.plot(table.index, table["max_norm/0"], label="largest client norm")
        axes.set(title=group.row.caption, xlabel="communication round")
        axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("L2 norm over all weights")
    save(figure, folder / "norms.png")
    return []


def first_split(run: RunFolder) -> int | None:
    """The round at whose end the first cluster was split."""
    table = run.table("rounds").dropna(subset=["clusters"])
    split = table[table["clusters"] > 1]["round"]
    return int(split.min()) if len(split) else None


def before_and_after(study: Study, groups: Sequence[Group], folder: Path) -> list[StudyRow]:
    """Accuracy in the round before the first split, and the final one over it."""
    found = of_role(groups, "method")

    def before(run: RunFolder) -> float | None:
        first = first_split(run)
        if first is None:
            return None
        table = run.table("rounds").dropna(subset=["acc"])
        earlier = table[table["round"] < first]
        return float(earlier["acc"].iloc[-1]) if len(earlier) else None

    def times(run: RunFolder) -> float | None:
        base = before(run)
        return None if not base else metric_of(run, "acc") / base

    clusters_over_rounds(found, "acc", folder)
    return each_run(study, found, {"acc_before": before, "times_before": times})


def perplexities(study: Study, groups: Sequence[Group], folder: Path) -> list[StudyRow]:
    """How far CFL's final perplexity is below that of one model for all, as a share, run by run of the same seed."""
    found = of_role(groups, "method")
    clusters_over_rounds(found, "perplexity", folder)
    rows = []
    for group in found:
        if (reference := reference_of(groups, group)) is not None:
            shares = {
                seed: 1 - metric_of(run, "perplexity") / metric_of(plain, "perplexity")
                for seed, (run, plain) in same_seeds(group, reference).items()
            }
            if shares:
                rows.append(study_row(study, group, "less_than_fedavg", list(shares.values()), list(shares)))
    return rows


def clusters_over_rounds(groups: Sequence[Group], metric: str, folder: Path) -> None:
    """A metric of every cluster over rounds, of each group's first run, with marks where clusters were split."""
    for group in groups:
        figure = clusters_figure(group.runs[0].table("rounds"), metric)
        save(figure, folder / f"clusters-{group.row.key}-{group.column.key}.png")
