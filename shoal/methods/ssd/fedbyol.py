"""FedBYOL: BYOL (Grill et al. 2020) with federated averaging of online network and predictor.

A client keeps its momentum target between rounds; its first one is a copy of what was broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch

from shoal.core.setting import setting
from shoal.methods.contract.base import Client, Update
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.questions import Question
from shoal.methods.losses.byol import byol_loss, make_target, spread, update_target
from shoal.methods.ssd.self_supervised import HIDDEN_FACTOR, SelfSupervised
from shoal.methods.training.local import load, weights
from shoal.methods.training.local_steps import LocalSteps, TakenSteps
from shoal.methods.training.model_stack import Batch, LocalModel, StepResult
from shoal.models.heads import ByolNet

TARGET = "target."


@dataclass(frozen=True)
class FedBYOLSettings:
    """Hyper-parameters of FedBYOL."""

    momentum: float = setting(
        0.99, "momentum of the target network: the share of its weights that it keeps in each step", ge=0, le=1
    )


class FedBYOL(SelfSupervised):
    """FedBYOL as a method: server state is encoder, projector and predictor."""

    name = "fedbyol"
    title = "FedBYOL"
    question = Question.FEATURES
    about = "Two views and a momentum target, without negatives."
    Settings = FedBYOLSettings
    settings: FedBYOLSettings

    def build(self) -> ByolNet:
        """Build the online network with its predictor."""
        encoder = self.new_encoder()
        width = cast(int, encoder.features)
        return ByolNet(encoder, width, HIDDEN_FACTOR * width)

    def begin(self, network: ByolNet, message: Message, client: Client) -> Tensors:
        """Load the round's start into the network, and return what else the client has to remember."""
        load(network, message.tensors)
        return {}

    def keeps_target(self, client: Client) -> bool:
        """Return whether the client continues with the target of its last round."""
        return bool(client.memory)

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Return local epochs with the momentum target beside the network."""
        network: ByolNet = self.network()
        remembered = self.begin(network, message, client)
        target = make_target(network)
        if self.keeps_target(client):
            load(target, client.memory, TARGET)

        def finish(taken: TakenSteps) -> Update:
            memory = remembered | self.remember(network) | weights(target, TARGET)
            names = [name for name in ("lambda", "divergence") if name in memory]
            values = torch.stack([memory[name] for name in names]).tolist() if names else []  # one wait for a GPU
            numbers = dict(zip(names, values, strict=True))
            message_up = Message(weights(network), {"n": len(client.train)})
            return Update(message_up, memory=memory, metrics=taken.metrics | numbers)

        keep_last = self.keeps_last_batch(message)
        return self.view_steps(client, network, finish, companions={"target": target}, keep_last=keep_last)

    def step_loss(self, model: LocalModel, parameters: Tensors, batch: Batch, extra: Tensors) -> StepResult:
        """Return BYOL's loss; only the predictor's answer comes after the pass of the network."""
        with self.context.autocast():
            prediction = cast(ByolNet, model.network).predictor(model(*batch).z).float()
            projection = model.ask("target", *batch).float()
        return byol_loss(prediction, projection), {"spread": spread(projection)}

    def after_step(self, parameters: Tensors, companions: dict[str, Tensors]) -> None:
        """Move the target towards the network."""
        update_target(companions["target"], parameters, self.settings.momentum)

    def remember(self, network: ByolNet) -> Tensors:
        """Return what the client remembers of its trained network."""
        return {}
