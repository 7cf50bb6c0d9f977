"""FedGMM: a mixture of Gaussians over the vectors of all clients, by EM whose statistics are summed over clients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from shoal.core.setting import setting
from shoal.methods.contract.base import Client, Server, Update
from shoal.methods.contract.context import MethodError
from shoal.methods.contract.declared import MessageForm, TensorForm
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.prediction import Prediction
from shoal.methods.contract.questions import Question
from shoal.methods.features.declared_mixture import check_mixture
from shoal.methods.features.feature_clustering import (
    CENTRES,
    LARGEST,
    FeatureClustering,
    FeatureSettings,
)
from shoal.methods.features.mixture import Mixture, Shape, expected_sums, maximised, product_shape
from shoal.methods.features.private_sums import ITERATIONS, LEAST_VARIANCE, SURE
from shoal.methods.features.vectors import SITE_OFFSET, ClientVectors

WEIGHTS = "weights"
COVARIANCES = "covariances"
"""Among the server's tensors, float64: weights (c,) of the components and their covariances, by shape."""
KMEANS_ITERATIONS = 15
"""EM starts from the clusters of at most so many iterations of K-means."""
TOLERANCE = 1e-3
"""EM is done when the mean log-likelihood rises by less, as in scikit-learn."""
MAX_COLUMNS = 512
"""Columns of which covariances are estimated at most."""


@dataclass(frozen=True)
class FedGMMSettings(FeatureSettings):
    """Hyper-parameters of a federated mixture of Gaussians."""

    covariance: Shape = setting(
        "full", "covariances: full (one matrix a component), or tied (one matrix for all components)"
    )


class FedGMM(FeatureClustering):
    """A federated mixture of Gaussians as a method: K-means finds the start, then each round is one step of EM.

    The result is that of EM on the pooled vectors from the same start.
    """

    name = "fedgmm"
    title = "federated mixture of Gaussians"
    question = Question.VECTORS
    about = "Clusters of different shapes and sizes, by EM."
    Settings = FedGMMSettings
    settings: FedGMMSettings

    def next_step(self, server: Server) -> str:
        """Return what the round after a state does: measure, start, move, or mix (a step of EM)."""
        return "mix" if server.facts.get("mix") else super().next_step(server)

    def after_iteration(self, server: Server) -> Server:
        """Return the state, gone over to EM once the centres stand still or have moved often enough."""
        racing = len(server.model[CENTRES]) > 1
        enough = server.facts["still"] or (server.facts["iterations"] >= KMEANS_ITERATIONS and not racing)
        if not enough:
            return server
        if self.space_width(server) > MAX_COLUMNS:
            raise MethodError(
                f"covariances of {self.space_width(server)} columns cannot be estimated: set method.components to "
                f"{MAX_COLUMNS} or fewer"
            )
        return replace(server, facts={**server.facts, "mix": True})

    def exact_form(self, server: Server, client: int, samples: int) -> MessageForm:
        """Return the form of a step of EM, or of the steps before, without noise."""
        if self.next_step(server) != "mix":
            return super().exact_form(server, client, samples)
        _, clusters, width = server.model[CENTRES].shape
        form = partial(TensorForm, dtype=torch.float64, minimum=-LARGEST, maximum=LARGEST)
        forms = {
            "weights": form((clusters,), minimum=0, maximum=samples, measured=False),
            "sums": form((clusters, width)),
            "products": form(product_shape(self.settings.covariance, clusters, width)),
            "likelihood": form((), measured=False),
        }
        rule = partial(check_mixture, mixture=self.mixture(server.model), centres=server.model[CENTRES][0])
        limits = self.limits(server, client, samples)
        return MessageForm(forms, rule=partial(rule, shape=self.settings.covariance, limits=limits))

    def row_bounds(self, message: Message) -> Mapping[str, float]:
        """Return how long a change one row makes to each tensor of the answer to a message, at most."""
        if message.facts["step"] != "mix":
            return super().row_bounds(message)
        length = self.row_length(message.tensors)
        return {"weights": 1.0, "sums": length, "products": length**2}

    def offset(self, message: Message, client: Client, z: ClientVectors) -> Tensor:
        """Return the offset of a client's vectors z (n, k): in steps of EM that which K-means left."""
        if message.facts["step"] != "mix":
            return super().offset(message, client, z)
        none = torch.zeros(message.tensors[CENTRES].shape[2], dtype=torch.float64)
        return client.memory.get(SITE_OFFSET, none).to(self.context.device)

    def work(self, message: Message, client: Client, z: ClientVectors) -> Tensors:
        """Return what a client sends of its vectors z (n, k) in the space."""
        if message.facts["step"] != "mix":
            return super().work(message, client, z)
        centres = message.tensors[CENTRES][0].to(self.context.device)
        mixture = self.mixture(message.tensors)
        return expected_sums(z.blocks(), mixture, centres, self.settings.covariance, min_points=self.min_points)

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Return the state after a step of EM, or after one of the steps before."""
        if self.next_step(server) != "mix":
            return super().aggregate(server, updates)
        total = self.totals_of(update.message.tensors for update in updates)
        if self.private:
            return self.privately_mixed(server, total)
        mixture = maximised(total, server.model[CENTRES][0], self.settings.covariance)
        model = {**server.model, CENTRES: mixture.means[None], WEIGHTS: mixture.weights}
        model[COVARIANCES] = mixture.covariances
        likelihood = float(total["likelihood"] / total["weights"].sum())
        before = server.facts.get("likelihood")
        first = WEIGHTS not in server.model  # its statistics are of K-means: there is no likelihood yet
        facts = server.facts if first else {**server.facts, "likelihood": likelihood}
        done = not first and before is not None and likelihood - before < TOLERANCE
        return server.next(model, facts=facts, finished=done)

    def privately_mixed(self, server: Server, total: Tensors) -> Server:
        """Return the state after a step of EM whose sums have noise; components of doubtful weight stay."""
        means = server.model[CENTRES][0]
        steps = int(server.facts.get("steps", 0)) + 1
        facts = {**server.facts, "steps": steps}
        sure = total["weights"] > SURE * math.sqrt(3) * float(server.facts["count_noise"])
        model = server.model
        if bool(sure.any()):
            total = {**total, "weights": total["weights"].where(sure, 0)}
            mixture = maximised(total, means, self.settings.covariance, least=LEAST_VARIANCE / means.shape[1])
            model = {**model, CENTRES: mixture.means[None], WEIGHTS: mixture.weights, COVARIANCES: mixture.covariances}
        return server.next(model, facts=facts, finished=steps >= ITERATIONS)

    def mixture(self, tensors: Tensors) -> Mixture | None:
        """Return the mixture among the server's tensors; None before the first step of EM."""
        if WEIGHTS not in tensors:
            return None
        device = self.context.device
        weights, means, covariances = (tensors[name].to(device) for name in (WEIGHTS, CENTRES, COVARIANCES))
        return Mixture(weights, means[0], covariances, self.settings.covariance)

    def assign(self, server: Server, z: Tensor) -> Prediction:
        """Return the most likely component of each vector z (n, k), and the probability of each."""
        mixture = self.mixture(server.model)
        if mixture is None:
            return super().assign(server, z)
        soft, _ = mixture.responsibilities(z)
        return Prediction(soft.argmax(1), soft.float(), z.float())
