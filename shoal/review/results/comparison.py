"""Runs side by side: the task and the results of each, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.engine.store.run_folder import RunFolder
from shoal.review.results.result import run_result


def side_by_side(runs: Sequence[RunFolder], rate: float | None = None) -> list[dict[str, Any]]:
    """Return a dictionary a run: method, data, and the fields of `shoal.review.results.result.RunResult`.

    Args:
        runs: the runs.
        rate: bits per second of every link; adds `delay`, the seconds for sending messages at that rate and for
            choosing samples.
    """
    found = [
        {"method": run.settings().method.name, "data": run.settings().data.name, **run_result(run).to_json()}
        for run in runs
    ]
    if rate is not None:
        from shoal.review.results.delay import LinkRates, delays

        links = LinkRates(up=rate, down=rate, d2d=rate)
        for run, result in zip(runs, found, strict=True):
            result["delay"] = 0.0
            if result["rounds"]:
                result["delay"] = float(delays(run, links)["delay"].iloc[-1])
    return found
