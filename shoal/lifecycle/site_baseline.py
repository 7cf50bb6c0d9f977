"""The null baseline of a run at sites: federated K-means on the same samples, trained once for a set.

It is a run like others, under each site's policy and ledger, of which the sites judge the clusters as those of the run.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.core.errors import ShoalError
from shoal.engine.messages.wire import Call
from shoal.engine.settings.run_settings import Settings, make_settings
from shoal.engine.store.run_events import WARNING
from shoal.engine.store.run_facts import RunFacts
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.site_number import LEAST_GROUP
from shoal.lifecycle.starting import kept_run
from shoal.methods.scores.baselines import Comparison
from shoal.models.encoders import PIXELS
from shoal.review.results.site_clusters import answers_of_sites, comparison_of

SHARED = ("data", "partition", "workers", "participation", "privacy")
"""Sections of the settings that a run and its baseline share."""


def federated_baseline(
    run: RunFolder, call: Call, train: Callable[[RunFolder], object], clusters: int
) -> tuple[str, Comparison] | None:
    """Return the name of the space of the baseline, and how it compares; None where a site or its policy refuses it,
    or where the run has noise.

    Args:
        run: the run's folder.
        call: has a site do a request.
        train: does the rounds of a run.
        clusters: of the run.
    """
    facts = RunFacts(run)
    if facts.settings.privacy.secret:
        return None  # it would spend the budget of the run
    settings = baseline_settings(facts.settings, facts.spec.kind, clusters)
    try:
        baseline = kept_run(settings, facts.lineage.data.digest)
        train(baseline)
        answers = answers_of_sites(baseline, baseline.status().round, call)
    except ShoalError as error:
        message = f"null baselines are each site's own, since federated K-means was not trained: {error}"
        run.event("baseline_skipped", level=WARNING, message=message)
        return None
    name = "columns"
    if facts.spec.kind == "image":
        name = "pixels"
    elif facts.spec.measurements:
        name = "standardised"
    comparison = comparison_of(answers)
    return (name, comparison) if comparison else None


def baseline_settings(settings: Settings, kind: str, clusters: int) -> Settings:
    """Return the settings of the baseline: the same for all runs on a set, with as many clusters.

    Raises:
        SettingsError: federated K-means lacks something that the settings demand.
    """
    raw = {key: value for key, value in settings.to_json().items() if key in SHARED}
    raw["model"] = {"clusters": clusters}
    if kind == "image":
        raw["model"]["encoder"] = PIXELS
    raw["method"] = {"name": "fedkmeans", "min_points": getattr(settings.method, "min_points", LEAST_GROUP)}
    raw["tracking"] = {"mlflow": False}
    return make_settings(raw)
