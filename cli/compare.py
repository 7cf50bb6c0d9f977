"""`shoal compare`: runs side by side."""

from __future__ import annotations

import json

from rich.console import Console

from cli.console import results_table
from core.errors import ShoalError
from engine import places
from engine.run_folder import RunFolder
from review.result import run_result


def compare_command(
    out: Console,
    names: list[str] | None,
    study: str | None,
    scale: str,
    rate: float | None,
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
        as_json: print JSON instead of a table.
        log: the name of a comparison that is logged to MLflow.
    """
    if study is not None:
        from engine.codec import read_json
        from studies.definition import StudyError
        from studies.result import study_folder

        path = study_folder(study, scale) / "result.json"
        if not path.exists():
            raise StudyError(
                f"study {study!r} has no result at scale {scale!r} yet: shoal study {study} --scale {scale}"
            )
        names = read_json(path)["runs"]
    if not names:
        raise ShoalError("nothing to compare: name runs, or --study NAME")
    found = [RunFolder.find(name, places.runs()) for name in names]
    results = [
        {"method": f.settings().method.name, "data": f.settings().data.name, **run_result(f).plain()} for f in found
    ]
    if rate is not None:
        from review.delay import LinkRates, delays

        links = LinkRates(up=rate, down=rate, d2d=rate)
        for f, result in zip(found, results, strict=True):
            result["delay"] = float(delays(f, links)["delay"].iloc[-1]) if result["rounds"] else 0.0
    if log is not None:
        from review.mlflow_comparison import log_comparison

        log_comparison(log, [RunFolder.find(name, places.runs()) for name in names])
    if as_json:
        print(json.dumps(results))
        return
    out.print(results_table(results))
