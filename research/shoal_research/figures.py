"""Pieces of the studies' figures: a line with a band over seeds, and the frame of a panel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes


def draw_band(axes: Axes, table: pd.DataFrame, x: str, y: str, label: str, **line: Any) -> None:
    """Draw the mean over seeds as a line, and the range over seeds as a band.

    Args:
        axes: the panel.
        table: a row for each seed and place on the horizontal axis; rows without a value are left out.
        x, y: columns of the two axes.
        label: in the legend.
        line: how the line is drawn, as of `Axes.plot`.
    """
    curve = table[[x, y]].dropna().groupby(x)[y].agg(["mean", "min", "max"])
    (drawn,) = axes.plot(curve.index, curve["mean"], label=label, **line)
    axes.fill_between(curve.index, curve["min"], curve["max"], alpha=0.12, color=drawn.get_color())


def rounds_of(tables: Sequence[pd.DataFrame], metric: str) -> pd.DataFrame:
    """Return a metric over the rounds of several runs: columns round and the metric."""
    return pd.concat([table.reindex(columns=["round", metric]) for table in tables]).dropna()


def label_panel(axes: Axes, xlabel: str, ylabel: str, **more: Any) -> None:
    """Add a grid, a legend, and labels to a panel.

    Args:
        axes: the panel.
        xlabel, ylabel: of the axes.
        more: other properties, such as its title.
    """
    axes.set(xlabel=xlabel, ylabel=ylabel, **more)
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
