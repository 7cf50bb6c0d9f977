"""The number of clusters that was chosen for a run with `model.clusters: auto`, and how."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.methods.clustering.cluster_number import Candidate

MIN_STABILITY = 0.6
"""Adjusted Rand index between clusterings of two halves of the samples, below which their number is doubtful."""


@dataclass(frozen=True)
class Choice:
    """A number of clusters, and how it was chosen.

    Args:
        clusters: the number.
        rule: why this number, in a sentence.
        min_clusters, max_clusters: smallest and largest number that was tried.
        repeats: number of random divisions of the samples into halves.
        seed: seed of all draws.
        features: what was clustered: `fedsimclr` (features of an encoder that was trained for it), the name of a frozen
            encoder, or `samples`.
        samples: number of samples that were clustered.
        curve: every number that was tried, with its criteria.
        data_digest, partition_digest, settings_sha256: digests of the data, partition and settings of the choice.
    """

    clusters: int
    rule: str
    min_clusters: int
    max_clusters: int
    repeats: int
    seed: int
    features: str
    samples: int
    curve: tuple[Candidate, ...]
    data_digest: str
    partition_digest: str
    settings_sha256: str

    @property
    def doubt(self) -> str | None:
        """Why this number is doubtful, as the end of a sentence; None: it is not."""
        stability = next((each.stability for each in self.curve if each.clusters == self.clusters), 1.0)
        if stability < MIN_STABILITY:
            return (
                f"the clusters of two halves of the samples agree little (adjusted Rand index {stability:.2f}), so "
                "that no number fits well"
            )
        if self.clusters == self.max_clusters:
            return f"{self.clusters} is the largest that was tried: set choose.max_clusters higher, if samples allow"
        if self.clusters != self.min_clusters:
            return None
        smallest = f"{self.clusters} is the smallest that was tried"
        loudest = max(self.curve, key=lambda each: each.silhouette, default=None)
        if loudest is not None and loudest.clusters > self.clusters:
            return (
                f"{smallest}, and the silhouette is largest at {loudest.clusters}: try "
                f"model.clusters={loudest.clusters}, too"
            )
        if self.min_clusters > 2:
            return f"{smallest}: set choose.min_clusters lower"
        return f"{smallest}: the samples may be of one kind"
