"""The context of a method's steps: settings of network, local work, views and averaging, seed and device."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from shoal.core.errors import ShoalError
from shoal.core.setting import NameForms, setting
from shoal.data.sets.prepared import DataSpec
from shoal.data.views.augment import AugmentSettings
from shoal.models.encoder_sources import FORMS, PATTERN, EncoderError
from shoal.models.encoders import ENCODERS, PIXELS
from shoal.models.frozen import PRETRAINED, is_pretrained, source_of, verified_weights


class MethodError(ShoalError):
    """A method cannot work with these settings or this data."""


class AnswersRefused(ShoalError):
    """Answers of a round do not fit those of the other clients: the round is aggregated without them.

    Args:
        reasons: why, by client.
    """

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__("; ".join(f"client {client}: {why}" for client, why in reasons.items()))
        self.reasons = reasons


@dataclass(frozen=True)
class ModelSettings:
    """The network that the clients train."""

    encoder: str = setting(
        "small-conv",
        "encoder network that maps a sample to its features; pixels: samples as they are, for methods that train none; "
        "pretrained: efficientnet-lite0, efficientnet-lite0-layers (those of middle layers too), timm:NAME, "
        "torchvision:NAME (either also NAME@FILE), file:TORCHSCRIPT",
        choices=(*ENCODERS, PIXELS, *PRETRAINED),
        forms=NameForms(PATTERN, FORMS),
    )
    clusters: int = setting(0, "number of clusters to find; 0: as many as the data set has classes", ge=0)
    start: Literal["random", "pretrained"] = setting(
        "random", "initial weights of the encoder that clients train; pretrained: those of a pretrained encoder"
    )


@dataclass(frozen=True)
class LocalSettings:
    """A client's work in one round."""

    epochs: int = setting(5, "number of local epochs in each round", ge=1)
    steps: int = setting(0, "number of local gradient steps in each round, in place of epochs; 0: epochs", ge=0)
    batch: int = setting(128, "mini-batch size of a local gradient step", ge=2)
    optimiser: Literal["adam", "sgd"] = setting("adam", "optimiser of the local gradient steps")
    lr: float = setting(3e-4, "learning rate of the local optimiser", gt=0)
    lr_decay: float = setting(1.0, "factor by which the learning rate is multiplied after each round", gt=0, le=1)
    momentum: float = setting(0.0, "momentum of SGD; Adam ignores it", ge=0, lt=1)
    weight_decay: float = setting(0.0, "weight decay (L2 penalty) of the local optimiser", ge=0)
    proximal: float = setting(
        0.0, "FedProx's mu: weight of half the squared distance from the model that the round began with", ge=0
    )


@dataclass(frozen=True)
class ServerOptimiser:
    """How the server moves its model by the clients' mean change (`shoal.methods.averaging.server_optimiser`)."""

    name: Literal["none", "momentum", "adam", "yogi"] = setting(
        "none",
        "optimiser of the server: none (the clients' mean is the next model), momentum (FedAvgM), adam (FedAdam) or "
        "yogi (FedYogi)",
    )
    lr: float = setting(0.0, "learning rate of the server; 0: 1 with momentum, 0.01 with adam and yogi", ge=0)
    momentum: float = setting(0.9, "decay beta_1 of the first moment", ge=0, lt=1)

    @property
    def rate(self) -> float:
        """The learning rate, with the default of the optimiser where `lr` is 0."""
        if self.lr:
            return self.lr
        return 1.0 if self.name == "momentum" else 0.01


@dataclass(frozen=True)
class AggregationSettings:
    """How the server makes one model of the clients' models (`shoal.methods.averaging.robust`)."""

    rule: Literal["mean", "median", "trimmed_mean", "krum", "multi_krum"] = setting(
        "mean",
        "how clients' models become one: mean, weighted by samples; against hostile clients median or trimmed_mean of "
        "each coordinate, krum (the one model closest to its nearest) or multi_krum (the mean of the closest)",
    )
    hostile: float = setting(
        0.2,
        "trimmed_mean, krum, multi_krum: share of the clients that may be hostile; trimmed_mean discards as many "
        "values at each end of a coordinate",
        ge=0,
        lt=0.5,
    )
    clip: float = setting(
        0.0, "bound of the norm of what a client changes: a longer change is scaled down to it; 0: no bound", ge=0
    )
    server: ServerOptimiser = field(default_factory=ServerOptimiser)

    @property
    def is_mean(self) -> bool:
        """Whether this is the plain weighted mean."""
        return self.rule == "mean" and not self.clip


@dataclass(frozen=True)
class Context:
    """The run's settings, seed and device, for every step of a method.

    Attributes:
        spec: the data set's kind and shape.
        model, local, augment: the settings of the network, the local work and the views.
        seed: of the run.
        rounds: number of rounds that the run is set to.
        fraction: share of the clients that take part in a round.
        device: where tensors live.
        precision: fp32, tf32 (which the worker switches on) or bf16 (autocast).
        aggregation: how the server makes one model of the clients' models.
        graphs: local steps as CUDA graphs: off, on, or auto (where they can be captured and are taken often enough).
        summed: whether the server gets the sum of the clients' messages in place of these.
        clip: the greatest length of rows where they are summed, where noise covers sums of rows; None: no noise does.
        encoder_sha256: digest that the weights of a pretrained encoder must have; empty: any.
    """

    spec: DataSpec
    model: ModelSettings = field(default_factory=ModelSettings)
    local: LocalSettings = field(default_factory=LocalSettings)
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    seed: int = 0
    rounds: int = 1
    fraction: float = 1.0
    device: torch.device = torch.device("cpu")  # noqa: RUF009 (a device is immutable)
    precision: str = "fp32"
    aggregation: AggregationSettings = field(default_factory=AggregationSettings)
    graphs: str = "off"
    encoder_sha256: str = ""
    summed: bool = False
    clip: float | None = None

    @property
    def clusters(self) -> int:
        """The number of clusters to find.

        Raises:
            MethodError: neither the settings nor the labels tell it.
        """
        if self.known_clusters is None:
            raise MethodError(
                f"data set {self.spec.name!r} has no labels to count clusters by: set "
                "model.clusters to the number of clusters to find, or to auto"
            )
        return self.known_clusters

    @property
    def known_clusters(self) -> int | None:
        """The number of clusters, or None where neither the settings nor the labels tell it."""
        return self.model.clusters or self.spec.classes or None

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context manager for forward passes in the run's precision."""
        if self.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def check_encoder(self) -> None:
        """Refuse a pretrained encoder that is not here, or has other weights than before.

        Raises:
            MethodError: says what to do.
        """
        if self.spec.kind != "image" or not is_pretrained(self.model.encoder):
            return
        try:
            verified_weights(self.model.encoder, self.encoder_sha256)
        except EncoderError as error:
            raise MethodError(f"model.encoder: {error}") from error


def check_trained_encoder(method: str, model: ModelSettings) -> None:
    """Refuse an encoder that clients cannot train from the start that is set.

    Raises:
        MethodError: says what to set.
    """
    encoder = model.encoder
    if model.start == "random":
        if encoder in ENCODERS:
            return
        raise MethodError(
            f"method {method!r} trains its encoder from random weights, and {encoder!r} is no network for that: set "
            f"model.encoder to one of {', '.join(ENCODERS)}, model.start=pretrained to train an encoder that comes "
            "with weights, or take method fedkmeans, which trains none"
        )
    try:
        trainable = is_pretrained(encoder) and source_of(encoder).trainable
    except EncoderError as error:
        raise MethodError(f"model.encoder: {error}") from error
    if not trainable:
        raise MethodError(
            f"model.start=pretrained cannot train {encoder!r}: set model.encoder to {', '.join(PRETRAINED)}, timm:NAME "
            "or torchvision:NAME, either with @FILE for weights of your own (a network in TorchScript is never trained)"
        )
