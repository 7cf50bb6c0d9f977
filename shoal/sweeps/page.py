"""The page of a search: the best settings as a command, history, importances, slices, and all trials.

results/searches/NAME/
  search.html  result.json  trials.csv  best.yaml  figures/  trials.db (`shoal.sweeps.store`)
"""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import yaml

from shoal.data.csv_file import write_csv
from shoal.engine.settings import places
from shoal.engine.store.codec import write_atomic
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.scores.metrics import DESCRIBED
from shoal.review.pages.comparison_page import report_of
from shoal.review.pages.pages import embedded, write_page
from shoal.sweeps.definition import NEIGHBOURS, SearchDefinition
from shoal.sweeps.figures import draw_search, last_score
from shoal.sweeps.importance import Importance, importances
from shoal.sweeps.result import SearchResult, ranked
from shoal.sweeps.words import best_settings, caveats, command, shown

FILE = "search.html"
BEST = "best.yaml"
IN_WORDS = {NEIGHBOURS: "how much samples that look alike share clusters, beyond chance; 1 at most, no label needed"}


def write_search(definition: SearchDefinition, result: SearchResult, *, left: int = 0) -> list[Importance]:
    """Write the page and what belongs to it into the folder of a search.

    Args:
        definition: of the search.
        result: with at least one finished trial.
        left: how many trials are still to be carried out. While there are any, importances are not computed: that
            takes seconds, and few trials say little of them.

    Returns:
        The importance of each setting; empty while trials are left.
    """
    folder = Path(result.folder)
    importance = [] if left else importances(definition, result.trials)
    images = draw_search(definition, result, importance, folder / "figures")
    settings = best_settings(definition, result)
    write_atomic(folder / BEST, yaml.safe_dump(settings, sort_keys=False).encode(), sync=False)
    write_atomic(folder / "result.json", (json.dumps(result.to_json(), indent=1) + "\n").encode(), sync=False)
    write_csv(table_of(result), folder / "trials.csv")
    best = result.best_trial
    assert best is not None
    write_page(
        folder / FILE,
        "search.html.j2",
        definition=definition,
        result=result,
        best=best,
        left=left,
        words=IN_WORDS[result.score] if result.score in IN_WORDS else DESCRIBED[result.score].words,
        caveats=caveats(definition, result),
        command=command(settings),
        images=[(caption, embedded(path)) for caption, path in images.items()],
        importance=importance,
        level={trial.number for trial in result.level_with_best()},
        rows=[(trial, last_score(trial), [(name, link_of(name)) for name in trial.runs]) for trial in ranked(result)],
        shown=shown,
    )
    return importance


def table_of(result: SearchResult) -> pd.DataFrame:
    """A row a trial: number, state, score, its settings, the rounds that were judged, its runs, and why it ended."""
    rows = [
        {
            "trial": trial.number,
            "state": trial.state,
            "score": trial.score,
            **trial.values,
            "last_score": last_score(trial),
            "last_round": max(trial.curve, default=None),
            "runs": " ".join(trial.runs),
            "why": trial.why,
        }
        for trial in result.trials
    ]
    return pd.DataFrame(rows)


def link_of(name: str) -> str:
    """The address of a run's report; empty where it has none."""
    return report_of(RunFolder(places.runs() / name))
