"""The log of a run in Weights & Biases; `WANDB_MODE=offline` keeps it in the folder `wandb` of the project's home."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from shoal.engine.settings import places
from shoal.engine.settings.addresses import masked
from shoal.engine.settings.run_settings import Settings, flatten
from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.run_names import title
from shoal.review.results.clusters import cluster_facts

STEP = "round"
"""The number that is the horizontal axis of all charts: a step of Weights & Biases' own cannot be logged twice."""


class WeightsAndBiasesLog:
    """A log that is open for one run.

    Args:
        opened: the run of Weights & Biases.
        run: the run's folder.
    """

    def __init__(self, opened: Any, run: RunFolder) -> None:
        self._opened = opened
        self._run = run
        self.last = int(opened.summary.get(STEP) or 0)

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """Log numbers of a round by their names."""
        self._opened.log({STEP: round, **{name: value for name, value in numbers.items() if math.isfinite(value)}})

    def close(self, *, finished: bool) -> None:
        """Add the verdict, and close the log."""
        facts = cluster_facts(self._run)
        if facts is not None and facts.verdict is not None:
            self._opened.summary.update({"verdict": facts.verdict.word, "verdict.reason": facts.verdict.reason})
        self._opened.finish(exit_code=int(not finished))


def open_log(run: RunFolder, settings: Settings) -> WeightsAndBiasesLog:
    """Open the log of a run, or resume the one that it has.

    Args:
        run: the run's folder.
        settings: of the run.

    Raises:
        ImportError: the package is not installed.
    """
    import wandb

    opened = wandb.init(
        project=settings.tracking.experiment,
        id=run.lineage().id,
        name=title(settings),
        dir=str(places.home()),
        config={**{key: masked(str(value)) for key, value in flatten(settings).items()}, "shoal.run": run.name},
        resume="allow",
    )
    opened.define_metric(STEP)
    opened.define_metric("*", step_metric=STEP)
    return WeightsAndBiasesLog(opened, run)
