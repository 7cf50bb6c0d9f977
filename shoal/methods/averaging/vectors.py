"""A network's weights as one vector, and means of such vectors."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class Vectors:
    """The conversion of a network's floating-point state to one vector, parameters then buffers, optionally permuted.

    Args:
        network: any network of the kind that will be flattened.
        permutation: of the parameters, int64 (p,): clients that share it hide from the server which value belongs
            where. Norms, cosines and averages do not depend on it.
    """

    def __init__(self, network: nn.Module, permutation: Tensor | None = None) -> None:
        self.size = sum(p.numel() for p in network.parameters())
        self.permutation = permutation

    def flatten(self, network: nn.Module) -> Tensor:
        """Return the state as float32 (p + buffers,)."""
        return self._hide(torch.cat([t.detach().reshape(-1).float() for t in _state(network)]))

    def load(self, network: nn.Module, vector: Tensor) -> nn.Module:
        """Put a vector back into a network.

        Raises:
            ValueError: the vector has another length.
        """
        state = list(_state(network))
        sizes = [t.numel() for t in state]
        if sum(sizes) != len(vector):
            raise ValueError(f"a vector of {len(vector)} numbers does not fit a network of {sum(sizes)}")
        ordered = vector
        if self.permutation is not None:
            ordered = vector.clone()
            ordered[: self.size][self.permutation] = vector[: self.size]
        with torch.no_grad():
            for tensor, part in zip(state, ordered.split(sizes), strict=True):
                tensor.copy_(part.view(tensor.shape))
        return network

    def _hide(self, vector: Tensor) -> Tensor:
        if self.permutation is None:
            return vector
        return torch.cat((vector[: self.size][self.permutation], vector[self.size :]))


def _state(network: nn.Module) -> Iterable[Tensor]:
    yield from network.parameters()
    for buffer in network.buffers():
        if buffer.is_floating_point():
            yield buffer


def mean_vector(vectors: Iterable[Tensor], shares: Iterable[float]) -> Tensor:
    """Return the weighted sum of vectors, computed in float64 element by element, as float32."""
    total: Tensor | None = None
    for vector, share in zip(vectors, shares, strict=True):
        part = vector.double() * share
        total = part if total is None else total + part
    assert total is not None
    return total.float()
