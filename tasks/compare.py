"""The task that compares a challenger with the champion."""

from __future__ import annotations

from pathlib import Path

from prefect import task

from shoal.engine.sites.pools import open_pool
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.night_settings import NightSettings
from shoal.lifecycle.site_nights import compare_at_sites
from shoal.review.served import judging
from shoal.review.served.judging import Decision, asked_for
from shoal.tasks.prefect.retries import RETRY_ON_IO


@task(name="compare", **RETRY_ON_IO)
def compare(challenger: str, champion: str | None, data: str, night: NightSettings) -> Decision:
    """Score both models on the held-out samples and decide which one to use.

    Args:
        challenger: folder of the challenger's run.
        champion: folder of the champion's run; None where there is no champion.
        data: folder of the data set.
        night: sets the score that decides, the margin, and whether a better challenger waits for approval.
    """
    champion_run = None if champion is None else RunFolder(Path(champion))
    challenger_run = RunFolder(Path(challenger))
    if challenger_run.lineage().sites:
        with open_pool(challenger_run.settings().workers, "cpu") as pool:
            decision = compare_at_sites(challenger_run, champion_run, night.score, night.margin, pool.call)
    else:
        decision = judging.compare(challenger_run, champion_run, Path(data), night.score, night.margin)
    return asked_for(decision, challenger_run) if night.promote == "ask" else decision
