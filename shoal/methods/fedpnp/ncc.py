"""NCC: non-contrastive deep clustering on pooled data (Huang et al. 2021, arXiv 2111.11821), FedPNP's upper bound.

The loss is BYOL's, with a little noise added to the online embedding before it is predicted (positive sampling: a
neighbour of one view should match the other view), and a contrast between the prototypes of the clusters. The clusters
are K-means pseudo labels on the target's embeddings, found again after each epoch (E step), then trained on (M step).

The authors renamed the method ProPos; values marked C are those of their released configuration for CIFAR-10. They
train 1,000 epochs (200 rounds of 5) on train and test images together; here test images are never trained on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.core.setting import setting
from shoal.data.views.augment import two_views
from shoal.methods.clustering.k_means import kmeans
from shoal.methods.contract.base import Client, ClientError, Clients, Evaluation, Method, Server, Update
from shoal.methods.contract.context import LocalSettings, MethodError
from shoal.methods.contract.declared import MessageForm, TensorForm, exactly, forms_like
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.prediction import Prediction
from shoal.methods.contract.questions import Question
from shoal.methods.losses.byol import byol_loss, make_target, spread, update_target
from shoal.methods.scores.evaluation import evaluate_predictor
from shoal.methods.training.local import as_input, batches, build_optimiser, load, seeded, view_recipe, weights
from shoal.methods.training.optimiser_state import optimiser_tensors, restore_optimiser
from shoal.methods.training.steps import run_steps
from shoal.models.heads import ByolNet

NETWORK = "network."
TARGET = "target."
"""Prefixes of tensors in the client's memory and in the server's state."""
PROJECTION = 256
"""Dimension of the embedding that is clustered (C)."""
EXPANSION = 8
"""Hidden width of projector and predictor as a multiple of the encoder's output (C: 4,096 at 512)."""
KMEANS_STARTS = 3
"""K-means starts after each epoch, of which the best one counts (C: 1)."""


@dataclass(frozen=True)
class NCCSettings:
    """Hyper-parameters of NCC."""

    sigma: float = setting(
        0.001, "standard deviation of the Gaussian noise that is added to the online embedding (C)", ge=0
    )
    momentum: float = setting(
        0.996, "momentum of the target network: the share of its weights that it keeps in each step (C)", ge=0, le=1
    )
    tau: float = setting(0.5, "temperature of the prototype-level contrastive loss (C)", gt=0)
    weight: float = setting(0.1, "weight of the prototype-level contrastive loss (C)", ge=0)
    warmup: float = setting(
        0.05,
        "share of all epochs that trains with BYOL's loss alone while the learning rate warms up (C: 50 of 1,000)",
        ge=0,
        lt=1,
    )
    predictor_lr: float = setting(10.0, "learning rate of the predictor as a multiple of that of the encoder (C)", gt=0)


def prototype_loss(online: Tensor, target: Tensor, labels: Tensor, clusters: int, tau: float) -> Tensor:
    """Return the contrast between the prototypes of a batch: the mean unit embedding of each pseudo label.

    For cluster k with online prototype q_k and target prototype t_k, both of unit length:
    -log( e(q_k, t_k) / (e(q_k, t_k) + sum over l != k of e(q_k, q_l)) ), e = exp(cos / tau); the mean over the
    clusters that occur in the batch, and no other takes part.

    Args:
        online: (n, p) embeddings of one view; normalised here.
        target: (n, p), the target's of the other view; no gradient flows into them.
        labels: (n,) pseudo labels in 0 .. c - 1.
        clusters: c.
        tau: temperature.

    Returns:
        A scalar; 0 where only one cluster occurs.
    """
    members = F.one_hot(labels, clusters).T.to(online.dtype)
    q = F.normalize(members @ F.normalize(online, dim=1), dim=1)
    t = F.normalize(members @ F.normalize(target.detach(), dim=1), dim=1)
    present = members.any(1)
    # Masking clusters without a sample, instead of leaving them out, keeps shapes fixed: no wait for the device.
    same = torch.eye(clusters, dtype=torch.bool, device=online.device)
    logits = torch.where(same, (q * t).sum(1), q @ q.T) / tau
    logits = logits.masked_fill(~present & ~same, torch.finfo(logits.dtype).min)
    losses = logits.logsumexp(1) - logits.diagonal()
    return (losses * present).sum() / present.sum()


def lr_factor(progress: float, warmup: float) -> float:
    """Return the factor of the learning rate after a share `progress` of all steps: linear to 1, then a cosine to 0."""
    if progress < warmup:
        return progress / warmup
    return 0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup)))


class NCC(Method):
    """NCC as a method: server state is the target network and the prototypes, which predict.

    The one client remembers the online network, the target, the optimiser and the pseudo labels, so that a round
    continues the training of the last one.
    """

    name = "ncc"
    title = "NCC, centralised"
    question = Question.REFERENCES
    about = "A strong clustering method with all data in one place."
    Settings = NCCSettings
    settings: NCCSettings
    pooled = True
    kinds = ("image", "vector", "series")
    encoder = "trained"
    judges_features = True
    loss_note = (
        "The loss jumps after the warm-up, the share method.warmup of all epochs, by design: from then on it contains "
        "the contrast of prototypes, with the weight method.weight."
    )
    # C; their base rate of 0.05 for 256 samples is 0.1 at a batch of 512.
    local_defaults = LocalSettings(batch=512, optimiser="sgd", lr=0.1, momentum=0.9, weight_decay=5e-4)

    def network(self) -> ByolNet:
        """Return a fresh network with the run's initial weights."""

        def build() -> ByolNet:
            encoder = self.new_encoder()
            return ByolNet(encoder, PROJECTION, EXPANSION * int(encoder.features))  # type: ignore[arg-type]

        return cast(ByolNet, seeded(build, self.context, cache=self.network_cache))

    def broadcast(self, server: Server, client: int) -> Message:
        """Return an empty message: the one client continues from its memory."""
        return Message()

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """Return the form of the target network and of the prototypes."""
        target = forms_like(weights(make_target(self.network()), TARGET))
        prototypes = TensorForm((self.context.clusters, PROJECTION))
        return MessageForm(target | {"prototypes": prototypes}, {"n": exactly(samples)})

    def client_update(self, message: Message, client: Client) -> Update:
        """Train further epochs on L = L_BYOL / 2 + weight L_prototypes, with new pseudo labels after each.

        Raises:
            ClientError: fewer samples than clusters, or a loss that is not finite.
        """
        client.check_samples(self.context.clusters)
        training = _Training(self, client)
        epochs = [training.epoch() for _ in range(self.context.local.epochs)]
        metrics = {name: sum(numbers[name] for numbers in epochs) / len(epochs) for name in epochs[0]}
        result = weights(training.target, TARGET)
        return Update(
            Message(result | {"prototypes": training.prototypes}, {"n": len(client.train)}),
            memory=result | training.memory(),
            metrics=metrics,
        )

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Return the state that the one client sent."""
        (update,) = updates
        return server.next(update.message.tensors)

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """Return a function to the nearest prototype, softmax(cos / tau), and features, all by the target network.

        Raises:
            MethodError: before the first round.
        """
        if "prototypes" not in server.model:
            raise MethodError("NCC has no prototypes before its first round")
        target = make_target(self.network())
        load(target, server.model, TARGET)
        encoder, instance = target.eval()
        prototypes = server.model["prototypes"].to(self.context.device)

        def predict(x: Tensor) -> Prediction:
            x = as_input(x.to(self.context.device))
            with torch.no_grad(), self.context.autocast():
                h = encoder(x)
                z = instance(h)
            similarity = F.normalize(z.float(), dim=1) @ prototypes.T
            return Prediction(similarity.argmax(1), (similarity / self.settings.tau).softmax(1), h.float())

        return predict

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return ACC, NMI, ARI and purity over all train and test images; at the end also metrics of the features."""
        return evaluate_predictor(self.predictor(server), evaluation, view_recipe(self.context))


class _Training:
    """The networks of one round, restored from the client's memory.

    NCC has its own loop and is no `GradientMethod`: one client holds all data, so that there are no clients to batch;
    the learning rate changes with every step and differs between body and predictor; new pseudo labels end each epoch.
    """

    def __init__(self, method: NCC, client: Client) -> None:
        context = method.context
        self.settings = method.settings
        self.context = context
        self.client = client
        self.clusters = context.clusters
        self.network = method.network().train()
        self.target = make_target(self.network)
        self.online = dict(self.network.named_parameters())
        self.slow = dict(self.target.named_parameters())
        body = [*self.network.encoder.parameters(), *self.network.instance.parameters()]
        self.optimiser = build_optimiser(body, context.local, client.streams.round)
        self.optimiser.add_param_group({"params": list(self.network.predictor.parameters())})
        self.labels = torch.zeros(len(client.train), dtype=torch.int64, device=context.device)
        if client.memory:
            load(self.network, client.memory, NETWORK)
            load(self.target, client.memory, TARGET)
            restore_optimiser(self.optimiser, client.memory)
            self.labels = client.memory["labels"].to(context.device)
        self.prototypes = torch.empty(0)
        self.recipe = view_recipe(context)
        self.view_draws = client.streams.torch("views", context.device)
        self.noise_draws = client.streams.torch("noise", context.device)
        self.starts = client.streams.numpy("kmeans")
        self.batches = iter(batches(client, context.local))
        self.steps_per_epoch = len(client.train) // min(context.local.batch, len(client.train))
        self.base_lr = self.optimiser.param_groups[0]["lr"]
        self.steps = context.rounds * context.local.epochs * self.steps_per_epoch
        self.steps_done = (client.streams.round - 1) * context.local.epochs * self.steps_per_epoch

    @property
    def warming_up(self) -> bool:
        """Whether the warm-up still lasts."""
        return self.steps_done < self.settings.warmup * self.steps

    def epoch(self) -> dict[str, float]:
        """Train one epoch, then find new pseudo labels; return the means of its metrics."""
        momentum = self.settings.momentum
        metrics = run_steps(
            self.client,
            islice(self.batches, self.steps_per_epoch),
            self.optimiser,
            self.step,
            after=lambda: update_target(self.slow, self.online, momentum),
        )
        last = self.steps_done % (self.context.local.epochs * self.steps_per_epoch) == 0
        # A round ends with the prototypes that predict; before that, the warm-up needs none.
        if last or not self.warming_up:
            self.assign()
        return metrics

    def step(self, positions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Set the learning rate of a step; return the loss of its batch and its metrics."""
        s = self.settings
        warming_up = self.warming_up
        self.steps_done += 1
        rate = self.base_lr * lr_factor(min(self.steps_done / self.steps, 1.0), s.warmup)
        for group, multiple in zip(self.optimiser.param_groups, (1.0, s.predictor_lr), strict=True):
            group["lr"] = rate * multiple
        x = as_input(two_views(self.client.train.x(positions), self.recipe, self.view_draws))
        with self.context.autocast():
            z = self.network(x).z
            noise = torch.randn(z.shape, device=z.device, generator=self.noise_draws)
            prediction = self.network.predictor(z if warming_up else z + s.sigma * noise).float()
        with torch.no_grad(), self.context.autocast():
            projection = self.target(x).float()
        instance = byol_loss(prediction, projection) / 2
        if warming_up:
            contrast = torch.zeros_like(instance)
        else:
            labels = self.labels[positions]
            z_a, z_b = z.chunk(2)
            t_a, t_b = projection.chunk(2)
            first = prototype_loss(z_a, t_b, labels, self.clusters, s.tau)
            contrast = (first + prototype_loss(z_b, t_a, labels, self.clusters, s.tau)) / 2
        return instance + s.weight * contrast, {
            "loss_instance": instance,
            "loss_prototypes": contrast,
            "spread": spread(projection),
        }

    def assign(self) -> None:
        """Find pseudo labels and prototypes (c, p) by K-means on the target's unit embeddings, without augmentation."""
        samples = self.client.train
        device = self.context.device
        self.target.eval()
        parts = []
        with torch.no_grad(), self.context.autocast():
            for positions in torch.arange(len(samples), device=device).split(512):
                x = as_input(samples.x(positions))
                parts.append(F.normalize(self.target(x).float(), dim=1))
        self.target.train()
        try:
            clustering = kmeans(torch.cat(parts).cpu().numpy(), self.clusters, self.starts, starts=KMEANS_STARTS)
        except MethodError as error:
            raise ClientError(f"client {self.client.id}: {error}; lower local.lr or check its data") from error
        self.labels = torch.from_numpy(clustering.cluster).to(device)
        self.prototypes = F.normalize(torch.from_numpy(clustering.centres).float().to(device), dim=1)

    def memory(self) -> Tensors:
        """Return the state that the next round continues from, without the target."""
        return weights(self.network, NETWORK) | optimiser_tensors(self.optimiser) | {"labels": self.labels}
