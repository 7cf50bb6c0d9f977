"""FedU2: uniform and unified representations (Liao et al. 2024, arXiv 2403.16398), on SimCLR.

Clients spread the projections of their samples over the sphere. The server moves by the step that comes nearer to all
clients alike, in place of their mean.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from shoal.core.setting import setting
from shoal.methods.averaging.mean import WeightedMean
from shoal.methods.averaging.unified import unified_step
from shoal.methods.contract.base import Client, Server, Update
from shoal.methods.contract.declared import MessageForm, exactly, forms_like
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.questions import Question
from shoal.methods.losses.contrastive import contrastive
from shoal.methods.losses.tangent_spread import SphereDraws, sphere_draws, tangent_spread
from shoal.methods.ssd.self_supervised import SelfSupervised
from shoal.methods.training.local_steps import LocalSteps
from shoal.methods.training.model_stack import Batch, LocalModel, StepResult


@dataclass(frozen=True)
class FedU2Settings:
    """Hyper-parameters of FedU2; defaults are those of the authors' code."""

    tau: float = setting(0.07, "temperature of the contrastive loss (NT-Xent)", gt=0)
    uniform: float = setting(0.01, "weight of the flexible uniform regulariser; 0 leaves it out", ge=0)
    server_lr: float = setting(0.1, "length of the server's step: half as long as the model moves at most", gt=0)


class FedU2(SelfSupervised):
    """FedU2 as a method: server state, views and scores are those of FedSimCLR."""

    name = "fedu2"
    title = "FedU2"
    question = Question.FEATURES
    about = "FedSimCLR with features spread over the sphere, and a step towards all clients."
    Settings = FedU2Settings
    settings: FedU2Settings
    averages = False  # the server needs each client's model
    server_optimiser = False  # it has a step of its own

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Return local epochs; each batch has random draws for the regulariser of either view."""
        steps = super().local_steps(message, client)
        if not self.settings.uniform:
            return steps
        generator = client.streams.torch("sphere", self.context.device)
        network = self.network()
        width = int(network.encoder.features)

        def inputs(batch: Batch) -> Batch:
            (x,) = steps.inputs(batch)
            return (x, *(tensor for _ in range(2) for tensor in sphere_draws(len(x) // 2, width, generator)))

        return replace(steps, inputs=inputs, generators=(*steps.generators, generator))

    def step_loss(self, model: LocalModel, parameters: Tensors, batch: Batch, extra: Tensors) -> StepResult:
        """Return NT-Xent of the projections, plus the regulariser of each view."""
        s = self.settings
        x, *draws = batch
        with self.context.autocast():
            z_a, z_b = F.normalize(model(x).z, dim=1).chunk(2)
        contrast = contrastive(z_a, z_b, s.tau)
        if not draws:
            return contrast, {}
        spread = tangent_spread(z_a, SphereDraws(*draws[:3])) + tangent_spread(z_b, SphereDraws(*draws[3:]))
        return contrast + s.uniform * spread, {"loss_contrast": contrast, "loss_uniform": spread}

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """Return the form of the model's tensors and of the fact `n`."""
        return MessageForm(forms_like(server.model), {"n": exactly(samples)})

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Move the trained values by the unified step; take the mean by samples of the statistics of layers."""
        names = [name for name, _ in self.network().named_parameters()]
        start = flat(server.model, names)
        rest = WeightedMean()
        deviations = []
        for update in updates:
            tensors = update.message.tensors
            deviations.append(start - flat(tensors, names))
            rest.add({k: t for k, t in tensors.items() if k not in names}, float(update.message.facts["n"]))
        step, _ = unified_step(torch.stack(deviations))
        moved = start.double() - self.settings.server_lr * step
        model = dict(server.model)
        place = 0
        for name in names:
            tensor = server.model[name]
            model[name] = moved[place : place + tensor.numel()].reshape(tensor.shape).to(tensor.dtype)
            place += tensor.numel()
        return server.next({**model, **rest.mean()})


def flat(tensors: Tensors, names: Iterable[str]) -> torch.Tensor:
    """Return some tensors as one vector (q,)."""
    return torch.cat([tensors[name].reshape(-1) for name in names])
