"""FedGMM: a mixture of Gaussians over the vectors of all clients, by EM whose statistics are summed over clients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from shoal.core.setting import setting
from shoal.methods.clustering.declared_sums import ClientLimits, count_form, total_form
from shoal.methods.contract.base import Client, Server
from shoal.methods.contract.context import Context, MethodError
from shoal.methods.contract.declared import MessageForm
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.prediction import Prediction
from shoal.methods.contract.questions import Question
from shoal.methods.features.centre_clustering import CENTRES, FeatureSettings
from shoal.methods.features.clustering_step import Answers, ClusteringStep
from shoal.methods.features.declared_mixture import check_mixture
from shoal.methods.features.feature_clustering import FeatureClustering
from shoal.methods.features.mixture import Mixture, Shape, expected_sums, maximised, product_shape
from shoal.methods.features.private_sums import ITERATIONS, LEAST_VARIANCE, SURE
from shoal.methods.features.space_steps import COUNT_NOISE
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

    def __init__(self, settings: FedGMMSettings, context: Context) -> None:
        super().__init__(settings, context)
        self.steps["mix"] = NoisyExpectationMaximisation(self) if self.private else ExpectationMaximisation(self)

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

    def offset(self, message: Message, client: Client, z: ClientVectors) -> Tensor:
        """Return the offset of a client's vectors z (n, k): in steps of EM that which K-means left."""
        if message.facts["step"] != "mix":
            return super().offset(message, client, z)
        none = torch.zeros(message.tensors[CENTRES].shape[2], dtype=torch.float64)
        return client.memory.get(SITE_OFFSET, none).to(self.context.device)

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


class ExpectationMaximisation(ClusteringStep):
    """One step of EM: clients send sums of what each component is responsible for."""

    clustering: FedGMM
    settings: FedGMMSettings

    def form(self, server: Server, limits: ClientLimits) -> MessageForm:
        """Return the form of the statistics that the client's vectors can have."""
        _, clusters, width = server.model[CENTRES].shape
        shape = self.settings.covariance
        forms = {
            "weights": count_form((clusters,), limits.samples),
            "sums": total_form((clusters, width)),
            "products": total_form(product_shape(shape, clusters, width)),
            "likelihood": replace(total_form(()), measured=False),
        }
        mixture = self.clustering.mixture(server.model)
        rule = partial(check_mixture, mixture=mixture, centres=server.model[CENTRES][0], shape=shape, limits=limits)
        return MessageForm(forms, rule=rule)

    def row_bounds(self, message: Message) -> Mapping[str, float]:
        """Return the bounds of statistics, to which a row adds one responsibility in all."""
        length = self.clustering.row_length(message.tensors)
        return {"weights": 1.0, "sums": length, "products": length**2}

    def answer(self, message: Message, client: Client, z: ClientVectors) -> Tensors:
        """Return the statistics of a client's vectors."""
        clustering = self.clustering
        centres = message.tensors[CENTRES][0].to(clustering.context.device)
        mixture = clustering.mixture(message.tensors)
        shape = self.settings.covariance
        return expected_sums(z.blocks(), mixture, centres, shape, min_points=clustering.min_points)

    def after(self, server: Server, answers: Answers) -> Server:
        """Return the state after a step of EM, finished once the likelihood rises no more."""
        total = self.totals(answers)
        model = self.with_mixture(server.model, maximised(total, server.model[CENTRES][0], self.settings.covariance))
        likelihood = float(total["likelihood"] / total["weights"].sum())
        before = server.facts.get("likelihood")
        first = WEIGHTS not in server.model  # its statistics are of K-means: there is no likelihood yet
        facts = server.facts if first else {**server.facts, "likelihood": likelihood}
        done = not first and before is not None and likelihood - before < TOLERANCE
        return server.next(model, facts=facts, finished=done)

    def with_mixture(self, model: Tensors, mixture: Mixture) -> Tensors:
        """Return the model with a mixture in place of its centres."""
        parts = {CENTRES: mixture.means[None], WEIGHTS: mixture.weights, COVARIANCES: mixture.covariances}
        return {**model, **parts}


class NoisyExpectationMaximisation(ExpectationMaximisation):
    """Under noise a few steps of EM, in which components of doubtful weight stay."""

    def after(self, server: Server, answers: Answers) -> Server:
        """Return the state after a step of EM, finished after enough of them."""
        total = self.totals(answers)
        means = server.model[CENTRES][0]
        steps = int(server.facts.get("steps", 0)) + 1
        facts = {**server.facts, "steps": steps}
        sure = total["weights"] > SURE * math.sqrt(3) * float(server.facts[COUNT_NOISE])
        model = server.model
        if bool(sure.any()):
            total = {**total, "weights": total["weights"].where(sure, 0)}
            least = LEAST_VARIANCE / means.shape[1]
            model = self.with_mixture(model, maximised(total, means, self.settings.covariance, least=least))
        return server.next(model, facts=facts, finished=steps >= ITERATIONS)
