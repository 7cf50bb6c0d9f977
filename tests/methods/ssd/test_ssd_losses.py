"""SSD's losses against values worked out by hand, and their documented limits."""

import math

import pytest
import torch
import torch.nn.functional as F

from shoal.methods.losses.align_uniform import align_loss, uniform_loss
from shoal.methods.scores.representation import split_uniformity, uniformity
from shoal.methods.ssd.losses import distill_loss, dsr_loss, subspace_basis, subspace_dimensions

SQUARE = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])


def test_alignment_by_hand():
    assert float(align_loss(SQUARE, SQUARE)) == 0
    # A quarter turn moves every point by sqrt(2), a half turn by 2.
    assert float(align_loss(SQUARE, SQUARE.roll(1, 0))) == pytest.approx(2)
    assert float(align_loss(SQUARE, -SQUARE)) == pytest.approx(4)


def test_uniformity_by_hand_and_at_its_limits():
    # Of the six pairs of a square's corners four are at squared distance 2, two at 4.
    expected = math.log((4 * math.exp(-4) + 2 * math.exp(-8)) / 6)
    assert float(uniform_loss(SQUARE)) == pytest.approx(expected, rel=1e-5)
    assert float(uniform_loss(torch.ones(5, 3) / 3**0.5)) == pytest.approx(0, abs=1e-5)
    drawn = F.normalize(torch.randn(2000, 512, generator=torch.Generator().manual_seed(0)), dim=1)
    assert float(-uniform_loss(drawn)) == pytest.approx(3.984, abs=2e-3)
    assert uniformity(drawn) == pytest.approx(float(-uniform_loss(drawn)), abs=1e-4)


def test_regularisation_by_hand():
    z = torch.tensor([[0.6, 0.8]])
    scale = torch.tensor([10.0, 1.0])
    target = torch.tensor([6.0, 0.8]) / math.hypot(6.0, 0.8)
    square = float((z[0] - target).pow(2).sum())
    assert float(dsr_loss(z, scale, torch.eye(2), 1)) == pytest.approx(square**0.5)
    both = z.repeat(4, 1)
    assert float(dsr_loss(both, scale, torch.eye(2), 1)) == pytest.approx((4 * square) ** 0.5 / 4)
    assert float(dsr_loss(z, torch.ones(2), torch.eye(2), 1)) == pytest.approx(0, abs=1e-11)


def test_regularisation_moves_towards_the_clients_dimensions():
    basis = subspace_basis(8, 3)
    inside = torch.zeros(8, dtype=torch.bool)
    inside[:2] = True
    raw = torch.randn(16, 8, generator=torch.Generator().manual_seed(1), requires_grad=True)
    loss = dsr_loss(F.normalize(raw, dim=1), torch.where(inside, 10.0, 1.0), basis, 1)
    loss.backward()
    assert torch.isfinite(raw.grad).all()
    before = (F.normalize(raw, dim=1) @ basis)[:, inside].pow(2).sum(1).mean()
    moved = raw - 5 * raw.grad
    after = (F.normalize(moved, dim=1) @ basis)[:, inside].pow(2).sum(1).mean()
    assert after > before


def test_regularisation_is_finite_where_nothing_is_to_do():
    z = torch.zeros(3, 4)
    z[:, 0] = 1
    z.requires_grad_()
    dsr_loss(z, torch.tensor([10.0, 1, 1, 1]), torch.eye(4), 1).backward()
    assert torch.isfinite(z.grad).all()


def test_distillation_by_hand():
    h, z = torch.tensor([[0.0, math.log(3) / 2]]), torch.tensor([[0.0, 0.0]])
    # At T = 1/2: softmax(h / T) = (1/4, 3/4), softmax(z / T) = (1/2, 1/2).
    poster = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    assert float(distill_loss(h, z, 0.5)) == pytest.approx(poster)
    assert float(distill_loss(h, h, 0.5)) == pytest.approx(0, abs=1e-7)


def test_subspaces_are_disjoint_and_a_function_of_seed_and_client():
    sets = subspace_dimensions(512, 10, 0)
    assert sets.shape == (10, 51)
    assert len(sets.flatten().unique()) == 510
    assert torch.equal(sets, subspace_dimensions(512, 10, 0))
    assert not torch.equal(sets, subspace_dimensions(512, 10, 1))


def test_bases_are_orthonormal():
    basis = subspace_basis(32, 0)
    torch.testing.assert_close(basis @ basis.T, torch.eye(32), atol=1e-5, rtol=0)
    assert torch.equal(basis, subspace_basis(32, 0))


def test_uniformity_split_by_hand():
    """Client 0 at one point, client 1 at the opposite one: no spread inside, all of it between."""
    h = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])
    inter, intra = split_uniformity(h, torch.tensor([0, 0, 1, 1]))
    assert inter == pytest.approx(8, rel=1e-5)
    assert intra == pytest.approx(0, abs=1e-6)
    assert split_uniformity(h[:2], torch.tensor([0, 1]))[1] == 0, "no pair of one client"
