"""FedEMA: divergence-aware federated self-supervised learning (Zhuang, Wen, Zhang 2022).

Like FedBYOL, but a client mixes the broadcast weights with its own of the previous round. The further the two have
drifted apart, the more it keeps of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from shoal.core.setting import setting
from shoal.methods.contract.base import Client
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.questions import Question
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


def divergence(network: nn.Module, broadcast: Tensors, own: Tensors) -> torch.Tensor:
    """Return the L2 distance between the parameters of two encoders, a scalar.

    BatchNorm's running statistics are not parameters. They have the scale of the data, and would outweigh all weights.

    Args:
        network: a network of the same kind with an attribute `encoder`; it names the parameters.
        broadcast: the state of the first network.
        own: the state of the second network.
    """
    names = [name for name, _ in network.named_parameters() if name.startswith("encoder.")]
    # All at once: on a device each launch costs more than its computation.
    theirs, ours = (torch.cat([tensors[name].flatten() for name in names]).double() for tensors in (broadcast, own))
    result: torch.Tensor = (theirs - ours).norm()
    return result


def mixture(broadcast: Tensors, own: Tensors, mu: torch.Tensor) -> Tensors:
    """Return mu own + (1 - mu) broadcast of all floating-point tensors by name; mu is a scalar float64."""
    names = [name for name, tensor in broadcast.items() if tensor.is_floating_point()]
    theirs = [broadcast[name] for name in names]
    ours = [own[name] for name in names]
    # Its value is not looked at: on a device the host would wait for it.
    mixed = torch._foreach_mul(ours, mu.float())
    torch._foreach_add_(mixed, torch._foreach_mul(theirs, (1 - mu).float()))
    return dict(zip(names, mixed, strict=True))


class FedEMA(FedBYOL):
    """FedEMA as a method: a client remembers its online network, its target, and its lambda."""

    name = "fedema"
    title = "FedEMA"
    question = Question.FEATURES
    about = "FedBYOL whose clients keep a part of their own model."
    Settings = FedEMASettings
    settings: FedEMASettings

    def begin(self, network: ByolNet, message: Message, client: Client) -> Tensors:
        """Load mu W_own + (1 - mu) W_broadcast, with mu = min(lambda |W_broadcast - W_own|, 1) over the encoders.

        The client sets lambda when it first has weights of its own to compare, so that mu is tau at that time.
        """
        memory = {"round": torch.tensor(client.streams.round)}
        scale = client.memory.get("lambda")
        if not self.mixes(client):
            load(network, message.tensors)
            return memory if scale is None else memory | {"lambda": scale}
        own = {name[len(OWN) :]: t for name, t in client.memory.items() if name.startswith(OWN)}
        distance = divergence(network, message.tensors, own)
        if scale is None:
            scale = self.settings.tau / distance.clamp(min=1e-12)
        load(network, {**message.tensors, **mixture(message.tensors, own, (scale * distance).clamp(max=1.0))})
        return memory | {"lambda": scale.reshape(()).double(), "divergence": distance.reshape(())}

    def mixes(self, client: Client) -> bool:
        """Return whether the client has weights to mix: those of the previous round, as in the authors' code."""
        return bool(client.memory) and int(client.memory["round"]) == client.streams.round - 1

    def keeps_target(self, client: Client) -> bool:
        """Return whether the client mixes: one that restarts also restarts its target."""
        return self.mixes(client)

    def remember(self, network: ByolNet) -> Tensors:
        """Return the trained online network."""
        return weights(network, OWN)
