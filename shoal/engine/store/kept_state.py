"""Read the state of a run that is not trained further: its last round, complete or refused.

A resumed run skips a damaged checkpoint and computes its round again (`shoal.engine.store.checkpoint.newest_valid`). A
reader that did the same would silently answer from an older model.
"""

from __future__ import annotations

from shoal.engine.store.checkpoint import Checkpoint, load_round
from shoal.engine.store.codec import StoreError
from shoal.engine.store.run_folder import RunError, RunFolder


def read_state(run: RunFolder) -> Checkpoint:
    """Return the state of the last round, after comparing every file of it with its digest.

    Args:
        run: the run's folder.

    Raises:
        RunError: no round is finished yet.
        StoreError: a file of the round is missing, truncated, changed, or of another round; the message names the run,
            the file and what to do.
    """
    state = read_state_if_any(run)
    if state is None:
        raise RunError(f"run {run.name} has no finished round yet")
    return state


def read_state_if_any(run: RunFolder) -> Checkpoint | None:
    """Return the state of a run's last round as `read_state` does; None for a run without a round.

    Raises:
        StoreError: see `read_state`.
    """
    last = last_round(run)
    if last is None:
        return None
    try:
        return load_round(run, last)
    except StoreError as error:
        raise StoreError(
            f"run {run.name}: {error}; `shoal run --resume {run.name}` computes round {last} again"
        ) from error


def last_round(run: RunFolder) -> int | None:
    """Return the number of the last round, even if its files are damaged; None for a run without a round.

    Raises:
        RunError: the run's status is missing or damaged.
    """
    status = run.status()
    if status.is_finished:
        return status.round
    return max(run.round_folders(), default=None)
