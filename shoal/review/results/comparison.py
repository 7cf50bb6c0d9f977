"""Runs side by side: what each was and came to, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.engine.store.run_folder import RunFolder
from shoal.review.results.result import run_result


def side_by_side(runs: Sequence[RunFolder], rate: float | None = None) -> list[dict[str, Any]]:
    """Return a dictionary a run: method, data, and the fields of `shoal.review.results.result.RunResult`.

    Args:
        runs: the runs.
        rate: bits per second of every link: adds `delay`, the seconds that messages take at that rate and choosing
            samples takes.
    """
    found = [
        {"method": run.settings().method.name, "data": run.settings().data.name, **run_result(run).to_json()}
        for run in runs
    ]
    if rate is not None:
        from shoal.review.results.delay import LinkRates, delays

        links = LinkRates(up=rate, down=rate, d2d=rate)
        for run, result in zip(runs, found, strict=True):
            result["delay"] = float(delays(run, links)["delay"].iloc[-1]) if result["rounds"] else 0.0
    return found
