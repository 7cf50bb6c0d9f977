"""The page of a search: the best settings as a command, history, importances, slices, and all trials.

results/searches/NAME/
  search.html  result.json  trials.csv  best.yaml  figures/  trials.db (`shoal.sweeps.search.store`)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import yaml

from shoal.data.sets.csv_file import write_csv
from shoal.engine.settings import places
from shoal.engine.store.codec import write_atomic
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.scores.metrics import DESCRIBED
from shoal.review.pages.comparison_page import report_of
from shoal.review.pages.pages import in_base64, write_page
from shoal.sweeps.search.caveats import caveats, value_in_words
from shoal.sweeps.search.definition import NEIGHBOURS, SearchDefinition
from shoal.sweeps.search.figures import SLICES, draw_search
from shoal.sweeps.search.importance import importances
from shoal.sweeps.search.result import SearchResult, best_settings, ranked
from shoal.sweeps.set_options import set_options

if TYPE_CHECKING:
    import optuna

FILE = "search.html"
BEST = "best.yaml"
RESULT = "result.json"
TRIALS = "trials.csv"
NEIGHBOURS_WORDS = "how much samples that look alike share clusters, beyond chance; 1 at most, no label needed"


def write_search(
    definition: SearchDefinition, result: SearchResult, study: optuna.study.Study, *, left: int
) -> dict[str, float]:
    """Write the page, and the files that belong to it, into the folder of a search.

    Args:
        definition: of the search.
        result: with at least one finished trial.
        study: its trials.
        left: how many trials are still to be executed. While there are any, importances are not computed: that takes
            seconds, and few trials say little about them.

    Returns:
        The importance of each setting; empty while trials are left.
    """
    folder = Path(result.folder)
    importance = {} if left else importances(definition, study)
    images = draw_search(definition, study, folder / "figures", importance=bool(importance))
    settings = best_settings(definition, result)
    write_atomic(folder / BEST, yaml.safe_dump(settings, sort_keys=False).encode(), sync=False)
    write_atomic(folder / RESULT, (json.dumps(result.to_json(), indent=1) + "\n").encode())
    write_csv(trials_frame(result), folder / TRIALS)
    write_page(
        folder / FILE,
        "search.html.j2",
        definition=definition,
        result=result,
        best=result.best_trial,
        left=left,
        words=NEIGHBOURS_WORDS if result.score == NEIGHBOURS else DESCRIBED[result.score].words,
        caveats=caveats(definition, result),
        command=f"shoal run{set_options(settings)}",
        images=[
            (caption, in_base64(path.read_bytes()), path.stem.startswith(SLICES)) for caption, path in images.items()
        ],
        importance=importance,
        level={trial.number for trial in result.level_with_best()},
        rows=[(trial, trial.last_score, report_links(trial.runs)) for trial in ranked(result)],
        value_in_words=value_in_words,
    )
    return importance


def report_links(names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return runs by name, each with the address of its report, which is empty where the run has none."""
    return [(name, report_of(RunFolder(places.runs() / name))) for name in names]


def trials_frame(result: SearchResult) -> pd.DataFrame:
    """Return a row a trial: number, state, score, settings, the rounds that were scored, runs, and why it ended."""
    rows = [
        {
            "trial": trial.number,
            "state": trial.state,
            "score": trial.score,
            **trial.values,
            "last_score": trial.last_score,
            "last_round": max(trial.curve, default=None),
            "runs": " ".join(trial.runs),
            "why": trial.why,
        }
        for trial in result.trials
    ]
    return pd.DataFrame(rows)
