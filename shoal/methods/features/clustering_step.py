"""What a kind of round of a federated clustering of vectors consists of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

import numpy as np

from shoal.core.streams import Streams
from shoal.methods.clustering.declared_sums import ClientLimits
from shoal.methods.contract.base import Client, Server
from shoal.methods.contract.declared import MessageForm
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.features.centre_clustering import CentreClustering
from shoal.methods.features.robust_totals import totals
from shoal.methods.features.vectors import ClientVectors

Answers = Iterable[tuple[int, Tensors]]
"""What clients answered, each with the client's id."""


class ClusteringStep(ABC):
    """A kind of round: what a client answers, the form that this has, and what the server makes of all answers.

    Args:
        clustering: the method, whose settings and vectors are meant.
    """

    in_the_space = True
    """Whether clients answer of vectors in the space, as the message has it; False: as far as it is known."""

    def __init__(self, clustering: CentreClustering) -> None:
        self.clustering = clustering
        self.settings = clustering.settings
        self.clusters = clustering.context.clusters

    @abstractmethod
    def form(self, server: Server, limits: ClientLimits) -> MessageForm:
        """Return the form of an answer without noise."""

    @abstractmethod
    def answer(self, message: Message, client: Client, z: ClientVectors) -> Tensors:
        """Return what a client sends of its vectors z (n, k)."""

    @abstractmethod
    def after(self, server: Server, answers: Answers) -> Server:
        """Return the state after a round, by what the clients answered in it."""

    def row_bounds(self, message: Message) -> Mapping[str, float]:
        """Return how long a change one row makes to each tensor of an answer; none where no noise can cover it."""
        return {}

    def totals(self, answers: Answers) -> Tensors:
        """Return the totals of the clients' sums, by the rule of `aggregation`."""
        return totals((tensors for _, tensors in answers), self.clustering.context.aggregation)

    def server_rng(self, purpose: str) -> np.random.Generator:
        """Return the server's random numbers for a purpose, the same in every round."""
        return Streams(self.clustering.context.seed).numpy(purpose)
