"""The verdict on a run's clusters: good, doubtful or chance, with the reason in a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shoal.methods.scores.baselines import Comparison
from shoal.methods.scores.sites import SiteDependence

CHANCE_FACTOR = 1.5
"""ACC below so many times that of random clusters is chance."""
MARGIN = 0.02
"""ACC by which a run may stay behind the best null baseline."""
CHANCE_NEIGHBOURS = 0.1
DOUBTFUL_NEIGHBOURS = 0.3
"""Neighbour agreement, where there are no labels, below which clusters are called chance or doubtful."""
Word = Literal["good", "doubtful", "chance"]


@dataclass(frozen=True)
class Verdict:
    """What may be made of a run's clusters.

    Attributes:
        word: good, doubtful or chance.
        reason: one sentence.
    """

    word: Word
    reason: str


def verdict_of(comparison: Comparison, sites: SiteDependence | None, *, chosen_at_edge: bool = False) -> Verdict:
    """Return the verdict on clusters.

    Args:
        comparison: with null baselines.
        sites: how much sites say about clusters; None: no sites are known.
        chosen_at_edge: the number of clusters was chosen, and it is the smallest or largest that was tried.
    """
    verdict = _by_labels(comparison) if comparison.acc is not None else _by_neighbours(comparison)
    if verdict.word != "good":
        return verdict
    if sites is not None and sites.site_clusters and sites.nmi > sites.by_chance:
        count = len(sites.site_clusters)
        which = ", ".join(str(k) for k in sites.site_clusters[:5])
        return Verdict(
            "doubtful",
            f"{count} of the clusters ({which}) {'is' if count == 1 else 'are'} little but one site: either that site "
            "alone has such samples, or they show the site and not what is in them; method.centre_sites tells which.",
        )
    if chosen_at_edge:
        return Verdict(
            "doubtful",
            "the number of clusters that was chosen is at the edge of those tried: do not trust it, and widen "
            "choose.min_clusters to choose.max_clusters.",
        )
    return verdict


def _by_labels(comparison: Comparison) -> Verdict:
    acc, chance = comparison.acc, comparison.chance_acc
    assert acc is not None
    assert chance is not None
    if acc < CHANCE_FACTOR * chance:
        return Verdict("chance", f"ACC {acc:.3f} is near the {chance:.3f} of random clusters of the same sizes.")
    name, best = max(comparison.baseline_acc.items(), key=lambda item: item[1])
    if acc < best - MARGIN:
        return Verdict("doubtful", f"K-means on {WORDS.get(name, name)} alone has ACC {best:.3f}, the run {acc:.3f}.")
    return Verdict("good", f"ACC {acc:.3f}, where the best null baseline has {best:.3f} and chance {chance:.3f}.")


def _by_neighbours(comparison: Comparison) -> Verdict:
    score = comparison.neighbours
    space = WORDS.get(comparison.space, comparison.space)
    about = f"of the nearest neighbours among {space}, {score:.0%} more than by chance share a cluster"
    if score < CHANCE_NEIGHBOURS:
        return Verdict("chance", f"{about}: the clusters are hardly better than random ones.")
    if score < DOUBTFUL_NEIGHBOURS:
        return Verdict("doubtful", f"{about}: look at the samples before you trust the clusters.")
    return Verdict("good", f"{about}.")


WORDS = {"raw": "the raw samples", "untrained": "an untrained encoder's features"}
"""What the spaces are called in sentences."""
