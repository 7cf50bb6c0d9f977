"""FedDecorr's term: against the authors' values, and in local steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shoal_research.variants.decorrelation import decorrelation, decorrelation_term


def features(n: int, d: int) -> torch.Tensor:
    """Fixed features (n, d), float64."""
    return torch.sin(torch.arange(n * d, dtype=torch.float64)).reshape(n, d) + torch.arange(d) / d


@pytest.mark.parametrize(
    ("n", "d", "expected"), [(4, 3, 1.6914019290328097), (16, 7, 5.9458141714250115), (128, 32, 60.99930887416414)]
)
def test_it_has_the_value_of_the_authors_code(n, d, expected):
    """Computed once with the `FedDecorrLoss` that the authors released, on the same tensors."""
    assert decorrelation(features(n, d)).item() == pytest.approx(expected, rel=1e-9)


def test_it_is_the_mean_squared_correlation(world):
    h = features(9, 5)
    squared = np.corrcoef(h.numpy().T) ** 2
    others = squared[~np.eye(5, dtype=bool)].mean()
    assert decorrelation(h).item() == pytest.approx(others * 8**2 / 9, rel=1e-6)


def test_the_term_has_the_strength_of_the_authors_batch_whatever_the_rows():
    torch.manual_seed(0)
    mixed = torch.randn(4096, 6, dtype=torch.float64) @ torch.randn(6, 6, dtype=torch.float64)
    whole = decorrelation_term(mixed).item()
    assert decorrelation_term(mixed[:1024]).item() == pytest.approx(whole, rel=0.1)
    assert decorrelation(mixed[:64]).item() == pytest.approx(decorrelation_term(mixed[:64]).item())


def method_with(world, weight, epochs=4, lr=0.05):
    """SSD's forms without SSD's own terms, and with FedDecorr's."""
    return world.method(
        "ssd_forms", gamma=0.0, delta=0.0, decorrelation=weight, epochs=epochs, batch=16, optimiser="sgd", lr=lr
    )


def trained(world, weight):
    method = method_with(world, weight)
    return method.client_update(method.broadcast(world.start(method, 2), 0), world.client(0, 1))


def test_training_lowers_it(world):
    before = trained(world, 1e-9).metrics["decorrelation"]
    assert trained(world, 1.0).metrics["decorrelation"] < 0.95 * before
    assert "decorrelation" not in trained(world, 0.0).metrics


def test_several_clients_in_one_computation_have_it_each(world):
    method = method_with(world, 0.5, epochs=1, lr=0.001)
    message = method.broadcast(world.start(method, 2), 0)
    cohort = [(message, world.client(number, 1, every=2)) for number in (0, 1)]
    together = method.cohort_update(cohort)
    for found, (sent, client) in zip(together, cohort, strict=True):
        update = method.client_update(sent, client)
        assert found.metrics["decorrelation"] == pytest.approx(update.metrics["decorrelation"], rel=1e-3)
        for name, tensor in update.message.tensors.items():
            torch.testing.assert_close(found.message.tensors[name], tensor, rtol=1e-3, atol=1e-4)
