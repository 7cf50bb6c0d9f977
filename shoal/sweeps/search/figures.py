"""Figures of a search, as Optuna draws them: scores over trials, importance of settings, scores over each setting."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib import rc_context

from shoal.review.results.fonts import make_drawable
from shoal.sweeps.search.definition import SearchDefinition
from shoal.sweeps.search.importance import evaluator_of
from shoal.sweeps.search.proposals import import_optuna

if TYPE_CHECKING:
    import optuna

SLICES = "slices"
"""What the names of the files begin with that show scores over settings."""
PANELS = 4
"""Settings of such a file."""
PANEL_WIDTH = 3.6
"""Of a setting, in inches."""


def draw_search(
    definition: SearchDefinition, study: optuna.study.Study, folder: Path, *, importance: bool
) -> dict[str, Path]:
    """Draw all figures.

    Args:
        definition: of the search.
        study: with at least one finished trial.
        folder: of the PNG files.
        importance: whether to draw importances, which takes seconds.

    Returns:
        The files, by caption.
    """
    plots = import_optuna().visualization.matplotlib
    folder.mkdir(parents=True, exist_ok=True)
    settings = list(definition.vary)
    drawn = {}
    # Optuna sets a style for the process, some backends open windows, and a single value is warned about.
    with rc_context(), plt.ioff(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        drawn["The score of each trial, and the best so far"] = save(
            plots.plot_optimization_history(study, target_name=definition.score), folder / "history.png"
        )
        if importance:
            drawn["How much of the variance of the scores each setting explains"] = save(
                plots.plot_param_importances(study, evaluator=evaluator_of(definition), target_name=definition.score),
                folder / "importance.png",
            )
        for first in range(0, len(settings), PANELS):
            shown = settings[first : first + PANELS]
            drawn[f"The score of finished trials over {', '.join(shown)}"] = save(
                plots.plot_slice(study, shown, target_name=definition.score),
                folder / f"{SLICES}-{first // PANELS + 1}.png",
                width=PANEL_WIDTH * len(shown),
            )
    return drawn


def save(axes: object, path: Path, width: float = 6.4) -> Path:
    """Write the figure of one panel or several as PNG of a width in inches, and close it."""
    figure = np.ravel(np.asarray(axes))[0].figure
    figure.set_size_inches(max(width, 6.4), 4)
    make_drawable(figure)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(figure)
    return path
