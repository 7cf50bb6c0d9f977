"""What a site sends of an evaluation of its own samples: sums, which the lead adds up, and no sample.

Symbols in shapes: c clusters, k labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class LayerSums:
    """Sums over a layer's input: values a channel, and their sum and that of their squares, float64 (channels,).

    In float64 the difference of two of them has a variance's first nine digits where the mean is a thousand deviations.
    """

    count: float
    total: Tensor
    squares: Tensor

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the sums by name, as a site sends them."""
        return {
            "count": np.array([self.count]),
            "total": self.total.cpu().numpy(),
            "squares": self.squares.cpu().numpy(),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], device: torch.device | str = "cpu") -> LayerSums:
        """Return the sums that `arrays` returned."""
        total, squares = (torch.tensor(arrays[name], device=device) for name in ("total", "squares"))
        return cls(float(arrays["count"][0]), total, squares)

    def __add__(self, other: LayerSums) -> LayerSums:
        return LayerSums(self.count + other.count, self.total + other.total, self.squares + other.squares)

    @property
    def mean(self) -> Tensor:
        """The mean of each channel."""
        return self.total / self.count

    @property
    def variance(self) -> Tensor:
        """The variance of each channel, of the population."""
        return (self.squares / self.count - self.mean.square()).clamp(min=0)


class LayerNeeded(Exception):
    """The sums of a layer's inputs over all sites are needed before the next layer can be measured.

    Args:
        sums: those of this site.
    """

    def __init__(self, sums: LayerSums) -> None:
        super().__init__("the sums of all sites are needed")
        self.sums = sums


@dataclass
class SiteSums:
    """The sums of one evaluation at a site.

    Attributes:
        layers: sums of the inputs of the first layers with BatchNorm over all sites, in the order of a pass.
        tables: counts of samples by cluster and label, int64 (c, k + 1), where clusters are those of all sites.
    """

    layers: Sequence[LayerSums] = ()
    tables: list[np.ndarray] = field(default_factory=list)

    def layer(self, number: int, own: Callable[[], LayerSums]) -> LayerSums:
        """Return the sums of a layer over all sites.

        Args:
            number: of the layer, in the order of a pass.
            own: measures those of this site.

        Raises:
            LayerNeeded: they are not known yet.
        """
        if number < len(self.layers):
            return self.layers[number]
        raise LayerNeeded(own())
