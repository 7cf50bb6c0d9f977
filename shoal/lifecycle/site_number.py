"""The number of clusters of samples that lie at sites: sought under their policies, with lines in their logs.

Sites are asked about a run that is kept beside the null baselines, and that a site may have to approve. Its first
rounds find the space in which its method clusters, and then it is the search that goes on in place of its rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import count

import torch

from shoal.data.partition.table import Partition
from shoal.data.sets.prepared import Prepared
from shoal.engine.rounds.loop import Engine
from shoal.engine.rounds.runner import ThreadRunner
from shoal.engine.settings.run_settings import Settings, SettingsError, make_settings
from shoal.engine.sites.number_search import search_of
from shoal.engine.sites.pools import open_pool
from shoal.engine.sites.sites_pool import SitesPool
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.choosing import Found
from shoal.lifecycle.preflight import ENOUGH_ROUNDS
from shoal.lifecycle.progress import step_bar
from shoal.methods.clustering.client_samples import ClientSamples
from shoal.methods.contract.base import Server
from shoal.methods.contract.message import Tensors
from shoal.methods.features.feature_clustering import FeatureClustering

COMPONENTS = 16
"""Principal components among which clusters are sought, where the method keeps all columns."""
BY_K_MEANS = "; without landmarks, because samples lie at sites"
REQUESTS = 2
"""To each site."""
LEAST_GROUP = 5
"""`method.min_points` of a run whose method has no such setting, which a site's policy bounds."""


def settings_of_search(settings: Settings, sought: Settings) -> Settings:
    """Return the settings of the run about which sites are asked.

    Args:
        settings: of the run whose number of clusters is open.
        sought: in whose space it is sought, here without landmarks.
    """
    raw = sought.to_json()
    raw["model"]["clusters"] = settings.choose.max_clusters
    least = getattr(settings.method, "min_points", LEAST_GROUP)
    components = sought.method.components or COMPONENTS
    raw["method"] |= {"landmarks": 0, "components": components, "min_points": least}
    raw["rounds"] = raw["evaluate"]["every"] = ENOUGH_ROUNDS
    return make_settings(raw)


def find_at_sites(
    settings: Settings,
    sought: Settings,
    prepared: Prepared,
    table: Partition,
    *,
    begin: Callable[[Settings, str], RunFolder],
) -> Found:
    """Return the number of clusters of samples that lie at sites.

    Args:
        settings, sought, prepared, table: see `find_here`.
        begin: returns the run with some settings on the set with a digest.

    Raises:
        SettingsError: sites are not reached. RoundFailed, SiteFailed: one refuses. SiteLost: one does not answer.
        MethodError: too few samples, or features that are all the same.
    """
    if settings.workers.runner != "sites":
        raise SettingsError(f"samples of {prepared.manifest.name!r} lie at sites: set workers.runner=sites")
    run = begin(settings_of_search(settings, sought), prepared.manifest.digest)
    with ExitStack() as stack:
        pool = stack.enter_context(open_pool(settings.workers, "cpu"))
        assert isinstance(pool, SitesPool)
        runner = stack.enter_context(closing(ThreadRunner(pool.count + 1)))
        threads = stack.enter_context(ThreadPoolExecutor(pool.count))
        watch = stack.enter_context(step_bar("number of clusters"))
        engine = Engine(run, pool.call, runner, pool.count)
        server, width = space_of(engine)
        facts = engine.facts
        search = search_of(facts.settings)
        nothing = ClientSamples(torch.zeros(0, width).double(), torch.zeros(0).long(), facts.partition.clients)
        numbers = count(1)

        def ask(step: str, told: Tensors) -> list[Tensors]:
            number = next(numbers)
            watch(number, REQUESTS)
            asked = (server.round + number, step, {**server.model, **told}, search.form(step, told, nothing))
            return list(threads.map(lambda site: pool.seek_number(site, facts, *asked), facts.lineage.sites))

        return *search.find(ask), BY_K_MEANS * bool(sought.method.landmarks)


def space_of(engine: Engine) -> tuple[Server, int]:
    """Do the rounds of a run that find the space of its method; return the state after them, and its dimensions."""
    with engine.run.locked():
        state = engine.start()
        method = engine.facts.method
        assert isinstance(method, FeatureClustering)
        while method.next_step(state.server) != "start":
            state = engine.round(state)
        return state.server, method.space_width(state.server)
