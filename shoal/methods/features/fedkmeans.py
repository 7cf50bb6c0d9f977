"""FedKMeans: K-means over the vectors of all clients, of which only sums and counts leave a client."""

from __future__ import annotations

from shoal.methods.contract.base import Server
from shoal.methods.features.feature_clustering import FeatureClustering, FeatureSettings


class FedKMeans(FeatureClustering):
    """Federated K-means as a method: one iteration a round gives what K-means on the pooled vectors would give.

    With `sphere` directions are compared (spherical K-means up to the length of the centres).
    """

    name = "fedkmeans"
    Settings = FeatureSettings

    def after_iteration(self, server: Server) -> Server:
        """Return the state, finished once the centres stand still."""
        return Server(server.model, server.state, server.facts, server.round, finished=bool(server.facts["still"]))
