"""The interface of a further log, and what fills it: the numbers of each round, by the names that they have in MLflow.

Training never depends on a log: one that fails is closed, and an event of the run says why.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from shoal.core.errors import ShoalError, short_text
from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.checkpoint import load_manifest
from shoal.engine.store.run_events import WARNING, Event
from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.rounds import (
    client_losses,
    last_round,
    lost_rounds,
    names_of_clients,
    quality_metrics,
    round_metrics,
)

INCOMPLETE = "log_incomplete"
"""Event of a run: a further log does not have all of it."""
PLACES = {
    "tensorboard": "shoal.review.further_logs.tensorboard",
    "wandb": "shoal.review.further_logs.weights_and_biases",
}
"""The module of each log, by its name, which is that of its package and its extra too; `open_log` there opens it."""


class RoundLog(Protocol):
    """A log that is open for one run.

    Attributes:
        last: the last round that it has.
    """

    last: int

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """Log numbers of a round by their names."""

    def close(self, *, finished: bool) -> None:
        """Close the log; `finished` says whether the run came to its end."""


class FurtherLog:
    """Keeps a further log up to date with a run that is under way.

    Args:
        name: of the log, as in `tracking.also`.
        run: the run's folder.
        settings: of the run.
    """

    def __init__(self, name: str, run: RunFolder, settings: Settings) -> None:
        self._name = name
        self._run = run
        self._settings = settings
        self._names = names_of_clients(run, settings)
        self._log: RoundLog | None = None
        self._last = 0
        with self._safely():
            module = importlib.import_module(PLACES[name])
            try:
                self._log = module.open_log(run, settings)
            except ImportError as error:
                raise ShoalError(f"the package {name} is not installed: pip install {name}") from error
            self._last = self._log.last
            self._log_up_to(last_round(run))

    def observe(self, event: Event) -> None:
        """Log the numbers of a round that has ended, and of rounds before it that the log lacks."""
        if event.kind == "round_finished":
            with self._safely():
                self._log_up_to(event.round)

    def _log_up_to(self, last: int) -> None:
        if self._log is None:
            return
        lost = lost_rounds(self._run)
        for round in range(self._last + 1, last + 1):
            if round not in lost:
                manifest = load_manifest(self._run, round)
                self._log.log(round, {**round_metrics(manifest), **client_losses(manifest, self._names)})
            self._last = round

    def close(self, *, finished: bool) -> None:
        """Log the numbers that judge the clusters, and close the log."""
        if self._log is not None:
            with self._safely():
                round, quality = quality_metrics(self._run)
                if quality:
                    self._log.log(round, quality)
                self._log.close(finished=finished)

    @contextlib.contextmanager
    def _safely(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever the package raises, training continues
            self._log = None
            with contextlib.suppress(ShoalError):  # a full disk takes no event
                message = f"tracking.also: {self._name} does not have all of the run ({short_text(error)})"
                self._run.event(INCOMPLETE, level=WARNING, message=message)


@contextlib.contextmanager
def further_logs(run: RunFolder, settings: Settings, *, live: bool) -> Iterator[Sequence[FurtherLog]]:
    """Open the logs that `tracking.also` names, and close them at the end of the block.

    Args:
        run: the run's folder.
        settings: of the run.
        live: whether rounds will be done; without them nothing is logged.
    """
    logs = [FurtherLog(name, run, settings) for name in settings.tracking.also if live and not run.is_finished()]
    try:
        yield logs
    finally:
        for log in logs:
            log.close(finished=run.is_finished())
