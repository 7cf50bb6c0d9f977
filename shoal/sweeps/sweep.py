"""Many runs as one piece of work: the same workers for all, and each run resumed where it stopped.

Studies and searches are sweeps. They say which runs they want and what they make of them; everything that happens to a
run on the way stands here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import ShoalError
from shoal.engine.cluster.pool_interface import Pool
from shoal.engine.rounds.outcomes import RoundFailed
from shoal.engine.settings.hardware import resolve_device
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import Settings
from shoal.engine.sites.pools import open_pool
from shoal.engine.store.run_events import Observer
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.engine.store.status import FAILED
from shoal.lifecycle.driving import drive

Watch = Callable[[str, RunFolder], Observer | None]
"""Makes the observer of a run, given a label and the run; None where nobody observes it."""
COMPLETE_EVENT = "sweep_complete"
"""Event of a run that a sweep completed: its report is written, and MLflow has all of it."""


class RunFailed(ShoalError):
    """A run failed by itself: its training diverged, for example."""


@dataclass(frozen=True)
class Sweep:
    """The things that all runs of a sweep share. Made by `open_sweep`.

    Attributes:
        pool: the workers.
        watch: makes the observer of a run.
    """

    pool: Pool
    watch: Watch | None = None

    def complete(self, run: RunFolder, label: str, observers: Sequence[Observer] = ()) -> None:
        """Do what is still to do of a run: its rounds, its report, and its place in MLflow.

        Args:
            run: a new run, or one that was cut short. A run that a sweep completed before stays as it is.
            label: how progress names the run.
            observers: called with every event, after the observer that `watch` makes.

        Raises:
            RunFailed: the run failed by itself.
            ShoalError: the run could not begin. KeyboardInterrupt: it can be resumed.
        """
        if run.is_finished() and any(event.kind == COMPLETE_EVENT for event in run.events()):
            return
        if self.watch and (watching := self.watch(label, run)):
            observers = (watching, *observers)
        try:
            drive(run, slots=self.pool, observers=observers)
        except (RoundFailed, RunError) as error:
            if run.status().state != FAILED:
                raise
            raise RunFailed(str(error)) from error
        run.event(COMPLETE_EVENT)


@contextlib.contextmanager
def open_sweep(settings: Settings, watch: Watch | None = None) -> Iterator[Sweep]:
    """Open the workers that all runs of a sweep share, until the end.

    Args:
        settings: of one of the runs: `workers` are the same in all.
        watch: makes the observer of a run.
    """
    with open_pool(settings.workers, resolve_device(settings.workers)) as pool:
        yield Sweep(pool, watch)


def without_registration(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a run whose model becomes no new version of a registered one, unless they say otherwise.

    A sweep compares models: each is logged, and none of them replaces another.
    """
    return merge({"tracking": {"register_as": "none"}}, dict(settings))
