"""Losses and pools that a device computes in fewer launches: the values and gradients of the CPU's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from shoal.methods.fedpnp.pool import past_look_alikes
from shoal.methods.losses.align_uniform import uniform_loss_of_views
from shoal.methods.losses.byol import byol_loss
from shoal.methods.losses.contrastive import cluster_contrastive, contrastive, left_out_share
from shoal.methods.losses.unit_rows import unit_rows
from shoal.methods.ssd.losses import dsr_loss
from tests.pretend_gpu.device import DEVICE, pretending


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("pools", ["none", "some", "empty for one"])
def test_contrast(pools: str) -> None:
    left_out: Tensor | None = None
    if pools != "none":
        left_out = torch.eye(9, dtype=torch.bool) | (drawn(2, 9, 9, seed=2) <= 0)
        if pools == "empty for one":
            left_out[0, 4] = True

    def loss(place: Any) -> tuple[Tensor, Tensor]:
        a = drawn(9, 5).to(place).requires_grad_()
        b = drawn(9, 5, seed=1).to(place)
        found = contrastive(a, b, 0.5, None if left_out is None else left_out.to(place))
        found.backward()
        assert a.grad is not None
        return found.detach().cpu(), a.grad.cpu()

    expected = loss("cpu")
    with pretending() as ledger:
        found = loss(DEVICE)
        launches = sum(ledger.launches.values())
    torch.testing.assert_close(found, expected)
    assert launches < 30


def test_unit_rows() -> None:
    def gradient(place: Any) -> tuple[Tensor, Tensor]:
        x = drawn(6, 5).to(place).requires_grad_()
        found = unit_rows(x)
        (found * drawn(6, 5, seed=1).to(place)).sum().backward()
        assert x.grad is not None
        return found.detach().cpu(), x.grad.cpu()

    expected = gradient("cpu")
    with pretending() as ledger:
        found = gradient(DEVICE)
        launches = sum(ledger.launches.values())
    torch.testing.assert_close(found, expected)
    assert launches <= 15
    torch.testing.assert_close(expected[0].norm(dim=1), torch.ones(6))


def test_contrast_of_clusters() -> None:
    def loss(place: Any) -> tuple[Tensor, Tensor]:
        raw = drawn(9, 4).to(place).requires_grad_()
        y_b = drawn(9, 4, seed=1).softmax(1).to(place)
        found = cluster_contrastive(raw.softmax(1), y_b, 0.8)
        found.backward()
        assert raw.grad is not None
        return found.detach().cpu(), raw.grad.cpu()

    expected = loss("cpu")
    with pretending():
        found = loss(DEVICE)
    torch.testing.assert_close(found, expected)


LOSSES_OF_VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "uniformity": lambda z: uniform_loss_of_views(unit_rows(z)),
    "byol": lambda z: byol_loss(z, z.detach().square() - 0.5),
}


@pytest.mark.parametrize("name", LOSSES_OF_VIEWS)
def test_losses_of_views(name: str) -> None:
    def loss(place: Any) -> tuple[Tensor, Tensor]:
        z = drawn(14, 5).to(place).requires_grad_()
        found = LOSSES_OF_VIEWS[name](z)
        found.backward()
        assert z.grad is not None
        return found.detach().cpu(), z.grad.cpu()

    expected = loss("cpu")
    with pretending():
        found = loss(DEVICE)
    torch.testing.assert_close(found, expected)


def test_regularisation_of_both_views() -> None:
    z = unit_rows(drawn(14, 5))
    scale = torch.tensor([1.0, 7.0, 1.0, 7.0, 1.0])
    basis = torch.linalg.qr(drawn(5, 5, seed=1))[0]
    each = [dsr_loss(part, scale, basis, 1) for part in z.chunk(2)]
    torch.testing.assert_close(dsr_loss(z, scale, basis), (each[0] + each[1]) / 2)


@pytest.mark.parametrize("mu", [0.9, 0.99995, 2.0])
def test_a_sample_is_left_out_of_its_own_pool(mu: float) -> None:
    left_out = past_look_alikes(drawn(12, 4).softmax(1), mu)
    assert left_out.diagonal(dim1=1, dim2=2).all()


def test_pools() -> None:
    labels = drawn(24, 4).softmax(1)
    expected = past_look_alikes(labels, 0.9)
    assert 0.1 < expected.float().mean() < 1
    with pretending():
        found = past_look_alikes(labels.to(DEVICE), 0.9)
        share = left_out_share(found).cpu()
        assert torch.equal(found.cpu(), expected)
    torch.testing.assert_close(share, left_out_share(expected))
