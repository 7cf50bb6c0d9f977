"""The page of a search: the best settings as a command, history, slices, and all trials.

results/searches/NAME/
  search.html  result.json  trials.csv  best.yaml  figures/  trials.db (`shoal.sweeps.search.store`)

In MLflow the parent run has the best settings and their score, and these files; the trials' runs are nested in it.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import yaml
from matplotlib import rc_context

from shoal.data.sets.csv_file import write_csv
from shoal.engine.settings import places
from shoal.engine.store.codec import write_atomic
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.scores.metrics import DESCRIBED
from shoal.review.mlflow_log.overviews import Overview, log_overview
from shoal.review.mlflow_log.rounds import metric_name
from shoal.review.pages.comparison_page import report_of
from shoal.review.pages.pages import in_base64, write_page
from shoal.review.results.fonts import make_drawable
from shoal.sweeps.search.definition import CLUSTER_SCORES, SearchDefinition
from shoal.sweeps.search.proposals import import_optuna
from shoal.sweeps.search.result import SearchResult, TrialRow, best_settings, caveats, value_in_words

if TYPE_CHECKING:
    import optuna

FILE = "search.html"
BEST = "best.yaml"
RESULT = "result.json"
TRIALS = "trials.csv"
PANEL_WIDTH = 3.6
"""Of a setting in the figure of slices, in inches."""


def write_search(definition: SearchDefinition, result: SearchResult, best: TrialRow, study: optuna.study.Study) -> None:
    """Write the page, and the files that belong to it, into the folder of a search.

    Args:
        definition: of the search.
        result: its trials.
        best: the best of them.
        study: its trials, as Optuna has them.
    """
    folder = Path(result.folder)
    images = draw_search(definition, study, folder / "figures")
    settings = best_settings(definition, best)
    write_atomic(folder / BEST, yaml.safe_dump(settings, sort_keys=False).encode(), sync=False)
    write_atomic(folder / RESULT, (json.dumps(result.to_json(), indent=1) + "\n").encode())
    write_csv(trials_frame(result), folder / TRIALS)
    runs = {name: report_of(RunFolder(places.runs() / name)) for trial in result.trials for name in trial.runs}
    write_page(
        folder / FILE,
        "search.html.j2",
        definition=definition,
        result=result,
        best=best,
        words=DESCRIBED[CLUSTER_SCORES.get(result.score, result.score)].words,
        caveats=caveats(definition, result),
        command=f"shoal run {folder / BEST}",
        images=[(caption, in_base64(path.read_bytes())) for caption, path in images.items()],
        level=result.level_with_best(),
        reports=runs,
        value_in_words=value_in_words,
    )


def trials_frame(result: SearchResult) -> pd.DataFrame:
    """Return a row a trial: number, state, score, settings, runs, and why it failed."""
    rows = [
        {
            "trial": trial.number,
            "state": trial.state,
            "score": trial.score,
            **trial.values,
            "runs": " ".join(trial.runs),
            "why": trial.why,
        }
        for trial in result.trials
    ]
    return pd.DataFrame(rows)


def draw_search(definition: SearchDefinition, study: optuna.study.Study, folder: Path) -> dict[str, Path]:
    """Draw all figures, as Optuna draws them, and return the PNG files, by caption."""
    plots = import_optuna().visualization.matplotlib
    folder.mkdir(parents=True, exist_ok=True)
    score = definition.score
    settings = list(definition.vary)
    drawn = {}
    # Optuna sets a style for the process, some backends open windows, and a single value is warned about.
    with rc_context(), plt.ioff(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        history = plots.plot_optimization_history(study, target_name=score)
        drawn["The score of each trial, and the best so far"] = save(history, folder / "history.png")
        slices = plots.plot_slice(study, settings, target_name=score)
        caption = f"The score of finished trials over {', '.join(settings)}"
        drawn[caption] = save(slices, folder / "slices.png", PANEL_WIDTH * len(settings))
    return drawn


def save(axes: object, path: Path, width: float = 6.4) -> Path:
    """Write the figure of one panel or several as PNG of a width in inches, and close it."""
    figure = np.ravel(np.asarray(axes))[0].figure
    figure.set_size_inches(max(width, 6.4), 4)
    make_drawable(figure)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(figure)
    return path


def log_search(definition: SearchDefinition, result: SearchResult) -> None:
    """Log a search: the best score and settings, counts of trials, and the files of its folder."""
    best = result.best_trial
    assert best is not None
    assert best.score is not None
    metrics = {f"trials/{state}": float(count) for state, count in result.counts().items()}
    metrics[f"best/{metric_name(result.score)}"] = best.score
    values = "\n".join(f"- `{setting}`: {value_in_words(value)}" for setting, value in best.values.items())
    head = f"Search over {', '.join(definition.vary)} by {result.score}: {result.summary()}."
    summary = f"Best: trial {best.number} with {result.score} {best.score:.4f}\n\n{values}"
    note = "\n\n".join((head, summary, *caveats(definition, result)))
    overview = Overview(
        ("shoal.search", definition.name),
        f"search {definition.name}",
        metrics,
        Path(result.folder),
        note,
        {"shoal.score": definition.score, "shoal.sampler": definition.sampler},
        step=len(result.trials),
        nested=[RunFolder(places.runs() / name) for trial in result.trials for name in trial.runs],
    )
    log_overview(definition.settings_with({}), overview)
