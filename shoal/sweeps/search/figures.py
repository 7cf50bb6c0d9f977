"""Figures of a search: the score of each trial, the importance of each setting, the score over each setting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from shoal.review.pages.figures import PALETTE
from shoal.review.results.fonts import make_drawable
from shoal.sweeps.search.caveats import value_in_words
from shoal.sweeps.search.definition import SearchDefinition, Varied
from shoal.sweeps.search.importance import Importance
from shoal.sweeps.search.result import FINISHED, STOPPED, SearchResult

FINISHED_STYLE: dict[str, Any] = {
    "color": PALETTE[0],
    "marker": "o",
    "linestyle": "none",
    "markersize": 5,
    "alpha": 0.85,
}
STOPPED_STYLE: dict[str, Any] = {
    "color": PALETTE[1],
    "marker": "x",
    "linestyle": "none",
    "markersize": 5,
    "alpha": 0.85,
}
BEST_STYLE: dict[str, Any] = {
    "color": PALETTE[2],
    "marker": "*",
    "linestyle": "none",
    "markersize": 14,
    "markeredgecolor": "black",
}
"""Marks of trials: colours that people with any kind of colour blindness tell apart, and shapes beside them."""
MAX_PANELS = 12
"""Settings that have a panel."""
PANELS_PER_ROW = 3


def draw_search(
    definition: SearchDefinition, result: SearchResult, importance: Sequence[Importance], folder: Path
) -> dict[str, Path]:
    """Draw all figures.

    Args:
        definition: of the search.
        result: with at least one finished trial.
        importance: of each setting; empty where it was not computed.
        folder: of the PNG files.

    Returns:
        The files, by caption.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {"The score of each trial, and the best so far": save(history(result), folder / "history.png")}
    if importance:
        caption = "How much of the variance of the trials' ranks each setting explains, beside the share by chance"
        drawn[caption] = save(importance_figure(importance), folder / "importance.png")
    caption = "The score over each setting" + ("; bars span the seeds of a trial" if definition.seeds > 1 else "")
    drawn[caption] = save(slices(definition, result), folder / "slices.png")
    return drawn


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG."""
    make_drawable(figure)
    figure.savefig(path, dpi=120)
    return path


def draw_trials(axes: Axes, result: SearchResult, x: dict[int, float]) -> None:
    """Draw finished trials as dots, stopped trials as crosses at their last score, and the best one as a star.

    Args:
        axes: the panel.
        result: of the search.
        x: the place of each trial on the horizontal axis, by number; other trials are not drawn.
    """
    for state, label, style in (
        (FINISHED, "finished", FINISHED_STYLE),
        (STOPPED, "stopped early: its last score", STOPPED_STYLE),
    ):
        trials = [trial for trial in result.trials if trial.state == state and trial.number in x]
        points = [(x[trial.number], trial.last_score) for trial in trials if trial.last_score is not None]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, **style)
    for trial in result.finished:
        if len(trial.scores) > 1 and trial.number in x:
            axes.vlines(x[trial.number], min(trial.scores), max(trial.scores), color=PALETTE[0], alpha=0.5)
    best = result.best_trial
    if best is not None and best.score is not None and best.number in x:
        axes.plot([x[best.number]], [best.score], label="best", **BEST_STYLE)


def history(result: SearchResult) -> Figure:
    """Draw the score over the number of the trial."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    numbers = [trial.number for trial in result.finished]
    scores = [trial.score for trial in result.finished]
    best_so_far: Any = np.maximum if result.maximises else np.minimum
    axes.step(
        [*numbers, len(result.trials) - 1],
        [*best_so_far.accumulate(scores), result.best_trial.score if result.best_trial else np.nan],
        where="post",
        color="0.5",
        label="best so far",
    )
    draw_trials(axes, result, {trial.number: float(trial.number) for trial in result.trials})
    axes.set(title="trials", xlabel="trial", ylabel=score_label(result))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return figure


def importance_figure(importance: Sequence[Importance]) -> Figure:
    """Draw a bar for each setting, and a mark for the share that chance gave it."""
    figure = Figure(figsize=(6, 1.8 + 0.45 * len(importance)), layout="constrained")
    axes = figure.subplots()
    positions = np.arange(len(importance))
    axes.barh(
        positions, [each.share for each in importance], color=PALETTE[0], height=0.6, label="share of the variance"
    )
    axes.plot(
        [each.by_chance for each in importance],
        positions,
        color="black",
        marker="|",
        markersize=18,
        markeredgewidth=2,
        linestyle="none",
        label="largest share by chance",
    )
    axes.set_yticks(positions, [each.setting for each in importance])
    axes.invert_yaxis()
    axes.set(title="importance of settings (fANOVA)", xlabel="share of the variance of the trials' ranks", xlim=(0, 1))
    axes.grid(alpha=0.3, axis="x")
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    return figure


def slices(definition: SearchDefinition, result: SearchResult) -> Figure:
    """Draw a panel for each setting, at most `MAX_PANELS`: the score of each trial over the value of the setting."""
    paths = list(definition.vary)[:MAX_PANELS]
    columns = min(PANELS_PER_ROW, len(paths))
    rows = -(-len(paths) // columns)
    figure = Figure(figsize=(max(5.0, 3.6 * columns), 3.4 * rows), layout="constrained")
    grid = np.atleast_1d(np.asarray(figure.subplots(rows, columns, sharey=True, squeeze=False))).ravel()
    for axes, path in zip(grid, paths, strict=False):
        draw_slice(axes, path, definition.vary[path], result)
    for axes in grid[len(paths) :]:
        axes.remove()
    for first in range(0, len(paths), columns):
        grid[first].set_ylabel(score_label(result))
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize="small")
    return figure


def draw_slice(axes: Axes, path: str, varied: Varied, result: SearchResult) -> None:
    """Draw the score over one setting."""
    values = {trial.number: trial.values[path] for trial in result.trials}
    if varied.choices is not None:
        order = {repr(choice): place for place, choice in enumerate(varied.choices)}
        places = {number: float(order[repr(value)]) for number, value in values.items()}
        turned = max(len(value_in_words(choice)) for choice in varied.choices) * len(varied.choices) > 30
        axes.set_xticks(range(len(order)), [value_in_words(choice) for choice in varied.choices], rotation=45 * turned)
        axes.set_xlim(-0.5, len(order) - 0.5)
    else:
        places = {number: float(value) for number, value in values.items() if isinstance(value, int | float)}
        if varied.low is not None and varied.high is not None:
            axes.axvspan(varied.low, varied.high, color="0.96", zorder=0)  # shows the whole range that was searched
        if varied.log:
            axes.set_xscale("log")
        elif varied.whole:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    draw_trials(axes, result, places)
    axes.set_xlabel(path)
    axes.grid(alpha=0.3)


def score_label(result: SearchResult) -> str:
    """Return the label of the vertical axis."""
    return f"{result.score} ({'higher' if result.maximises else 'lower'} is better)"
