"""The number of clusters that was chosen for a run with `model.clusters: auto`, and how."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.methods.clustering.cluster_number import Tried

MIN_STABILITY = 0.6
"""Adjusted Rand index over halves of the samples, below which a number of clusters is not to be trusted."""


@dataclass(frozen=True)
class Choice:
    """A number of clusters, and how it was chosen.

    Args:
        clusters: the number.
        rule: why this one, in a sentence.
        min_clusters, max_clusters: the numbers from and to which clusters were sought.
        repeats: pairs of halves of the samples.
        seed: of every draw.
        features: what was clustered: `fedsimclr` (features of an encoder) or `samples`.
        features_run: name of the run that trained the encoder, where there was one.
        samples: how many samples were clustered.
        bytes_up, bytes_down: what clients and server would have sent each other for it.
        curve: every number with its criteria.
        data_digest, partition_digest, settings_sha256: of what it was chosen for.
    """

    clusters: int
    rule: str
    min_clusters: int
    max_clusters: int
    repeats: int
    seed: int
    features: str
    features_run: str | None
    samples: int
    bytes_up: int
    bytes_down: int
    curve: tuple[Tried, ...]
    data_digest: str
    partition_digest: str
    settings_sha256: str

    @property
    def doubt(self) -> str | None:
        """Why this number is not to be trusted, in words that follow a colon; None where nothing speaks against it."""
        stability = next((each.stability for each in self.curve if each.clusters == self.clusters), 1.0)
        if stability < MIN_STABILITY:
            return (
                f"the clusters of two halves of the samples agree little (adjusted Rand index {stability:.2f}), so "
                "that no number fits well"
            )
        if self.clusters == self.max_clusters:
            return f"{self.clusters} is the largest that was tried: set choose.max_clusters higher"
        if self.clusters == self.min_clusters and self.min_clusters > 2:
            return f"{self.clusters} is the smallest that was tried: set choose.min_clusters lower"
        if self.clusters == self.min_clusters:
            return f"{self.clusters} is the smallest that was tried: the samples may be of one kind"
        return None
