"""Claims on runs: a pipeline claims an unfinished run that nobody works on, or a new one, until its process ends."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

from shoal.core.durable import lock_if_free
from shoal.engine.settings import places
from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.run_folder import LOCK_SECONDS, RunError, RunFolder
from shoal.engine.store.warm_start import WarmStart
from shoal.lifecycle.starting import new_run, runs_like

CLAIM = "claim"
"""The lock of a run that a pipeline works on."""
BEGAN = "pipeline_began"
ENDED = "pipeline_ended"
"""Events of a claimed run: between the two it is unfinished, even if its rounds are done."""


@contextlib.contextmanager
def claimed_run(
    settings: Settings, *, resume: bool = True, origin: WarmStart | None = None, data: str | None = None
) -> Iterator[RunFolder]:
    """Claim a run to work on until the end of the block; a killed process loses its claim.

    Two processes never claim the same run at once.

    Args:
        settings: of the run.
        resume: resume an unfinished run of these settings, where there is one.
        origin: the state that a new run starts from, and that a resumed run started from; None: the method's own.
        data: digest of the data set that a resumed run must have been started on; None: any.

    Raises:
        ShoalError: the data, the partition or the method refuse the settings; WarmStartError: the origin does not fit.
    """
    with contextlib.ExitStack() as claim:
        with lock_if_free(places.runs() / ".choosing", math.inf):
            run = _unfinished(settings, origin, data) if resume else None
            if run is None:
                run = new_run(settings, origin=origin)
            claim.enter_context(claimed(run))
        yield run


@contextlib.contextmanager
def claimed(run: RunFolder) -> Iterator[None]:
    """Claim an existing run until the end of the block, as `claimed_run` does.

    Raises:
        RunError: another process works on it.
    """
    with lock_if_free(run.path / CLAIM, LOCK_SECONDS) as ours:
        if not ours:
            raise RunError(f"run {run.name} is in use by another process: wait for it")
        run.event(BEGAN)
        yield
        run.event(ENDED)


@contextlib.contextmanager
def claimed_nights(data: str) -> Iterator[None]:
    """Claim the nights of a data set: two nights must not append to it, or judge its models, at once.

    Args:
        data: name of the data set.

    Raises:
        RunError: another night works on it.
    """
    with lock_if_free(places.runs() / f".night-{data}") as ours:
        if not ours:
            raise RunError(f"another night works on {data!r}: wait for it")
        yield


def _unfinished(settings: Settings, origin: WarmStart | None, data: str | None) -> RunFolder | None:
    """Return the newest run of these settings that nobody works on, if it is unfinished."""
    for run in runs_like(settings, None if origin is None else origin.sha256, data):
        try:
            # `shoal run` locks a run without a claim.
            with lock_if_free(run.path / CLAIM) as is_free, run.locked(patience=0):
                pass
        except RunError:
            continue
        if not is_free:
            continue
        if is_done(run):
            break  # a schedule wants a new run
        return run
    return None


def is_done(run: RunFolder) -> bool:
    """Return whether nothing is left to do: the rounds, and of a claimed run what the pipeline does after them."""
    last = [event.kind for event in run.events() if event.kind in (BEGAN, ENDED)][-1:]
    return run.is_finished() and last != [BEGAN]
