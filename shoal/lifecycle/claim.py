"""Claims on runs: a pipeline claims an unfinished run that nobody works on, or a new one, until its process ends."""

from __future__ import annotations

import contextlib
import fcntl
import math
from collections.abc import Iterator
from pathlib import Path

from shoal.core.durable import lock_if_free
from shoal.engine.settings import places
from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.run_folder import LOCK_SECONDS, RunError, RunFolder
from shoal.engine.store.warm_start import WarmStart
from shoal.lifecycle.starting import new_run, runs_like

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
    places.runs().mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        with lock_if_free(places.runs() / ".choosing", math.inf):
            claim = _unfinished(settings, origin, data) if resume else None
            if claim is None:
                run = new_run(settings, origin=origin)
                new_claim = _claim(run.path)
                if new_claim is None:  # it was made under the lock a moment ago
                    raise RunError(f"run {run.name} is new, but another process uses it: start again")
                claim = (run, new_claim)
        run = claim[0]
        stack.enter_context(claim[1])
        run.event(BEGAN)
        yield run
        run.event(ENDED)


@contextlib.contextmanager
def claimed(run: RunFolder) -> Iterator[None]:
    """Claim an existing run until the end of the block, as `claimed_run` does.

    Raises:
        RunError: another process works on it.
    """
    claim = _claim(run.path, LOCK_SECONDS)
    if claim is None:
        raise RunError(f"run {run.name} is in use by another process: wait for it")
    with claim:
        run.event(BEGAN)
        yield
        run.event(ENDED)


@contextlib.contextmanager
def claimed_nights(data: str, flow_run: str = "") -> Iterator[str]:
    """Claim the nights of a data set: two nights must not append to it, or judge its models, at once.

    Args:
        data: name of the data set.
        flow_run: id of the night's flow run.

    Yields:
        The id of the flow run of the night before; empty where there was none.

    Raises:
        RunError: another night works on it.
    """
    places.runs().mkdir(parents=True, exist_ok=True)
    with (places.runs() / f".night-{data}").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"another night works on {data!r}: wait for it") from None
        file.seek(0)
        last = file.read()
        file.truncate(0)
        file.write(flow_run)
        file.flush()
        yield last


def _unfinished(
    settings: Settings, origin: WarmStart | None, data: str | None
) -> tuple[RunFolder, contextlib.ExitStack] | None:
    """Return the newest unclaimed run of these settings and its claim, if it is unfinished; else None."""
    origin_sha256 = None if origin is None else origin.sha256
    for run in runs_like(settings, origin_sha256):
        if data is not None and run.lineage().data.digest != data:
            continue
        claim = _claim(run.path)
        if claim is None:
            continue
        try:
            with run.locked(patience=0):  # `shoal run` locks a run without a claim
                pass
        except RunError:
            claim.close()
            continue
        if is_done(run):
            claim.close()
            return None  # a schedule wants a new run
        return run, claim
    return None


def is_done(run: RunFolder) -> bool:
    """Return whether nothing is left to do: the rounds, and of a claimed run what the pipeline does after them."""
    last = [event.kind for event in run.events() if event.kind in (BEGAN, ENDED)][-1:]
    return run.is_finished() and last != [BEGAN]


def _claim(run: Path, patience: float = 0) -> contextlib.ExitStack | None:
    """Return a claim on a run, which ends when it is closed; None where another process has one.

    Args:
        run: the run's folder.
        patience: seconds for which a claimed run is tried again.
    """
    with contextlib.ExitStack() as stack:
        if stack.enter_context(lock_if_free(run / "claim", patience)):
            return stack.pop_all()
    return None
