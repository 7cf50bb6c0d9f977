"""`shoal compare`: runs side by side."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from shoal.cli.console import err, results_table
from shoal.core.errors import ShoalError
from shoal.engine.settings import places
from shoal.engine.store.run_folder import RunFolder
from shoal.review.results.comparison import side_by_side


def compare_command(
    out: Console,
    names: list[str] | None,
    study: str | None,
    scale: str,
    rate: float | None,
    page: Path | None,
    as_json: bool,
    *,
    log: str | None = None,
) -> None:
    """Show the runs, or those of a study, with the delay of their messages where a rate is given.

    Args:
        out: where.
        names: of the runs.
        study, scale: whose runs they are, where no names are given.
        rate: bits per second of every link.
        page: an HTML file that is written too.
        as_json: print JSON instead of a table.
        log: the name of a comparison that is logged to MLflow.
    """
    if study is not None:
        from shoal.engine.store.codec import read_json
        from shoal.studies.definition import StudyError
        from shoal.studies.result import study_folder

        path = study_folder(study, scale) / "result.json"
        if not path.exists():
            raise StudyError(
                f"study {study!r} has no result at scale {scale!r} yet: shoal study {study} --scale {scale}"
            )
        names = read_json(path)["runs"]
    if not names:
        raise ShoalError("nothing to compare: name runs, or --study NAME")
    found = [RunFolder.find(name, places.runs()) for name in names]
    results = side_by_side(found, rate)
    if page is not None:
        from shoal.review.pages.comparison_page import write_comparison

        err.print(f"page: {write_comparison(found, page)}", highlight=False, soft_wrap=True)
    if log is not None:
        from shoal.review.mlflow_log.comparisons import log_comparison

        log_comparison(log, found)
    if as_json:
        print(json.dumps([each.to_json() for each in results]))
        return
    out.print(results_table(results))
