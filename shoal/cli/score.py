"""`shoal score`: a run's clusters beside labels that came later."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import frame_table, out, say, table_of
from shoal.cli.options import FinishedRun

app = typer.Typer(add_completion=False)
MAX_LABELS = 8
"""Labels that the table of counts shows: more are too wide for a terminal."""


@app.command(epilog="Example: shoal score latest labels.csv")
def score(
    name: FinishedRun,
    labels: Annotated[
        Path,
        typer.Argument(
            metavar="LABELS.csv",
            help="table with the columns file (as in the run's clusters.parquet) and label, of all samples or some",
        ),
    ],
) -> None:
    """Score a run's clusters by labels that came later, of all its samples or of some."""
    from shoal.api.opened import load
    from shoal.review.results.number_names import name_of

    scores = load(name).score(labels)
    chance = {"acc": scores.beside.chance_acc, "ari": scores.beside.chance_ari}
    rows = [(name_of(key), value, chance.get(key)) for key, value in scores.scores.items()]
    out.print(
        table_of(
            ("score", "clusters", "in random order"), rows, f"{scores.beside.samples:,} of {scores.samples:,} samples"
        )
    )
    largest = scores.table.sum().nlargest(MAX_LABELS).index
    out.print(frame_table(scores.table[largest].reset_index(allow_duplicates=True)))  # a label may be called cluster
    word = "above chance" if scores.verdict.word == "good" else scores.verdict.word
    say(f"by these labels: {word}. {scores.verdict.reason} A run on a set with labels is judged beside K-means.")
