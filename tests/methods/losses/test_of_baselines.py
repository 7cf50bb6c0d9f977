"""Losses of FedX and FedU2, and FedU2's step: against values of the authors' code on the same tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from shoal.methods.averaging.unified import shortest_combination, unified_step
from shoal.methods.losses.contrastive import contrastive
from shoal.methods.losses.relational import relational
from shoal.methods.losses.tangent_spread import SphereDraws, projected_logs, sphere_draws, tangent_spread


def fixed(rows: int, columns: int, shift: float) -> torch.Tensor:
    """Fixed numbers (rows, columns), float64."""
    return torch.sin(torch.arange(rows * columns, dtype=torch.float64) * 1.7 + shift).reshape(rows, columns)


@pytest.mark.parametrize(
    ("tau", "tau_target", "contrast", "relation", "pull"),
    [
        (0.1, 0.1, 0.9876373356030541, 0.18104779300261198, 0.23567857913110582),
        (0.2, 0.05, 1.2123193204158542, 0.22196255257458128, 0.24058860085344708),
    ],
)
def test_fedx_has_the_authors_losses(tau, tau_target, contrast, relation, pull):
    """Their `nt_xent` and `js_loss`; `pull` is the norm of the gradient on the other samples."""
    a, b, others = fixed(5, 4, 0.0), fixed(5, 4, 0.3), fixed(6, 4, 2.0).requires_grad_()
    assert contrastive(a, b, tau).item() == pytest.approx(contrast, rel=1e-9)
    loss = relational(a, b, others, tau, tau_target)
    loss.backward()
    assert loss.item() == pytest.approx(relation, rel=1e-9)
    assert others.grad is not None
    assert others.grad.norm().item() == pytest.approx(pull, rel=1e-9)
    assert relational(a, a, others.detach(), tau, tau).item() == pytest.approx(0, abs=1e-12)


def test_fedu2_has_the_authors_regulariser():
    """Their `RepresentationTagentCollapse`, with its draws replaced by fixed ones."""
    z = F.normalize(fixed(5, 4, 0.5), dim=1).requires_grad_()
    directions = torch.stack([fixed(6, 4, 3.0 + number) for number in range(5)])
    draws = SphereDraws(F.normalize(fixed(5, 4, 1.1), dim=1), F.normalize(fixed(5, 4, 2.2), dim=1), directions)
    loss = tangent_spread(z, draws)
    loss.backward()
    assert loss.item() == pytest.approx(2.1642362064496985, rel=1e-9)
    assert z.grad is not None
    along_sphere = z.grad - (z.grad * z).sum(1, keepdim=True) * z
    assert along_sphere.norm().item() == pytest.approx(1.034847244377584, rel=1e-9)


def test_logarithms_are_as_long_as_the_angle():
    points, tangents = (F.normalize(fixed(rows, 3, rows), dim=1) for rows in (4, 2))
    axes = torch.eye(3, dtype=torch.float64).expand(2, 3, 3)
    logs = projected_logs(points, tangents, axes).transpose(1, 2)  # in coordinates
    assert torch.allclose(logs.norm(dim=2), (tangents @ points.T).acos())
    assert torch.allclose((logs * tangents[:, None]).sum(2), torch.zeros(2, 4, dtype=torch.float64), atol=1e-12)


def test_points_at_one_place_are_less_spread_than_random_ones():
    generator = torch.Generator().manual_seed(0)
    draws = sphere_draws(32, 8, generator)
    random = sphere_draws(32, 8, generator).points
    one = random[:1].expand(32, 8) + 1e-3 * random
    assert tangent_spread(F.normalize(one, dim=1), draws) > 3 * tangent_spread(random, draws)


@pytest.mark.parametrize(("clients", "length"), [(4, 1.7192438859835604), (5, 1.7219592122357512)])
def test_fedu2s_step_is_no_longer_than_the_authors(clients, length):
    """Their solver stops after 20 iterations, a little before the shortest combination."""
    deviations = fixed(clients, {4: 6, 5: 9}[clients], 0.2) + 2 * torch.linspace(0, 1, {4: 6, 5: 9}[clients])
    step, share = unified_step(deviations)
    assert 0.999 * length < step.norm().item() < length
    assert share.sum() == pytest.approx(1)
    units = (deviations / deviations.norm(dim=1, keepdim=True)).numpy()
    nearer = units @ (share @ units)
    shortest = (share @ units) @ (share @ units)
    assert (nearer > shortest - 1e-6).all(), "the step comes nearer to every client"
    assert np.abs(nearer[share > 1e-6] - shortest).max() < 1e-5


def test_the_shortest_combination_of_two_is_on_the_line_between_them():
    gram = np.array([[1.0, 0.2], [0.2, 2.0]])
    assert shortest_combination(gram)[0] == pytest.approx((2.0 - 0.2) / (1.0 + 2.0 - 0.4))
    assert shortest_combination(np.array([[1.0, 3.0], [3.0, 16.0]])).tolist() == [1.0, 0.0]
