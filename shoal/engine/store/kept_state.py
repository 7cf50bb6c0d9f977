"""Read the state of a run that is not trained further: the last round or a named one, complete or refused.

A resumed run skips a damaged checkpoint and computes its round again (`shoal.engine.store.checkpoint.newest_valid`). A
reader that did the same would silently answer from an older model.
"""

from __future__ import annotations

from shoal.engine.store.checkpoint import Checkpoint, has_server, load_round, rounds_done
from shoal.engine.store.codec import StoreError
from shoal.engine.store.run_folder import RunError, RunFolder

MAX_ROUNDS_NAMED = 10
"""Most rounds that an error names."""


def read_state(run: RunFolder, round: int | None = None) -> Checkpoint:
    """Return the state of a round, after comparing every file of it with its digest.

    Args:
        run: the run's folder.
        round: the round; None: the last one.

    Raises:
        RunError: no round is finished yet, or the state of the named round is not kept.
        StoreError: a file of the round is missing, truncated, changed, or of another round; the message names the run,
            the file and what to do.
    """
    last = last_round(run)
    if last is None:
        raise RunError(f"run {run.name} has no finished round yet")
    number = last if round is None else round
    kept = [done for done in rounds_done(run) if has_server(run, done)]
    if round is not None and round not in kept:
        named = ", ".join(map(str, kept[-MAX_ROUNDS_NAMED:])) or "none"
        raise RunError(f"run {run.name} does not keep the state of round {round}: it keeps {named}")
    try:
        return load_round(run, number)
    except StoreError as error:
        raise StoreError(
            f"run {run.name}: {error}; `shoal run --resume {run.name}` computes round {number} again"
        ) from error


def read_state_if_any(run: RunFolder) -> Checkpoint | None:
    """Return the state of a run's last round as `read_state` does; None for a run without a round.

    Raises:
        StoreError: see `read_state`.
    """
    if last_round(run) is None:
        return None
    return read_state(run)


def last_round(run: RunFolder) -> int | None:
    """Return the number of the last round, even if its files are damaged; None for a run without a round.

    Raises:
        RunError: the run's status is missing or damaged.
    """
    status = run.status()
    if status.is_finished:
        return status.round
    return max(run.round_folders(), default=None)
