"""The clusters of a run whose samples lie at sites, in numbers: sizes, quality and verdict, and no table of samples.

Each site keeps the table of its own samples, compares its clusters with null baselines on these, and sends counts and
scores. The comparison of all is the mean of theirs by samples.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np

from shoal.data.sets.prepared import open_prepared
from shoal.engine.messages.wire import Assign, Call, Failure, SiteAssignAnswer
from shoal.engine.rounds.site_evaluation import BY_SITE
from shoal.engine.store.checkpoint import load_index, load_manifest
from shoal.engine.store.lineage import SiteVersion
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.contract.context import MethodError
from shoal.methods.scores.baselines import Comparison, mean_comparison
from shoal.methods.scores.client_scores import BY_CLIENT
from shoal.methods.scores.quality import size_shares
from shoal.methods.scores.withheld import AT_LEAST, WITHHELD
from shoal.review.results.clusters import clustered_data, dependence_on_sites, write_facts

Baseline = Callable[[int], tuple[str, Comparison] | None]
"""Returns the space of a federated baseline of so many clusters, and how the sites judge it; None: there is none."""


def answers_of_sites(run: RunFolder, round: int, call: Call) -> list[SiteAssignAnswer]:
    """Have each site find the clusters of its samples; arguments and errors as of `write_clusters_of_sites`."""
    sites = run.lineage().sites
    ask = partial(assign_at_site, run, round, call)
    with ThreadPoolExecutor(len(sites), thread_name_prefix="sites") as threads:
        return list(threads.map(ask, sites, sites.values()))


def write_clusters_of_sites(run: RunFolder, round: int, call: Call, *, baseline: Baseline) -> None:
    """Have each site find the clusters of its samples under the state of the last round; write what they come to.

    Args:
        run: the run's folder.
        round: the last round.
        call: has a site do a request.
        baseline: is asked where clusters are the same at every site, and takes the place of each site's own.

    Raises:
        MethodError: a site could not do it. SiteLost: a site did not answer.
    """
    sites = run.lineage().sites
    answers = answers_of_sites(run, round, call)
    # Without clusters that are the same at every site, no table of counts was added up.
    manifest = load_manifest(run, round)
    told = {} if manifest.record is None else manifest.record.metrics
    common = "clusters_used" in told or f"clusters_used{AT_LEAST}" in told
    comparison = comparison_of(answers)
    if common and comparison is not None and (trained := baseline(answers[0].clusters)) is not None:
        comparison = beside(comparison, *trained)
    quality: dict[str, float | None] = {f"silhouette{BY_SITE}": mean_silhouette(answers)}
    dependence = None
    counts = np.vstack([answer.counts for answer in answers])
    if common and (counts != WITHHELD).all():
        quality |= size_shares(counts.sum(0))
        held = np.vstack([answer.counts[:-1] for answer in answers])  # without samples that no client has
        rows, clusters = np.indices(held.shape)
        clients = np.concatenate([about.clients for about in sites.values()])[rows.ravel()]
        times = held.ravel()
        cluster = np.repeat(clusters.ravel(), times)
        dependence = dependence_on_sites(run, cluster, np.repeat(clients, times), held.shape[1])
    if comparison is not None:
        numbers = comparison.numbers.items()
        quality |= {name if name.endswith(BY_CLIENT) else name + BY_SITE: value for name, value in numbers}
    write_facts(
        run,
        quality,
        comparison,
        dependence,
        round=round,
        clusters=answers[0].clusters,
        confidence="probability",
        data=clustered_data(open_prepared(run.folder_of("data"))),
        files={},
        by_site={
            site: tuple(np.where((answer.counts == WITHHELD).any(0), WITHHELD, answer.counts.sum(0)).tolist())
            for site, answer in zip(sites, answers, strict=True)
        },
    )


def comparison_of(answers: list[SiteAssignAnswer]) -> Comparison | None:
    """Return the mean of the sites' comparisons with null baselines; None: no site has one."""
    comparisons = [answer.comparison for answer in answers if answer.comparison is not None]
    return mean_comparison(comparisons) if comparisons else None


def beside(comparison: Comparison, space: str, baseline: Comparison) -> Comparison:
    """Return a comparison with a federated baseline in a space in place of each site's own."""
    acc = dict(comparison.baseline_acc)
    if baseline.acc is not None:
        acc[space] = baseline.acc
    neighbours = {**comparison.baseline_neighbours, space: baseline.neighbours}
    return replace(comparison, baseline_acc=acc, baseline_neighbours=neighbours)


def assign_at_site(run: RunFolder, round: int, call: Call, site: str, about: SiteVersion) -> SiteAssignAnswer:
    """Have a site find the clusters of its samples; arguments and errors as of `write_clusters_of_sites`."""
    index = load_index(run, round)
    files = tuple(index.client(client) for client in about.clients)
    answer = call(Assign(run.path, round, RoundPaths(run.path, round).server, files, site=site))
    if isinstance(answer, Failure):
        raise MethodError(answer.error)
    assert isinstance(answer, SiteAssignAnswer)
    return answer


def mean_silhouette(answers: list[SiteAssignAnswer]) -> float | None:
    """Return the mean over the sites that have one, by samples; None: none has."""
    having = [answer for answer in answers if answer.silhouette is not None]
    if not having:
        return None
    return float(np.average([answer.silhouette for answer in having], weights=[np.abs(a.counts).sum() for a in having]))
