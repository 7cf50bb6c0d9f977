"""A network's weights as one vector, and means of such vectors."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class Vectors:
    """A network's floating-point state as one vector: parameters first, then buffers; optionally permuted.

    Args:
        network: any network of the kind that will be flattened.
        permutation: of the parameters, int64 (p,): clients that share it hide from the server which number is what.
            Norms, cosines and averages do not change with it.
    """

    def __init__(self, network: nn.Module, permutation: Tensor | None = None) -> None:
        self.size = sum(p.numel() for p in network.parameters())
        self.permutation = permutation

    def flatten(self, network: nn.Module) -> Tensor:
        """The state as float32 (p + buffers,)."""
        return self._hide(torch.cat([t.detach().reshape(-1).float() for t in _state(network)]))

    def gradients(self, network: nn.Module) -> Tensor:
        """The parameters' gradients, float32 (p,)."""
        return self._hide(
            torch.cat(
                [
                    (torch.zeros_like(p) if p.grad is None else p.grad).detach().reshape(-1).float()
                    for p in network.parameters()
                ]
            )
        )

    def load(self, network: nn.Module, vector: Tensor) -> nn.Module:
        """Put a vector back into a network.

        Raises:
            ValueError: the vector has another length.
        """
        state = list(_state(network))
        sizes = [t.numel() for t in state]
        if sum(sizes) != len(vector):
            raise ValueError(f"a vector of {len(vector)} numbers does not fit a network of {sum(sizes)}")
        plain = vector
        if self.permutation is not None:
            plain = vector.clone()
            plain[: self.size][self.permutation] = vector[: self.size]
        with torch.no_grad():
            for tensor, part in zip(state, plain.split(sizes), strict=True):
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
    """Weighted sum of vectors in float64, element by element, as float32."""
    total: Tensor | None = None
    for vector, share in zip(vectors, shares, strict=True):
        part = vector.double() * share
        total = part if total is None else total + part
    assert total is not None
    return total.float()
