"""Flows: log-determinant against autograd's Jacobian; densities that integrate to one."""

import math

import pytest
import torch

from shoal.models.normalising_flows import (
    AffineFlow,
    CycleRealNVP,
    TabularRealNVP,
    bits_per_dimension,
    build_flow,
    logit,
    standard_normal,
)


def shaken(flow, seed=0):
    """A flow with random numbers in it, evaluation mode: the identity would hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return flow.double().eval()


VECTORS = [lambda: AffineFlow(5), lambda: TabularRealNVP(5, couplings=3, width=8)]
IMAGES = [
    lambda: CycleRealNVP((1, 4, 4), 4, 1),
    lambda: CycleRealNVP((2, 4, 2), 2, dense=True),
]


@pytest.mark.parametrize("make", VECTORS + IMAGES)
def test_log_determinant(make):
    flow = shaken(make())
    generator = torch.Generator().manual_seed(1)
    if len(flow.shape) == 1:
        x = torch.randn(3, *flow.shape, generator=generator, dtype=torch.float64)
    else:
        x = 256 * torch.rand(3, *flow.shape, generator=generator, dtype=torch.float64)
    z, log_det = flow(x)
    assert z.shape == x.shape
    size = math.prod(flow.shape)
    for i in range(3):
        jacobian = torch.autograd.functional.jacobian(lambda one: flow(one[None])[0][0], x[i]).reshape(size, size)
        torch.testing.assert_close(torch.linalg.slogdet(jacobian)[1], log_det[i], rtol=1e-8, atol=1e-8)


def test_affine_density_by_hand():
    flow = AffineFlow(2).double()
    with torch.no_grad():
        flow.matrix.copy_(torch.tensor([[0.5, 0.0], [0.0, 2.0]]))
        flow.shift.copy_(torch.tensor([1.0, -1.0]))
    # x ~ N(b, diag(4, 1/4)): at its mean the density is 1 / (2 pi sqrt(4 / 4)).
    log_prob = flow.log_prob(torch.tensor([[1.0, -1.0], [3.0, -1.0]], dtype=torch.float64))
    torch.testing.assert_close(log_prob[0], torch.tensor(-math.log(2 * math.pi), dtype=torch.float64))
    torch.testing.assert_close(log_prob[1], log_prob[0] - 0.5)


def test_a_density_integrates_to_one():
    flow = shaken(TabularRealNVP(2, couplings=4, width=6), seed=4)
    side = torch.linspace(-14, 14, 500, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side)
    total = flow.log_prob(grid).detach().exp().sum() * (side[1] - side[0]) ** 2
    assert float(total) == pytest.approx(1.0, abs=5e-3)


def test_logit_of_uniform_bytes():
    x = torch.linspace(0.0, 255.9, 50, dtype=torch.float64).view(10, 1, 5, 1)
    _, log_det = logit(x)
    slope = torch.autograd.functional.jacobian(lambda v: logit(v)[0].sum(), x)
    torch.testing.assert_close(slope.log().flatten(1).sum(1), log_det)


def test_uniform_bytes_cost_eight_bits():
    """A density of 1/256 per pixel is 8 bits per dimension."""
    assert float(bits_per_dimension(torch.tensor([-16 * math.log(256)]), 16)) == pytest.approx(8.0)


def test_a_coupling_of_the_cycle_changes_one_quadrant():
    flow = shaken(CycleRealNVP((1, 4, 4), 4, 1, turns=1))
    x = 256 * torch.rand(2, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    one = CycleRealNVP((1, 4, 4), 4, 1, turns=1).double().eval()
    one.load_state_dict(flow.state_dict())
    del one.couplings[1:]
    y, z = logit(x)[0], one(x)[0]
    same = torch.isclose(y, z).view(2, 4, 4)
    assert same[:, :2, :2].all()
    assert same[:, 2:, :].all()
    assert not same[:, :2, 2:].any(), "the top-right quadrant is what the first coupling changes"


def test_fitting_recovers_a_gaussian():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 2, generator=generator) @ torch.tensor([[2.0, 0.0], [1.0, 0.5]]) + 3
    flow = AffineFlow(2)
    optimiser = torch.optim.Adam(flow.parameters(), 0.05)
    for _ in range(400):
        optimiser.zero_grad()
        (-flow.log_prob(x).mean()).backward()
        optimiser.step()
    assert float(flow.log_prob(x).detach().mean()) == pytest.approx(
        float(torch.distributions.MultivariateNormal(x.mean(0), torch.cov(x.T)).log_prob(x).mean()), abs=1e-2
    )


def test_the_prior_by_hand():
    assert float(standard_normal(torch.zeros(1, 1, 2, 2))[0]) == pytest.approx(-2 * math.log(2 * math.pi))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("cycle", (5,), "for images"),
        ("cycle", (1, 5, 4), "even"),
        ("x", (2,), "no flow"),
    ],
)
def test_flows_that_cannot_be_built(name, shape, message):
    with pytest.raises(ValueError, match=message):
        build_flow(name, shape)
