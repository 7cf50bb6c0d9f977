"""Base of supervised methods: a classifier or a language model, its loss and scores, its weights as a vector.

Images are classified, texts are predicted word by word. Clients are judged on their own validation samples. Perplexity
is exp of the mean loss per token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.data.views.view import Samples
from shoal.methods.averaging.vectors import flatten, load_vector
from shoal.methods.contract.base import Client, ClientError, Clients, Evaluation, Server, Update
from shoal.methods.contract.context import Context, LocalSettings, MethodError, ModelSettings
from shoal.methods.contract.initial_encoder import initial_encoder
from shoal.methods.contract.message import Tensors
from shoal.methods.contract.prediction import Assignment
from shoal.methods.training.local import as_input, batches, seeded
from shoal.methods.training.local_steps import LocalSteps, TakenSteps
from shoal.methods.training.model_stack import Batch, LocalModel, StepResult
from shoal.methods.training.steps import GradientMethod
from shoal.models.lstm import WordLSTM, lengths_of_batches

JUDGED_AT_ONCE = 512
"""Samples in a forward pass of an evaluation."""


class Classifier(nn.Module):
    """An encoder and a linear layer over the classes."""

    def __init__(self, encoder: nn.Module, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.out = nn.Linear(cast(int, encoder.features), classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores (n, classes)."""
        result: Tensor = self.out(self.encoder(x))
        return result


class Score(NamedTuple):
    """Sums over `number` images or tokens: the cross-entropy, and the number of correct predictions."""

    loss: float
    correct: float
    number: int

    @property
    def accuracy(self) -> float:
        """Share of correct predictions."""
        return self.correct / self.number

    @property
    def mean_loss(self) -> float:
        """Mean cross-entropy, nats."""
        return self.loss / self.number


class Supervised(GradientMethod):
    """A supervised method whose models are vectors of one network's weights."""

    encoder = "trained"
    kinds = ("image", "text")
    local_options: ClassVar[tuple[str, ...]] = ("steps", "proximal")
    local_defaults = LocalSettings(epochs=3, batch=100, optimiser="sgd", lr=0.05, momentum=0.9)
    model_defaults = ModelSettings("plain-conv")
    learns_from_labels = True
    finds_clusters = False
    needs_clusters = False  # the labels say the classes, and a language model has none

    def __init__(self, settings: Any, context: Context) -> None:
        super().__init__(settings, context)
        if context.spec.kind == "image" and context.spec.classes is None:
            raise MethodError(
                f"method {self.name!r} trains on labels, and data set {context.spec.name!r} has none: add it with "
                "labels, or choose a method that needs none, such as fedcc"
            )

    def network(self, purpose: str = "init") -> nn.Module:
        """Build a network whose initial weights depend on the seed and `purpose`."""
        return seeded(self.build, self.context, purpose, self.network_cache)

    def build(self) -> nn.Module:
        """Build a network; its initial weights come from torch's global generator."""
        context = self.context
        if context.spec.kind == "text":
            return WordLSTM(context.spec.vocabulary or 0)
        return Classifier(initial_encoder(context), context.clusters)

    @property
    def order(self) -> Tensor | None:
        """The order of the parameters in a vector of weights (`flatten`); None: that of the network."""
        return None

    def flat(self, network: nn.Module) -> Tensor:
        """Return a network's weights as a vector."""
        return flatten(network, self.order)

    def loaded(self, weights: Tensor) -> nn.Module:
        """Return a network with the weights of a vector."""
        return load_vector(self.network(), weights, self.order)

    def check(self, client: Client) -> None:
        """Refuse a client that cannot be trained or judged, before any work.

        Raises:
            ClientError: the client has fewer than two training samples, or no validation sample.
        """
        client.check_samples(2)
        if not len(client.validation):
            raise ClientError(
                f"client {client.id} has no validation sample to be judged on: set partition.validation, say 0.2"
            )

    @property
    def stackable(self) -> bool:
        """Whether several networks can be trained at once: this is not possible for LSTMs."""
        return self.context.spec.kind == "image"

    def epochs(
        self,
        network: nn.Module,
        client: Client,
        finish: Callable[[TakenSteps], Update],
        steps: Iterable[Tensor] | None = None,
    ) -> LocalSteps:
        """Return local epochs on the cross-entropy, before any step is taken.

        Args:
            network: to train.
            client: whose samples it is trained on.
            finish: makes the update.
            steps: positions of each step's samples; None: the local epochs of the settings.
        """
        text = self.context.spec.kind == "text"
        positions_of_steps = list(batches(client, self.context.local) if steps is None else steps)
        # Computed before the first step: reading lengths in each step would wait for the device.
        lengths = iter(lengths_of_batches(client.train.raw(), positions_of_steps) if text else ())

        def select(positions: Tensor) -> Batch:
            batch = client.train.take(positions)
            return (batch.raw(),) if text else (batch.raw(), batch.y())

        def inputs(batch: Batch) -> Batch:
            if text:
                return (*batch, next(lengths))
            raw, y = batch
            return (as_input(client.train.data.computable(raw)), y)

        return LocalSteps(client, network.train(), positions_of_steps, select, inputs, finish)

    def step_loss(self, model: LocalModel, parameters: Tensors, batch: Batch, extra: Tensors) -> StepResult:
        """Return the mean cross-entropy over the images, or the tokens, of a batch."""
        return cross_entropy(model, batch, self.context), {}

    def assignment(self, server: Server, clients: Clients, evaluation: Evaluation) -> Assignment:
        """Refuse: these methods learn from labels, and cluster clients, not samples.

        Raises:
            MethodError: always.
        """
        raise MethodError(
            f"method {self.name!r} learns from labels and assigns no sample to a cluster: choose a method that finds "
            "clusters of samples, such as fedcc"
        )

    def clients_metrics(self, scores: Mapping[int, Score]) -> dict[str, float]:
        """Return accuracy (mean over clients, and the lowest), loss per image or token, and perplexity of texts."""
        if not scores:
            return {}
        total = sum(s.number for s in scores.values())
        loss = sum(s.loss for s in scores.values()) / total
        accuracies = [s.accuracy for s in scores.values()]
        metrics = {
            "acc": sum(accuracies) / len(accuracies),
            "acc_min": min(accuracies),
            "val_loss": loss,
        }
        if self.context.spec.kind == "text":
            metrics["perplexity"] = math.exp(min(loss, 50.0))
        return metrics


def cross_entropy(network: Callable[..., Any], inputs: tuple[Tensor, ...], context: Context) -> Tensor:
    """Return the mean cross-entropy of images and labels, or of texts, whose next words are their labels."""
    with context.autocast():
        if context.spec.kind == "text":
            output = network(*inputs)
            return F.cross_entropy(output.scores.float(), output.truth)
        x, y = inputs
        return F.cross_entropy(network(x).float(), y)


@torch.no_grad()
def judge(network: nn.Module, samples: Samples, context: Context) -> Score:
    """Return loss and accuracy of a network on samples, in evaluation mode."""
    network.eval()
    loss = 0.0
    correct = 0.0
    count = 0
    for positions in torch.arange(len(samples), device=samples.index.device).split(JUDGED_AT_ONCE):
        with context.autocast():
            if samples.data.spec.kind == "text":
                scores, truth = network(samples.raw(positions))
            else:
                part = samples.take(positions)
                scores = network(as_input(part.x()))
                truth = part.y()
        loss += float(F.cross_entropy(scores.float(), truth, reduction="sum"))
        correct += float((scores.argmax(1) == truth).sum())
        count += len(truth)
    return Score(loss, correct, count)
