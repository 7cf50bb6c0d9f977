"""What `shoal predict` does: clusters of new samples, as a table and a contact sheet."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.cli.console import cell
from shoal.cli.intake_table import print_intake
from shoal.core.errors import DataError, escaped
from shoal.data.images import listing
from shoal.engine.settings import places
from shoal.engine.store.run_folder import RunFolder
from shoal.review.served.predict import check_embedding, check_table, predict, predicted_sheet, writable, write_table

SHOWN = 30
"""Without a file to write to, so many rows are shown."""


def predict_command(
    out: Console,
    err: Console,
    name: str,
    source: Path,
    table_file: Path | None,
    sheet: Path | None,
    on_odd: str,
    embedding: str,
    as_json: bool,
    round: int | None = None,
) -> None:
    """Predict, write what was asked for, and say what was left out.

    Args:
        out, err: standard output and standard error.
        name: the run: folder, name, latest.
        source: a folder of images, an image, or a table.
        table_file, sheet: where the table and the contact sheet go.
        on_odd: what becomes of images of another size.
        embedding: whether the table holds embeddings, and how.
        as_json: only JSON on standard output.
        round: the round whose state predicts; None: the last one.

    Raises:
        ShoalError: as `shoal.review.served.predict.predict`, or a file that cannot be written.
    """
    if table_file is not None:
        check_table(table_file)
    check_embedding(embedding, table_file)
    if sheet is not None and sheet.suffix.lower() != ".png":
        raise DataError(f"--sheet {sheet}: expected a name that ends in .png")
    run = RunFolder.find(name, places.runs())
    found = predict(run, source, on_odd, embedding, round)
    if table_file is not None:
        write_table(found.table, table_file)
    if sheet is not None:
        predicted_sheet(found, source, sheet)
    if round is not None:
        err.print(f"by the state after round {found.round} of {found.rounds}", highlight=False)
    if found.skipped:
        given = len(found.table) + len(found.skipped)
        err.print(f"[yellow]skipped[/] {len(found.skipped)} of {given} images:", highlight=False)
        err.print(Text(listing([replace(each, path=escaped(each.path)) for each in found.skipped])), soft_wrap=True)
    if found.intake.summary():
        print_intake(err, found.intake)
    if as_json:
        rows = json.loads(writable(found.table).to_json(orient="records", double_precision=6))
        skipped = [{"file": each.path, "reason": each.reason} for each in found.skipped]
        about = {"run": str(run.path), "round": found.round, "samples": rows}
        print(json.dumps({**about, "skipped": skipped, "intake": found.intake.to_json()}))
        return
    shares = found.table.groupby("cluster")["confidence"].agg(["size", "mean"])
    summary = Table("cluster", "samples", "mean confidence", title=f"{len(found.table):,} samples")
    for cluster, row in shares.iterrows():
        summary.add_row(str(cluster), f"{int(row['size']):,}", f"{row['mean']:.3f}")
    if table_file is None:
        # A terminal has no room for embeddings: they are for files and --json.
        plain = [column for column in found.table.columns if not str(column).startswith("embedding")]
        rows = Table(*map(str, plain))
        for each in found.table[plain].head(SHOWN).itertuples(index=False):
            rows.add_row(*map(cell, each))
        out.print(rows)
        if len(found.table) > SHOWN:
            out.print(f"and {len(found.table) - SHOWN:,} more; --out FILE writes all of them", highlight=False)
    out.print(summary)
    for what, path in (("table", table_file), ("contact sheet", sheet)):
        if path is not None:
            out.print(f"{what}: {path}", highlight=False, soft_wrap=True)
