"""The number of clusters of samples that lie at sites: sought under their policies, with lines in their logs.

Sites are asked about a run that is kept beside the null baselines, and that a site may have to approve. Its first
rounds find the space in which its method clusters, and whether sites have offsets beside as many clusters as there may
be; the next ones are the search (`number_steps`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from shoal.data.partition.table import Partition
from shoal.data.sets.prepared import PreparedSet
from shoal.engine.rounds.loop import Engine
from shoal.engine.rounds.runner import ThreadRunner
from shoal.engine.settings.run_settings import Settings, SettingsError, make_settings
from shoal.engine.sites.pools import open_pool
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.choosing import LESS_OFFSETS, Found
from shoal.methods.clustering.cluster_number import Candidate, ClusterNumber, choose_number
from shoal.methods.features.centre_clustering import CENTRES, has_offsets
from shoal.methods.features.number_steps import SAMPLES, SEEK, SMALLEST, TRIED

ROUNDS = 100
"""More than a search has."""
COMPONENTS = 16
"""Principal components among which clusters are sought, where the method keeps all columns."""
BY_K_MEANS = "; without landmarks, because samples lie at sites"
LEAST_GROUP = 5
"""The least `method.min_points` of a search, and that of a baseline whose method has no such setting."""


def settings_of_search(settings: Settings, sought: Settings) -> Settings:
    """Return the settings of the run about which sites are asked.

    Args:
        settings: of the run whose number of clusters is open.
        sought: in whose space it is sought, here without landmarks.
    """
    raw = sought.to_json()
    raw["model"]["clusters"] = settings.choose.max_clusters
    # Ten times half of the same samples: of smaller groups some differ by a single sample.
    least = max(getattr(settings.method, "min_points", LEAST_GROUP), LEAST_GROUP)
    components = sought.method.components or COMPONENTS
    raw["method"] |= {"landmarks": 0, "components": components, "min_points": least}
    raw["participation"] = {"minimum": 1.0}
    raw["rounds"] = raw["evaluate"]["every"] = ROUNDS
    return make_settings(raw)


def find_at_sites(
    settings: Settings,
    sought: Settings,
    prepared: PreparedSet,
    table: Partition,
    *,
    begin: Callable[[Settings, str], RunFolder],
) -> Found:
    """Return the number of clusters of samples that lie at sites.

    Args:
        settings, sought, prepared, table: see `find_here`.
        begin: returns the run with some settings on the set with a digest.

    Raises:
        SettingsError: sites are not reached. RoundFailed: one refuses, or does not answer.
        MethodError: too few samples, or features that are all the same.
    """
    if settings.workers.runner != "sites":
        raise SettingsError(f"samples of {prepared.manifest.name!r} lie at sites: set workers.runner=sites")
    run = begin(settings_of_search(settings, sought), prepared.manifest.digest)
    with (
        run.locked(),
        open_pool(settings.workers, "cpu") as pool,
        closing(ThreadRunner(pool.count + 1)) as runner,
        (engine := Engine(run, pool.call, runner, pool.count)).removal,
    ):
        state = engine.start()
        while not state.server.finished:
            if SEEK not in state.server.facts and len(state.server.model.get(CENTRES, ())) == 1:
                facts = {**state.server.facts, SEEK: "halves", SMALLEST: settings.choose.min_clusters}
                state = replace(state, server=replace(state.server, facts=facts))
            state = engine.round(state)
    told = state.server.facts
    tried = tuple(Candidate(*criteria) for criteria in told[TRIED])
    how = BY_K_MEANS * bool(sought.method.landmarks) + LESS_OFFSETS * has_offsets(state.server.model)
    return ClusterNumber(*choose_number(tried), tried), told[SAMPLES], how
