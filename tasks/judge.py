"""The task that judges a run's newest server state again."""

from __future__ import annotations

from pathlib import Path

from prefect import task

from shoal.engine.rounds.evaluate import evaluate_state
from shoal.engine.store.run_folder import RunFolder
from shoal.tasks.prefect.retries import OF_A_RUN


@task(name="judge", **OF_A_RUN)
def judge(run: str) -> dict[str, float]:
    """Every metric of the newest server state, by name.

    Args:
        run: the run's folder.

    Raises:
        RunError: there is no state yet, or the evaluation failed.
    """
    return evaluate_state(RunFolder(Path(run)))
