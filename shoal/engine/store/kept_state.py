"""The state of a run for everything that reads a run and does not train it: whole, or refused.

Resuming passes over a damaged checkpoint and computes its round again (`shoal.engine.store.checkpoint.newest_valid`). A
reader that did so would answer from an older model without a word. So a reader gets the last round, or the round that
it names.
"""

from __future__ import annotations

from shoal.core.errors import ShoalError
from shoal.engine.store.checkpoint import Checkpoint, has_server, load_round, rounds_done
from shoal.engine.store.codec import StoreError
from shoal.engine.store.run_folder import RunError, RunFolder

MAX_ROUNDS_NAMED = 10
"""An error names at most so many of the rounds that are kept."""


def read_state(run: RunFolder, round: int | None = None) -> Checkpoint:
    """Return the state of a run's last round, or of the round that is named, with every file compared with its digest.

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
    if round is not None and round not in kept_rounds(run):
        raise RunError(f"run {run.name} does not keep the state of round {round}: it keeps {named_rounds(run)}")
    number = last if round is None else round
    try:
        checkpoint = load_round(run, number)
        if number == last:
            check_final_state(run, checkpoint)
    except (StoreError, KeyError, TypeError, ValueError, AttributeError) as error:
        why = str(error) if isinstance(error, ShoalError) else f"round {number} cannot be read ({error})"
        raise StoreError(f"run {run.name}: {why}; {remedy(run, number)}") from error
    return checkpoint


def read_state_if_any(run: RunFolder) -> Checkpoint | None:
    """Return the state of a run's last round as `read_state`; None for a run without a round.

    Raises:
        StoreError: see `read_state`.
    """
    if last_round(run) is None:
        return None
    return read_state(run)


def last_round(run: RunFolder) -> int | None:
    """Return the number of the last round, whether its files are whole or not; None where there is none.

    Raises:
        StoreError: the run's status is damaged. RunError: it is missing.
    """
    folders = round_folders(run)
    status = run.status()
    if status.is_finished:
        return status.round
    return max(folders, default=None)


def round_folders(run: RunFolder) -> list[int]:
    """Return the rounds that have a folder, ascending, also those without a manifest."""
    if not run.rounds.is_dir():
        return []
    return sorted(int(path.name) for path in run.rounds.iterdir() if path.name.isdecimal())


def kept_rounds(run: RunFolder) -> list[int]:
    """Return the rounds whose server state is kept, ascending."""
    if not run.rounds.is_dir():
        return []
    return [round for round in rounds_done(run) if has_server(run, round)]


def named_rounds(run: RunFolder, without: int | None = None) -> str:
    """Return the rounds whose state is kept, in words.

    Args:
        run: the run's folder.
        without: a round that is left out.
    """
    rounds = [round for round in kept_rounds(run) if round != without][-MAX_ROUNDS_NAMED:]
    return ", ".join(map(str, rounds)) or "none"


def remedy(run: RunFolder, round: int) -> str:
    """Return what a user can do about a damaged round, in words."""
    compute = f"`shoal run --resume {run.name}` computes round {round} again"
    others = named_rounds(run, without=round)
    if others == "none":
        return compute
    return f"{compute}, and --round takes an older state where a command has it (kept: {others})"


def check_final_state(run: RunFolder, checkpoint: Checkpoint) -> None:
    """Compare the last state of a finished run with the digest in its status.

    Raises:
        StoreError: it is another state.
    """
    expected = run.status().weights_sha256
    if expected is not None and checkpoint.manifest.server_sha256 != expected:
        raise StoreError(
            f"{run.rounds / f'{checkpoint.manifest.round:04d}'} holds another state than the one that the run ended "
            "with"
        )
