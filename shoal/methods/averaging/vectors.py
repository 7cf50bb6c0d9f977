"""A network's weights as one vector, and means of such vectors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn

Network = TypeVar("Network", bound=nn.Module)


def parameter_count(network: nn.Module) -> int:
    """Return the number of parameters, which come first in a network's vector."""
    return sum(p.numel() for p in network.parameters())


def flatten(network: nn.Module, order: Tensor | None = None) -> Tensor:
    """Return a network's floating-point state as one vector, float32 (p + buffers,): parameters, then buffers.

    Args:
        network: any network.
        order: permutation of the parameters, int64 (p,): clients that share it hide from the server which value belongs
            where. Norms, cosines and averages do not depend on it.
    """
    vector = torch.cat([t.detach().reshape(-1).float() for t in _state(network)])
    if order is None:
        return vector
    return torch.cat((vector[order], vector[len(order) :]))


def load_vector(network: Network, vector: Tensor, order: Tensor | None = None) -> Network:
    """Put the vector that `flatten` made of a network into one of the same kind, and return this one.

    Raises:
        ValueError: the vector has another length.
    """
    state = list(_state(network))
    sizes = [t.numel() for t in state]
    if sum(sizes) != len(vector):
        raise ValueError(f"a vector of {len(vector)} numbers does not fit a network of {sum(sizes)}")
    if order is not None:
        vector = vector.index_copy(0, order, vector[: len(order)])
    with torch.no_grad():
        for tensor, part in zip(state, vector.split(sizes), strict=True):
            tensor.copy_(part.view(tensor.shape))
    return network


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
