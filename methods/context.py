"""What every step of a method may use beside its arguments: settings of network, local work and views, seed, device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from core.errors import ShoalError
from core.setting import setting
from data.augment import AugmentSettings
from data.prepared import DataSpec
from models.encoders import ENCODERS


class MethodError(ShoalError):
    """A method cannot work with these settings or this data."""


@dataclass(frozen=True)
class ModelSettings:
    """Which network the clients train."""

    encoder: str = setting("small-conv", "the network that turns images into features", choices=ENCODERS)
    clusters: int = setting(0, "number of clusters; 0: as many as the data set has classes", ge=0)


@dataclass(frozen=True)
class LocalSettings:
    """A client's work in one round."""

    epochs: int = setting(5, "local epochs a round", ge=1)
    batch: int = setting(128, "samples per step", ge=2)
    optimiser: Literal["adam", "sgd"] = setting("adam", "of the local steps")
    lr: float = setting(3e-4, "learning rate", gt=0)
    lr_decay: float = setting(1.0, "the learning rate is multiplied by this once a round", gt=0, le=1)
    momentum: float = setting(0.0, "momentum of sgd", ge=0, lt=1)
    weight_decay: float = setting(0.0, "weight decay", ge=0)


@dataclass(frozen=True)
class Context:
    """What every step of a method may use beside its arguments.

    Attributes:
        spec: the data set's kind and shape.
        model, local, augment: the settings of the network, the local work and the views.
        seed: of the run.
        rounds: how many rounds the run is set to.
        fraction: share of the clients that take part in a round.
        device: where tensors live.
        precision: fp32 or bf16 (autocast).
        compile: torch.compile of networks: off, or its mode.
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
    compile: str = "off"

    @property
    def clusters(self) -> int:
        """The number of clusters to find.

        Raises:
            MethodError: neither the settings nor the labels say how many.
        """
        if self.known_clusters is None:
            raise MethodError(
                f"data set {self.spec.name!r} has no labels to count clusters by: set "
                "model.clusters to the number of clusters to find"
            )
        return self.known_clusters

    @property
    def known_clusters(self) -> int | None:
        """The number of clusters, where the settings or the labels say it: for methods that can do without."""
        return self.model.clusters or self.spec.classes or None

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision setting as a context for forward passes."""
        if self.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()
