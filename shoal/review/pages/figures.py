"""Figures of runs, drawn without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from shoal.core.errors import ShoalError
from shoal.core.records import record_to_json
from shoal.engine.store.choice import Choice
from shoal.engine.store.client_names import client_names, named
from shoal.engine.store.kept_state import read_state_if_any
from shoal.engine.store.run_facts import RunFacts
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.clustering.cluster_number import detail
from shoal.methods.contract.base import Method
from shoal.methods.registry import METHODS
from shoal.methods.scores.metrics import DESCRIBED, shown_in
from shoal.review.results.fonts import make_drawable
from shoal.review.results.result import WAYS

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The colours of Okabe and Ito without yellow; people with any kind of colour blindness can tell them apart."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""Markers tell lines apart in black and white."""
DASHES = ("-", "--")
"""So that both of two equal lines are seen."""
MAX_NAMED = len(PALETTE)
"""Number of clients up to which each has a line with a name."""
MIN_FOR_QUARTILES = 4
"""Number of clients from which quartiles are drawn; for fewer they say nothing that their lines do not."""


def draw_figures(run: RunFolder) -> list[Path]:
    """Draw scores, clients' losses and bytes over rounds, and the method's figures, in the run's figures folder."""
    rounds = run.table("rounds")
    if len(rounds):  # none yet where the run was stopped in its first
        rounds = rounds.set_index("round")
    clients = run.table("clients")
    drawn = []
    scores = {metric.name.upper(): rounds[metric.name] for metric in shown_in("figure") if metric.name in rounds}
    if scores:
        figure, axes = round_figure("scores", "score (0 to 1, higher is better)")
        draw_lines(axes, scores)
        axes.set_ylim(0, 1)
        drawn.append(save(figure, run.figures / "scores.png"))
    if "loss" in clients and clients["loss"].notna().any():
        figure, axes = round_figure("loss that clients report", "mean loss of local steps (no unit)")
        draw_spread(axes, clients[["round", "client", "loss"]].dropna(), "loss", client_names(run, "client {}"))
        drawn.append(save(figure, run.figures / "losses.png"))
    if len(rounds):
        figure, axes = round_figure("bytes sent", "MB, summed over clients and rounds")
        sent = {way: rounds[f"bytes_{way}"].cumsum() / 1e6 for way in WAYS}
        draw_lines(axes, {WAYS[way]: line for way, line in sent.items() if way != "d2d" or line.any()})
        axes.set_ylim(bottom=0)
        drawn.append(save(figure, run.figures / "bytes.png"))
    if chosen := run.lineage().clusters_chosen:
        drawn.append(save(number_figure(chosen), run.figures / "cluster-number.png"))
    return drawn + draw_method_figures(run)


def number_figure(chosen: Choice) -> Figure:
    """Return a figure of stability, silhouette and what decides over the number of clusters, with the chosen number.

    Args:
        chosen: the choice.
    """
    figure, axes = round_figure("how many clusters", "mean over pairs of halves (1 is best)", "number of clusters")
    curve = pd.DataFrame([record_to_json(point) for point in chosen.curve]).set_index("clusters")
    details = pd.Series([detail(point) for point in chosen.curve], curve.index)
    lines = {
        "stability: Rand index of two halves": curve["stability"],
        "simplified silhouette": curve["silhouette"],
        "what decides: stability³ log k over its largest": details / (details.max() or 1),
    }
    draw_lines(axes, lines)
    axes.axvline(chosen.clusters, color="black", linestyle=":", label=f"chosen: {chosen.clusters}")
    axes.set_ylim(top=1.02)
    axes.legend(fontsize="small")
    return figure


def round_figure(title: str, unit: str, over: str = "communication round") -> tuple[Figure, Axes]:
    """Return an empty figure over rounds, or over something else.

    Args:
        title: of the figure.
        unit: label of the vertical axis.
        over: label of the horizontal axis.
    """
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.set(title=title, xlabel=over, ylabel=unit)
    axes.grid(alpha=0.3)
    return figure, axes


def draw_lines(axes: Axes, lines: Mapping[str, pd.Series]) -> None:
    """Draw lines over the index of their values, without those that are missing, and a legend with their names."""
    axes.set_prop_cycle(color=PALETTE * 2, marker=MARKERS * 2, linestyle=DASHES * len(PALETTE))
    for name, line in lines.items():
        points = line.dropna()
        axes.plot(points.index, points, label=legend_label(name), markersize=4, alpha=0.85)
    axes.legend(fontsize="small")


def legend_label(name: str) -> str:
    """Return a name as a legend shows it: matplotlib leaves out names that begin with an underscore.

    >>> legend_label("_north"), legend_label("south")
    (' _north', 'south')
    """
    return f" {name}" if name.startswith("_") else name


def draw_spread(axes: Axes, values: pd.DataFrame, column: str, names: Sequence[str]) -> None:
    """Draw the clients' values over rounds: a line for each of few clients, with their median and quartiles.

    Args:
        axes: the axes to draw on.
        values: a row a client and round, with the columns `round`, `client` and `column`.
        column: the column to draw.
        names: of the clients, by number.
    """
    table = values.pivot_table(column, "round", "client")
    clients = table.shape[1]
    if clients <= MAX_NAMED:
        draw_lines(axes, {named(names, int(client)): line for client, line in table.items()})
    if clients >= MIN_FOR_QUARTILES:
        low, median, high = table.quantile([0.25, 0.5, 0.75], axis=1).to_numpy()
        tint = PALETTE[0] if clients > MAX_NAMED else "0.5"  # no line has this colour
        label = f"quartiles of {clients} clients"
        axes.fill_between(table.index, low, high, color=tint, alpha=0.3, linewidth=3, label=label)
        axes.plot(
            table.index, median, label="median", color="black", linewidth=2.5, alpha=0.8, marker=".", linestyle="-"
        )
    axes.legend(fontsize="small")


def compare_curves(tables: Mapping[str, pd.DataFrame], metric: str, path: Path) -> Path:
    """Draw one metric over rounds for several runs.

    Args:
        tables: tables with the columns `round` and `metric`, by label.
        metric: the column to draw.
        path: the PNG file.
    """
    figure, axes = round_figure("", metric.upper())
    last = max(int(table["round"].max()) for table in tables.values())
    curves = {name: table.set_index("round")[metric] for name, table in tables.items()}
    # A run of one round is a level to compare with.
    draw_lines(
        axes,
        {name: pd.Series(line.max(), [1, last]) if line.count() == 1 else line for name, line in curves.items()},
    )
    axes.set_xlim(0.5, last + 0.5)
    if metric in DESCRIBED and DESCRIBED[metric].unit in ("share", "index"):
        axes.set_ylim(0, 1)
    return save(figure, path)


def save(figure: Figure, path: Path, dpi: int = 120) -> Path:
    """Write a figure as PNG, whose folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for axes in figure.axes:
        if axes.get_xlabel():
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))  # rounds are whole numbers
    make_drawable(figure)
    figure.savefig(path, dpi=dpi)
    return path


def draw_method_figures(run: RunFolder) -> list[Path]:
    """Draw the figures that only runs of its method have, in the run's figures folder.

    A run whose data or partition are no longer on this machine has none.

    Raises:
        StoreError: the last state is damaged.
    """
    checkpoint = None
    if METHODS[run.settings().method.name].figures is not Method.figures:
        checkpoint = read_state_if_any(run)
    if checkpoint is None:
        return []
    try:
        method = RunFacts(run).method
    except ShoalError:
        return []
    run.figures.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in method.figures(checkpoint.server, client_names(run)).items():
        written.append(run.figures / f"{name}.png")
        make_drawable(figure)
        figure.savefig(written[-1], dpi=120)
    return written
