"""FedBYOL: BYOL (Grill et al. 2020) with federated averaging of online network and predictor.

A client keeps its momentum target between rounds, or begins each round with a copy of what was broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor

from core.setting import setting
from methods.base import Client, Message, Tensors, Update
from methods.losses.byol import byol_loss, make_target, spread, update_target
from methods.ssd.self_supervised import SelfSupervised, SelfSupervisedSettings
from methods.training.local import batches, build_optimiser, load, run_steps, views, weights
from models.encoders import build_encoder
from models.heads import ByolNet

TARGET = "target."


@dataclass(frozen=True)
class FedBYOLSettings(SelfSupervisedSettings):
    """Hyper-parameters of FedBYOL."""

    momentum: float = setting(
        0.99, "momentum of the target network: the share of its weights that it keeps in each step", ge=0, le=1
    )
    target: Literal["restart", "keep"] = setting(
        "keep", "target network at the start of a round: restarted from the broadcast weights, or kept by the client"
    )


class FedBYOL(SelfSupervised):
    """FedBYOL as a method: server state is encoder, projector and predictor."""

    name = "fedbyol"
    Settings = FedBYOLSettings
    settings: FedBYOLSettings

    def build(self) -> ByolNet:
        """Online network with predictor."""
        c, s = self.context, self.settings
        encoder = build_encoder(c.model.encoder, c.spec.shape)
        width = cast(int, encoder.features)
        return ByolNet(encoder, s.projection or width, s.hidden or 4 * width)

    def begin(self, network: ByolNet, message: Message, client: Client) -> Tensors:
        """Put the round's start into the network; returns what else the client is to remember."""
        load(network, message.tensors)
        return {}

    def keeps_target(self, client: Client) -> bool:
        """Whether the client goes on with the target of its last round."""
        return self.settings.target == "keep" and bool(client.memory)

    def client_update(self, message: Message, client: Client) -> Update:
        """Local epochs on BYOL's loss; the target follows after every step."""
        s, local, context = self.settings, self.context.local, self.context
        network = cast(ByolNet, self.network())
        remembered = self.begin(network, message, client)
        network.train()
        target = make_target(network)
        if self.keeps_target(client):
            load(target, client.memory, TARGET)
        recipe = self.recipe()
        generator = client.streams.torch("views", context.device)

        def step(positions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            x = views(client.train, positions, recipe, generator)
            with context.autocast():
                prediction = network.predictor(network(x).z).float()
            with torch.no_grad(), context.autocast():
                projection = target(x).float()
            return byol_loss(prediction, projection), {"spread": spread(projection)}

        optimiser = build_optimiser(network.parameters(), local, client.streams.round, context.device)
        metrics = run_steps(
            client,
            batches(client, local),
            optimiser,
            step,
            after=lambda: update_target(target, network, s.momentum),
        )
        memory = remembered | (weights(target, TARGET) if s.target == "keep" else {})
        memory |= self.remember(network)
        for name in ("lambda", "divergence"):
            if name in memory:
                metrics[name] = float(memory[name])
        message_up = Message(weights(network), {"n": len(client.train)})
        return Update(message_up, memory=memory or None, metrics=metrics)

    def remember(self, network: ByolNet) -> Tensors:
        """What the client keeps of its trained network."""
        return {}
