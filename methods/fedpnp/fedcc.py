"""FedCC: contrastive clustering (Li et al. 2021) with federated averaging, FedPNP's main baseline.

The same networks, views, optimiser and averaging as FedPNP; every other sample of a batch is a negative, and the
cluster loss has weight 1 throughout.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from core.setting import setting
from methods.base import Client, Message, Update
from methods.fedpnp.cluster_method import ClusterMethod
from methods.losses.contrastive import cluster_contrastive, contrastive
from methods.training.local import batches, build_optimiser, load, run_steps, view_recipe, views, weights


@dataclass(frozen=True)
class FedCCSettings:
    """Hyper-parameters of FedCC."""

    tau_instance: float = setting(0.5, "temperature of the instance-level contrastive loss", gt=0)
    tau_cluster: float = setting(1.0, "temperature of the cluster-level contrastive loss", gt=0)
    alpha: float = setting(1.0, "weight of the cluster-level loss", ge=0)


class FedCC(ClusterMethod):
    """FedCC as a method: server state is one `ClusterNet`; clients keep nothing."""

    name = "fedcc"
    Settings = FedCCSettings
    settings: FedCCSettings

    def client_update(self, message: Message, client: Client) -> Update:
        """Local epochs on L = L_instance + alpha L_cluster."""
        s, local, context = self.settings, self.context.local, self.context
        network = self.network()
        load(network, message.tensors)
        network.train()
        recipe = view_recipe(context)
        generator = client.streams.torch("views", context.device)

        def step(positions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            with context.autocast():
                now = network(views(client.train, positions, recipe, generator))
            (z_a, z_b), (y_a, y_b) = now.z.chunk(2), now.y.chunk(2)
            instance = contrastive(z_a, z_b, s.tau_instance)
            cluster = cluster_contrastive(y_a, y_b, s.tau_cluster)
            confidence = now.y.detach().max(1).values.mean()
            return instance + s.alpha * cluster, {
                "loss_instance": instance,
                "loss_cluster": cluster,
                "confidence": confidence,
            }

        optimiser = build_optimiser(network.parameters(), local, client.streams.round, context.device)
        metrics = run_steps(client, batches(client, local), optimiser, step)
        return Update(Message(weights(network), {"n": len(client.train)}), metrics=metrics)
