"""FedSimCLR with a pool of negatives and federated K-means: a variant of ours of FedPNP for uneven clients.

FedPNP (Miao and Koyuncu 2024) leaves those samples out of an anchor's negatives that a past model puts into the same
cluster. Its clusters are those of an averaged head, on which clients of different classes do not agree, and it leaves
out little before they are right. Here the negatives leave out an anchor's neighbours: the samples of the client whose
features under the broadcast network are most similar to its own. That asks for no head, no cluster and no agreement,
and for nothing that a client would not have. Once training has gone on for a while, features say well enough who is
alike; before, all others are negatives, as in FedSimCLR. The clusters are found by federated K-means at the end.

On digits 0.83 to 0.93 of the pairs that the pool leaves out are of one class, and eight seeds show no gain over the
same without it (docs/results/beyond.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from shoal.core.setting import setting
from shoal.methods.contract.base import Client, Update
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.losses.contrastive import contrastive
from shoal.methods.scores.pool_quality import pool_quality, pool_shares
from shoal.methods.ssd.fedsimclr_kmeans import FedSimCLRKMeans, FedSimCLRKMeansSettings
from shoal.methods.ssd.neighbours import far_apart, find_neighbours
from shoal.methods.training.local_steps import LocalSteps, TakenSteps
from shoal.methods.training.model_stack import Batch, LocalModel, StepResult

COMPONENTS = 16
"""At most so many principal components say who is a neighbour: a client has few samples to find more by."""


@dataclass(frozen=True)
class FedSimCLRPoolSettings(FedSimCLRKMeansSettings):
    """Hyper-parameters of FedSimCLR with a pool of negatives."""

    neighbours: float = setting(
        0.05,
        "share of a client's other samples, those with the most similar features, that are no negatives of a sample; "
        "keep it well below the share of a class",
        ge=0,
        lt=1,
    )
    pool_after: float = setting(
        0.25, "share of the rounds of training in which all other samples are still negatives", ge=0, le=1
    )


class FedSimCLRPool(FedSimCLRKMeans):
    """FedSimCLR with a pool of negatives as a method; server state and what travels are `FedSimCLRKMeans`'s."""

    name = "fedsimclr_pool"
    Settings = FedSimCLRPoolSettings
    settings: FedSimCLRPoolSettings

    def has_pool(self, round: int) -> bool:
        """Whether the negatives of round `round` (1-based) leave out neighbours."""
        return self.settings.neighbours > 0 and round > self.settings.pool_after * self.training_rounds

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """FedSimCLR's local epochs; once there is a pool, with what says who is a neighbour in each batch."""
        steps = super().local_steps(message, client)
        if not self.has_pool(client.streams.round) or len(client.train) < 2:
            return steps
        labelled = client.train.data.train_y is not None
        direction, reach = find_neighbours(
            self.own_features(message, client),
            self.settings.neighbours,
            min(self.settings.components or COMPONENTS, COMPONENTS),
        )

        def select(positions: Tensor) -> Batch:
            # Labels judge the pool, and do nothing else.
            classes = (client.train.y(positions),) if labelled else ()
            return *steps.select(positions), direction[positions], reach[positions], *classes

        def inputs(batch: Batch) -> Batch:
            return *steps.inputs(batch[:1]), *batch[1:]

        def finish(taken: TakenSteps) -> Update:
            return steps.finish(replace(taken, metrics=pool_quality(taken.metrics)))

        return replace(steps, select=select, inputs=inputs, finish=finish, alike=(steps.alike, "pool"))

    def step_loss(self, model: LocalModel, parameters: Tensors, batch: Batch, extra: Tensors) -> StepResult:
        """NT-Xent of the projections; once there is a pool, an anchor's neighbours are none of its negatives."""
        x, *known = batch
        if not known:
            return super().step_loss(model, parameters, batch, extra)
        direction, reach, *classes = known
        with self.context.autocast():
            z_a, z_b = model(x).z.chunk(2)
        negatives = far_apart(direction, reach)
        pools = (negatives, negatives)
        loss = contrastive(z_a, z_b, self.settings.tau, pools)
        return loss, dict(pool_shares(pools, classes[0] if classes else None))
