"""Runs side by side: method, data and result of each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import ShoalError
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.registry import METHODS
from shoal.review.results.result import RunResult, run_result


@dataclass(frozen=True)
class ComparedRun:
    """A run beside others.

    Args:
        method, data: names.
        result: of the run.
        delay: seconds that its messages take on links of a given rate, and that choosing samples takes; None where no
            rate is given.
    """

    method: str
    data: str
    result: RunResult
    delay: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the run as one flat JSON object."""
        values = {"method": self.method, "data": self.data, **self.result.to_json()}
        if self.delay is not None:
            values["delay"] = self.delay
        return values


def compared_run(run: RunFolder, rate: float | None) -> ComparedRun:
    """Return a run as it is compared with others.

    Args:
        run: the run's folder.
        rate: bits per second of every link: adds the delay.
    """
    settings = run.settings()
    result = run_result(run)
    delay = None if rate is None else delay_of(run, result, rate)
    return ComparedRun(settings.method.name, settings.data.name, result, delay)


def is_pooled(run: RunFolder) -> bool:
    """Return whether a run's method pools all data, so that the partition does not change it."""
    return METHODS[run.settings().method.name].pooled


def partition_of(run: RunFolder) -> tuple[str, str]:
    """Return the data of a run, and how they are divided, whatever the seed: equal words mean comparable runs."""
    settings = run.settings()
    data = f"{run.lineage().data.digest} {settings.data.limit}"
    return data, json.dumps(settings.to_json()["partition"], sort_keys=True)


def check_different(runs: Sequence[RunFolder]) -> None:
    """Refuse a run that is named twice.

    Raises:
        ShoalError: names the run.
    """
    seen = set()
    for run in runs:
        if run.path.resolve() in seen:
            raise ShoalError(f"run {run.name} is named twice: name different runs to compare")
        seen.add(run.path.resolve())


def why_not_comparable(runs: Sequence[RunFolder]) -> str | None:
    """Return a sentence on why the numbers of runs do not tell which method is better; None where they do."""
    origins = {run.path: partition_of(run) for run in runs}
    if len({data for data, _ in origins.values()}) > 1:
        return "the runs are on different data: their numbers do not tell which method is better"
    if len({origins[run.path] for run in runs if not is_pooled(run)}) > 1:
        return "the runs divide the data in different ways: their numbers do not tell which method is better"
    return None


def delay_of(run: RunFolder, result: RunResult, rate: float) -> float:
    """Return the delay of all rounds of a run, in seconds, on links of a rate in bits per second."""
    from shoal.review.results.delay import LinkRates, delays

    if not result.rounds:
        return 0.0
    links = LinkRates(up=rate, down=rate, d2d=rate)
    return float(delays(run, links)["delay"].iloc[-1])
