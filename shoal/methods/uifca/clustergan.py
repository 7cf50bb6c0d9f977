"""ClusterGAN (Mukherjee et al. 2019) by federated averaging: the baseline of UIFCA's image experiments.

A generator turns a continuous and a one-hot vector into an image, an encoder turns the image back into both, and a
critic compares generated with real images (Wasserstein distance with gradient penalty). A point's cluster is the
largest entry of its one-hot part by the encoder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter

from shoal.core.setting import setting
from shoal.methods.averaging.server_optimiser import next_average, trained_counts
from shoal.methods.contract.base import Client, ClientError, Clients, Evaluation, Federation, Method, Server, Update
from shoal.methods.contract.context import LocalSettings
from shoal.methods.contract.message import Message
from shoal.methods.contract.prediction import Prediction
from shoal.methods.contract.questions import Question
from shoal.methods.scores.assignment import assignment_metrics, assignment_of
from shoal.methods.training.local import build_optimiser, load, seeded, weights
from shoal.methods.training.steps import descend
from shoal.models.gan import ClusterGANNetwork

PENALTY = 10.0
"""Weight of the critic's gradient penalty (WGAN-GP)."""


@dataclass(frozen=True)
class ClusterGANSettings:
    """Hyper-parameters of ClusterGAN."""

    sigma: float = setting(0.75, "standard deviation of the continuous part of the latent vector", gt=0)
    beta: float = setting(
        10.0, "weight of the losses of recovering both parts of the latent vector (beta_n = beta_c)", ge=0
    )
    critic_steps: int = setting(5, "number of critic steps for each step of generator and encoder", ge=1)
    steps: int = setting(100, "number of generator steps in each communication round", ge=1)
    layers: Literal["conv", "dense"] = setting("conv", "layers of the networks: convolutions, or only linear layers")
    width: int = setting(32, "number of filters in the networks, or of units in a linear layer", ge=1)


class ClusterGAN(Method):
    """ClusterGAN as a method: the server state is the three networks."""

    name = "clustergan"
    latent = 30
    """Width of the continuous part of the latent vector."""
    title = "federated ClusterGAN"
    question = Question.GENERATORS
    about = "A generator and an encoder of clusters that play a game."
    Settings = ClusterGANSettings
    settings: ClusterGANSettings
    local_defaults = LocalSettings(epochs=1, batch=64, optimiser="sgd", lr=5e-3)
    averages = True
    server_optimiser = True
    evaluation_reads_memory = False
    loss_note = "The loss need not fall: two networks play against each other, and each changes the loss of the other."

    def network(self) -> ClusterGANNetwork:
        """Build the networks with their initial weights."""
        network = seeded(self.build, self.context, cache=self.network_cache)
        assert isinstance(network, ClusterGANNetwork)
        return network

    def build(self) -> ClusterGANNetwork:
        """Build the networks; their initial weights come from torch's global generator."""
        s = self.settings
        return ClusterGANNetwork(
            self.latent, self.context.clusters, self.context.spec.shape, s.width, s.layers == "dense"
        )

    def init_server(self, federation: Federation) -> Server:
        """Start from the initial weights."""
        return Server(weights(self.network()))

    def client_update(self, message: Message, client: Client) -> Update:
        """Play `steps` rounds of the game on the client's images."""
        s = self.settings
        batch = self.context.local.batch
        device = self.context.device
        client.check_samples()
        network = self.network()
        load(network, message.tensors)
        critics = list(network.critic.parameters())
        critic_optimiser = self.optimiser(critics, client)
        pair = [*network.generator.parameters(), *network.encoder.parameters()]
        pair_optimiser = self.optimiser(pair, client)
        generator = client.streams.torch("game", device)
        sums = {name: torch.zeros((), dtype=torch.float64, device=device) for name in ("critic", "loss")}
        for _ in range(s.steps):
            for _ in range(s.critic_steps):
                rows = torch.randint(len(client.train), (batch,), generator=generator, device=device)
                real = client.train.x(rows.to(client.train.index.device))
                with torch.no_grad():
                    fake = network.generate(*self.latents(batch, generator))
                critic = critic_loss(network, real, fake, generator)
                descend(critic, critics, critic_optimiser)
            z, cluster = self.latents(batch, generator)
            fake = network.generate(z, cluster)
            loss = -network.judge(fake).mean() + self.cycle(network, fake, z, cluster)
            descend(loss, pair, pair_optimiser)
            sums["critic"] += critic.detach()
            sums["loss"] += loss.detach()
        means = {name: float(total) / s.steps for name, total in sums.items()}
        if not all(map(math.isfinite, means.values())):
            raise ClientError(f"client {client.id}: the game diverged in round {client.streams.round}; lower local.lr")
        return Update(Message(weights(network), {"n": len(client.train)}), metrics=means)

    def optimiser(self, parameters: Iterable[Parameter], client: Client) -> torch.optim.Optimizer:
        """Build the optimiser of the settings; Adam has the moments 0.5 and 0.9 that are usual for such games."""
        built = build_optimiser(parameters, self.context.local, client.streams.round)
        for group in built.param_groups:
            if "betas" in group:
                group["betas"] = (0.5, 0.9)
        return built

    def latents(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw continuous parts (n, latent) and cluster numbers (n,)."""
        s = self.settings
        device = self.context.device
        z = s.sigma * torch.randn(n, self.latent, generator=generator, device=device)
        return z, torch.randint(self.context.clusters, (n,), generator=generator, device=device)

    def cycle(self, network: ClusterGANNetwork, fake: Tensor, z: Tensor, cluster: Tensor) -> Tensor:
        """Return the cycle loss: how far the encoder is from recovering the latent vectors of generated images."""
        recovered, logits = network.encode(fake)
        beta = self.settings.beta
        return beta * F.mse_loss(recovered, z) + beta * F.cross_entropy(logits, cluster)

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Average the networks by number of samples."""
        return next_average(server, updates, self.context.aggregation, lambda: trained_counts(self.network()))

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return the scores of the predictor's clusters."""
        if not server.round:
            return {}
        return assignment_metrics(assignment_of(self, server, clients, evaluation), evaluation)

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """Return a function from images to the encoder's cluster, its softmax, and its continuous part (embedding)."""
        network = self.network()
        load(network, server.model)
        network.eval()

        @torch.no_grad()
        def predict(x: Tensor) -> Prediction:
            z, logits = network.encode(x.to(self.context.device))
            return Prediction(logits.argmax(1), logits.softmax(1), z)

        return predict


def critic_loss(network: ClusterGANNetwork, real: Tensor, fake: Tensor, generator: torch.Generator) -> Tensor:
    """Return WGAN-GP's loss: mean score of generated minus real images, and squared distance of gradient norms from 1.

    Args:
        network: the network with the critic.
        real, fake: images (n, ...) each.
        generator: of the points between real and fake at which gradients are taken.
    """
    mix = torch.rand((len(real), 1, 1, 1), generator=generator, device=real.device)
    between = (mix * real + (1 - mix) * fake).requires_grad_(True)
    (gradient,) = torch.autograd.grad(network.judge(between).sum(), between, create_graph=True)
    norms = gradient.flatten(1).norm(dim=1)
    result: Tensor = network.judge(fake).mean() - network.judge(real).mean() + PENALTY * (norms - 1).square().mean()
    return result
