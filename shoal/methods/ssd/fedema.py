"""FedEMA: divergence-aware federated self-supervised learning (Zhuang, Wen, Zhang 2022).

FedBYOL, where a client does not take the broadcast weights as they are: it mixes them with its own of the round before,
the more of its own, the further the two have drifted apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from shoal.core.setting import setting
from shoal.methods.contract.base import Client
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.ssd.fedbyol import FedBYOL, FedBYOLSettings
from shoal.methods.training.local import load, weights
from shoal.models.heads import ByolNet

OWN = "own."


@dataclass(frozen=True)
class FedEMASettings(FedBYOLSettings):
    """Hyper-parameters of FedEMA."""

    tau: float = setting(
        0.7,
        "autoscaling: share of its own weights that a client keeps when it first mixes them with the global model",
        gt=0,
        le=1,
    )
    stale: Literal["restart", "mix"] = setting(
        "restart",
        "what a client does that missed the previous round: restart from the broadcast weights, as in the authors' "
        "code, or mix them with its own",
    )


def divergence(network: nn.Module, broadcast: Tensors, own: Tensors) -> torch.Tensor:
    """L2 distance of the encoders of two networks: of their parameters alone.

    BatchNorm's running statistics are no parameters. They are of the data's scale, and would outweigh all weights.

    Args:
        network: of the two networks' kind, with an attribute `encoder`: says what its parameters are called.
        broadcast: the state of the one.
        own: the state of the other.
    """
    names = [name for name, _ in network.named_parameters() if name.startswith("encoder.")]
    if broadcast[names[0]].device.type != "cpu":  # all at once: a launch costs more than what it computes
        here, there = (torch.cat([tensors[name].flatten() for name in names]).double() for tensors in (broadcast, own))
        result: torch.Tensor = (here - there).norm()
        return result
    squares = [(broadcast[name].double() - own[name].double()).pow(2).sum() for name in names]
    return torch.stack(squares).sum().sqrt()


class FedEMA(FedBYOL):
    """FedEMA as a method: a client remembers its online network, its target, and its lambda."""

    name = "fedema"
    Settings = FedEMASettings
    settings: FedEMASettings

    def begin(self, network: ByolNet, message: Message, client: Client) -> Tensors:
        """W = mu W_own + (1 - mu) W_broadcast, mu = min(lambda |W_broadcast - W_own|, 1), by encoders.

        Lambda is set by the client when it first has weights of its own to compare, so that mu is then tau.
        """
        now = {"round": torch.tensor(client.streams.round)}
        scale = client.memory.get("lambda")
        if not self.fresh(client):
            load(network, message.tensors)
            return now if scale is None else now | {"lambda": scale}
        own = {name[len(OWN) :]: t for name, t in client.memory.items() if name.startswith(OWN)}
        apart = divergence(network, message.tensors, own)
        if scale is None:
            scale = self.settings.tau / apart.clamp(min=1e-12)
        mu = float((scale * apart).clamp(max=1.0))
        names = [name for name, tensor in message.tensors.items() if tensor.is_floating_point()]
        kept = torch._foreach_mul([own[name] for name in names], mu)
        torch._foreach_add_(kept, torch._foreach_mul([message.tensors[name] for name in names], 1 - mu))
        load(network, {**message.tensors, **dict(zip(names, kept, strict=True))})
        return now | {"lambda": scale.reshape(()).double(), "divergence": apart.reshape(())}

    def fresh(self, client: Client) -> bool:
        """Whether the client has weights of its own to mix: of the round before, or of any with `stale: mix`."""
        if not client.memory:
            return False
        return self.settings.stale == "mix" or int(client.memory["round"]) == client.streams.round - 1

    def keeps_target(self, client: Client) -> bool:
        """As in FedBYOL, of a client that mixes; one that restarts does so with its target too."""
        return super().keeps_target(client) and self.fresh(client)

    def remember(self, network: ByolNet) -> Tensors:
        """The trained online network."""
        return weights(network, OWN)
