"""The score of a finished run: one number, which compares its trial with the others."""

from __future__ import annotations

import math

from shoal.engine.store.run_folder import RunFolder
from shoal.review.results.result import run_result
from shoal.sweeps.search.definition import CLUSTER_SCORES, SCORES, SearchError
from shoal.sweeps.sweep import RunFailed


def score_of(run: RunFolder, name: str) -> float:
    """Return the score of a finished run after its last round.

    Args:
        run: the run's folder.
        name: of the score (`shoal.sweeps.search.definition.SCORES`).

    Raises:
        RunFailed: the score is not defined after the last round.
        SearchError: runs of this method have no such score. StoreError: a file of the run is damaged.
    """
    if name in CLUSTER_SCORES:
        quality = run_result(run).quality
        if not quality:
            reason = next((event.message for event in run.events() if event.kind == "clusters_skipped"), "no clusters")
            raise SearchError(f"the score {name!r} of run {run.name} cannot be computed: {reason}")
        value = quality.get(CLUSTER_SCORES[name], math.nan)
    else:
        rounds = run.table("rounds")
        if name not in rounds:
            usable = ", ".join(sorted({*rounds.columns} & {*SCORES})) or "another one, which it has"
            raise SearchError(f"run {run.name} has no score {name!r}: set score to one of {usable}")
        value = float(rounds[name].iloc[-1])
    if not math.isfinite(value):
        raise RunFailed(f"the score {name!r} is not defined after round {run.status().round}, the last one")
    return value
