"""FedKMeans: K-means over the vectors of all clients, of which only sums and counts leave a client."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shoal.methods.contract.base import Server
from shoal.methods.contract.questions import Question
from shoal.methods.features.centre_clustering import FeatureSettings
from shoal.methods.features.feature_clustering import FeatureClustering


@dataclass(frozen=True)
class FedKMeansSettings(FeatureSettings):
    """Hyper-parameters of federated K-means."""


class FedKMeans(FeatureClustering):
    """Federated K-means as a method: one iteration a round gives what K-means on the pooled vectors would give.

    With `space: directions` directions are compared (spherical K-means up to the length of the centres).
    """

    name = "fedkmeans"
    title = "federated K-means"
    question = Question.VECTORS
    about = "K-means over all clients, from sums and counts; takes seconds."
    Settings = FedKMeansSettings
    settings: FedKMeansSettings

    def after_iteration(self, server: Server) -> Server:
        """Return the state, finished once the centres stand still."""
        return replace(server, finished=bool(server.facts["still"]))
