"""`shoal search`: a search over settings, from wherever it stands to its end."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from shoal.core.errors import ShoalError
from shoal.engine.rounds.loop import Observer
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.progress import progress
from shoal.sweeps.definition import load_search
from shoal.sweeps.page import FILE
from shoal.sweeps.result import SearchResult, ranked
from shoal.sweeps.runner import run_search
from shoal.sweeps.words import caveats, shown

SHOWN = 10
"""Trials in the table of the command line."""


def search_command(out: Console, err: Console, path: Path, trials: int | None, as_json: bool) -> None:
    """Carry out what is left of a search, and show the best trials.

    Args:
        out, err: where.
        path: the search file.
        trials: how many there are to be; None: as the file says.
        as_json: print JSON instead of a table.
    """
    definition = load_search(path)
    if trials is not None:
        definition = definition.model_copy(update={"trials": trials})
    with progress(err) as observe:

        def watch(label: str, run: RunFolder) -> Observer:
            err.print(f"{label}: {run.name}", highlight=False, soft_wrap=True)
            return observe

        try:
            result = run_search(definition, watch)
        except KeyboardInterrupt:
            err.print("interrupted; the same command again goes on where it stands", highlight=False)
            raise
    if as_json:
        print(json.dumps(result.to_json()))
        return
    out.print(trials_table(result))
    for sentence in caveats(definition, result):
        out.print(sentence, highlight=False, soft_wrap=True, markup=False)
    best = result.best_trial
    if best is None or best.score is None:
        raise ShoalError(f"search {result.search!r} has no finished trial")
    values = ", ".join(f"{path} {shown(value)}" for path, value in best.values.items())
    out.print(f"best: trial {best.number}, {result.score} {best.score:.4f}: {values}", highlight=False, soft_wrap=True)
    out.print(f"repeat it: shoal run {result.folder}/best.yaml", highlight=False, soft_wrap=True)
    out.print(f"page: {result.folder}/{FILE}", highlight=False, soft_wrap=True)


def trials_table(result: SearchResult) -> Table:
    """The best trials."""
    counts = ", ".join(f"{count} {state}" for state, count in result.counts().items() if count)
    rows = ranked(result)[:SHOWN]
    table = Table("trial", "state", result.score, *rows[0].values, title=f"{len(result.trials)} trials: {counts}")
    for trial in rows:
        score = "" if trial.score is None else f"{trial.score:.4f}"
        table.add_row(str(trial.number), trial.state, score, *map(shown, trial.values.values()))
    return table
