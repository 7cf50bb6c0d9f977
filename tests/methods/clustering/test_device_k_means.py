"""K-means of all starts at once finds what scikit-learn finds from the same draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shoal.methods.clustering.device_k_means import device_kmeans
from shoal.methods.clustering.k_means import kmeans
from shoal.methods.contract.base import MethodError


def blobs(seed: int, spread: float) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(seed)
    centres = torch.randn(6, 8, generator=drawn) * 3
    return (centres.repeat(60, 1) + spread * torch.randn(360, 8, generator=drawn)) + 5


@pytest.mark.parametrize("spread", [0.3, 2.0, 6.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_clusters_are_those_of_scikit_learn(seed: int, spread: float) -> None:
    x = blobs(seed, spread)
    found = device_kmeans(x, 6, np.random.default_rng(seed))
    expected = kmeans(x.numpy(), 6, np.random.default_rng(seed))
    assert found.inertia == pytest.approx(expected.inertia, rel=1e-4)
    assert (found.cluster == expected.cluster).mean() > 0.99
    np.testing.assert_allclose(found.centres, expected.centres, rtol=1e-3, atol=0.02)


def test_what_cannot_be_clustered_is_refused() -> None:
    with pytest.raises(MethodError, match="3 clusters among 2 samples"):
        device_kmeans(torch.ones(2, 1), 3, np.random.default_rng(0))
    with pytest.raises(MethodError, match="not finite"):
        device_kmeans(torch.tensor([[1.0], [torch.nan]]), 1, np.random.default_rng(0))
