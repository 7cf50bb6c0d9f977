"""`shoal predict`: clusters of new samples, as a table and a contact sheet."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from shoal.cli.console import err, frame_table, out, say
from shoal.cli.options import FinishedRun, Json
from shoal.core.errors import DataError, escaped

if TYPE_CHECKING:
    import pandas as pd

    from shoal.engine.store.run_folder import RunFolder
    from shoal.review.served.predict import PredictedClusters


app = typer.Typer(add_completion=False)
MAX_ROWS = 30
"""Rows that the terminal shows where no file is written."""


@app.command(epilog="Example: shoal predict latest new-images/ --out clusters.csv --sheet clusters.png")
def predict(
    name: FinishedRun,
    source: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="images at any depth; for a run on vectors or windows a table or arrays"),
    ],
    out_file: Annotated[Path | None, typer.Option("--out", help="table to write: .parquet or .csv")] = None,
    sheet: Annotated[Path | None, typer.Option(help="contact sheet to write: .png")] = None,
    on_odd: Annotated[
        str, typer.Option(help="images of another size: skip, resize, or as-set: resize if the set was made so")
    ] = "as-set",
    embedding: Annotated[
        bool, typer.Option("--embedding", help="add the model's features of each sample, embedding_0 to embedding_N")
    ] = False,
    as_json: Json = False,
) -> None:
    """Assign new images, or rows of a table, to the clusters of a run."""
    from shoal.engine.store.run_folder import RunFolder
    from shoal.review.served import predict as served

    check_names(out_file, sheet)
    run = RunFolder.find(name, unfinished=False)
    predicted = served.predict(run, source, on_odd, embedding)
    if sheet is not None:
        served.check_images(predicted)
    if out_file is not None:
        served.write_table(predicted.table, out_file)
    if sheet is not None:
        served.predicted_sheet(predicted, source, sheet)
    show_left_out(predicted)
    if as_json:
        print(json.dumps(to_json(run, predicted)))
    else:
        show_clusters(predicted.table, out_file, sheet)


def check_names(out_file: Path | None, sheet: Path | None) -> None:
    """Refuse files that cannot be written, before any work."""
    from shoal.review.served.predict import check_table

    if out_file is not None:
        check_table(out_file)
    if sheet is not None and sheet.suffix.lower() != ".png":
        raise DataError(f"--sheet {sheet}: expected a name that ends in .png")


def show_left_out(found: PredictedClusters) -> None:
    """Print which images were skipped, and which files, rows and columns were adapted or left out, to stderr."""
    from shoal.cli.data_tables import print_intake
    from shoal.data.intake.images import listing

    if found.skipped:
        images = len(found.table) + len(found.skipped)
        err.print(f"[yellow]skipped[/] {len(found.skipped)} of {images} images:", highlight=False)
        err.print(Text(listing([replace(each, path=escaped(each.path)) for each in found.skipped])), soft_wrap=True)
    if found.intake.summary():
        print_intake(err, found.intake)


def to_json(run: RunFolder, found: PredictedClusters) -> dict[str, object]:
    """Return what was predicted and what was left out, as JSON."""
    rows = found.table.to_json(orient="records", double_precision=6)
    return {
        "run": str(run.path),
        "samples": json.loads(rows),
        "skipped": [{"file": each.path, "reason": each.reason} for each in found.skipped],
        "intake": found.intake.to_json(),
    }


def show_clusters(table: pd.DataFrame, out_file: Path | None, sheet: Path | None) -> None:
    """Print number of samples and mean confidence of each cluster, and the files, or the first rows without a file."""
    from shoal.review.results.stable_names import with_stable_numbers
    from shoal.review.results.summary import counted

    if out_file is None:  # without embeddings, for which a terminal is too narrow
        out.print(frame_table(table.filter(regex="^(?!embedding)").head(MAX_ROWS)))
        if len(table) > MAX_ROWS:
            say(f"and {len(table) - MAX_ROWS:,} more; --out FILE writes all of them")
    clusters = with_stable_numbers(table).groupby("cluster")["confidence"].agg(["size", "mean"])
    clusters.columns = ["samples", "mean confidence"]
    out.print(frame_table(clusters.reset_index(), counted(len(table), "sample")))
    for what, path in (("table", out_file), ("contact sheet", sheet)):
        if path is not None:
            say(f"{what}: {path}")
