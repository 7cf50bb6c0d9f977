"""The tasks that judge a champion and its challenger, and that carry out what was decided."""

from __future__ import annotations

from pathlib import Path

from prefect import task

from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.night_settings import NightSettings
from shoal.review.served.drift import Drift, find_drift
from shoal.review.served.judging import Decision
from shoal.review.served.judging import compare as compare_models
from shoal.review.served.promotion import carry_out_decision
from shoal.tasks.prefect.retries import OF_A_RUN


@task(name="drift", **OF_A_RUN)
def drift(champion: str, data: str, night: NightSettings, seed: int) -> list[Drift]:
    """Compare the samples that came last with those before, as the champion sees them.

    Args:
        champion: folder of the champion's run.
        data: folder of the data set.
        night: says how rare a false alarm is to be.
        seed: of draws.
    """
    return find_drift(RunFolder(Path(champion)), Path(data), night.drift, seed)


@task(name="compare", **OF_A_RUN)
def compare(challenger: str, champion: str | None, data: str, night: NightSettings) -> Decision:
    """Judge both models on the held-out samples and decide which is to be used.

    Args:
        challenger: folder of the challenger's run.
        champion: folder of the champion's run; None where there is none.
        data: folder of the data set.
        night: says which score decides, and by what margin.
    """
    known = None if champion is None else RunFolder(Path(champion))
    return compare_models(RunFolder(Path(challenger)), known, Path(data), night.score, night.margin)


@task(name="decide", **OF_A_RUN)
def decide(run: str) -> str | None:
    """Tell MLflow what was decided of a run: the alias champion, and tags.

    Args:
        run: folder of the challenger's run.

    Returns:
        The version of its model.
    """
    return carry_out_decision(RunFolder(Path(run)))
