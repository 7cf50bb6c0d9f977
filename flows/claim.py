"""Which run a firing of the pipeline works on: an unfinished one that nobody works on, or a new one."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from shoal.engine.settings import places
from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.run_folder import RunError, RunFolder, in_order
from shoal.engine.store.warm_start import WarmStart
from shoal.lifecycle.preparing import settled
from shoal.lifecycle.starting import has_settings, new_run

BEGAN, ENDED = "pipeline_began", "pipeline_ended"
"""Events of a run that the pipeline works on: between the two, also a run whose rounds are done is unfinished."""


@contextlib.contextmanager
def claimed_run(
    settings: Settings, *, resume: bool = True, origin: WarmStart | None = None, data: str | None = None
) -> Iterator[RunFolder]:
    """The run to work on, held for this process until the end; a killed process holds nothing.

    Two firings at the same time never get the same run.

    Args:
        settings: of the run.
        resume: go on with an unfinished run of these settings, where there is one.
        origin: the state that a new run starts from, and that a run that is gone on with started from; None: anew.
        data: digest of the data set that a run that is gone on with must be of; None: of any.

    Raises:
        ShoalError: the data, the partition or the method refuse the settings; WarmStartError: the origin does not fit.
    """
    places.runs().mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        with (places.runs() / ".choosing").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            claim = _unfinished(settings, origin, data) if resume else None
            if claim is None:
                run = new_run(settings, origin=origin)
                file_of_run = _claim(run.path)
                if file_of_run is None:  # it was made under the lock a moment ago
                    raise RunError(f"run {run.name} is new, and yet in use by another process")
                claim = run, file_of_run
        run, held_file = claim
        held.enter_context(held_file)
        run.event(BEGAN)
        yield run
        run.event(ENDED)


@contextlib.contextmanager
def claimed(run: RunFolder) -> Iterator[None]:
    """A run that is there, held for this process until the end, as by `claimed_run`.

    Raises:
        RunError: another process works on it.
    """
    held = _claim(run.path)
    if held is None:
        raise RunError(f"run {run.name} is in use by another process: wait for it")
    with held:
        run.event(BEGAN)
        yield
        run.event(ENDED)


@contextlib.contextmanager
def alone(what: str, flow_run: str = "") -> Iterator[str]:
    """Hold the nights of a data set for this process: two must not append to it, or judge its models, at once.

    Args:
        what: name of the data set.
        flow_run: id of the night's flow run.

    Yields:
        The id of the flow run of the night before; empty where there was none.

    Raises:
        RunError: another process holds them.
    """
    places.runs().mkdir(parents=True, exist_ok=True)
    with (places.runs() / f".night-{what}").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"another night is at work on {what!r}: wait for it") from None
        file.seek(0)
        last = file.read()
        file.truncate(0)
        file.write(flow_run)
        file.flush()
        yield last


def _unfinished(settings: Settings, origin: WarmStart | None, data: str | None) -> tuple[RunFolder, IO[str]] | None:
    """The newest run of these settings that nobody works on, if it is unfinished, and the file that claims it."""
    digest = settled(settings).digest()
    for path in reversed(in_order(places.runs(), f"*_{digest[:8]}*")):
        run = RunFolder(path.parent)
        if not has_settings(run, digest, origin.sha256 if origin else None):
            continue
        if data is not None and run.lineage().data.digest != data:
            continue
        claim = _claim(run.path)
        if claim is None:
            continue
        try:
            with run.locked():  # by `shoal run`, which claims nothing
                pass
        except RunError:
            claim.close()
            continue
        if finished(run):
            claim.close()
            return None  # a schedule wants a new run
        return run, claim
    return None


def finished(run: RunFolder) -> bool:
    """Whether nothing is left to do: the rounds, and what the pipeline does after them where it worked on the run."""
    last = [e.kind for e in run.events() if e.kind in (BEGAN, ENDED)][-1:]
    return run.is_finished() and last != [BEGAN]


def _claim(run: Path) -> IO[str] | None:
    """An open file that holds the run for this process until it is closed; None where another process has it."""
    file = (run / "claim").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
