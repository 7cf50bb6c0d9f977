"""SSD in other forms: one step against its equations, and its losses by hand."""

import pytest
import torch

from shoal.core.streams import Streams
from shoal.methods.contract.context import MethodError
from shoal_research.variants.ssd_forms import confined, squared_dsr
from tests.methods.one_step import (
    assert_trained,
    client_of_one_batch,
    divergence,
    mean_over_pairs,
    method_of_one_step,
    network_of,
    stepped,
    unit,
    views,
)
from tests.methods.ssd.test_ssd_steps import own_dimensions


@pytest.mark.parametrize(
    ("form", "direction", "stop"), [("code", "poster", False), ("poster", "code", True), ("poster", "code", False)]
)
@pytest.mark.parametrize("k", [0, 2])
def test_one_step_of_a_form(world, k, form, direction, stop):
    """Client k of three: both regularisations are of its own dimensions, and of a target without gradient."""
    s = {"form": form, "direction": direction, "stop": stop, "basis": "axis", "alpha": 7.0, "temperature": 0.4}
    method = method_of_one_step(world, "ssd_forms", beta=0.8, gamma=0.6, delta=0.3, **s)
    client = client_of_one_batch(world)
    client = type(client)(k, client.train, client.validation, {}, (), Streams(0, 1, k))
    message = method.broadcast(world.start(method, 3), k)
    update = method.client_update(message, client)
    network = network_of(method, message.tensors)
    h, z = network(views(method, client))
    scale = torch.ones(z.shape[1])
    scale[own_dimensions(z.shape[1], 3, k)] = 7.0
    parts = [unit(part) for part in z.chunk(2)]
    align = (parts[0] - parts[1]).pow(2).sum(1).mean()
    uniform = (mean_over_pairs(parts[0]) + mean_over_pairs(parts[1])) / 2
    squares = [(part - unit(part * scale).detach()).pow(2).sum(1) for part in parts]
    regularisations = [each.sum().sqrt() / len(each) if form == "code" else each.mean() for each in squares]
    regularisation = (regularisations[0] + regularisations[1]) / 2
    teacher = z.detach() if stop else z
    distillation = divergence(h, teacher, 0.4) if direction == "poster" else divergence(teacher, h, 0.4)
    loss = align + 0.8 * uniform + 0.6 * regularisation + 0.3 * distillation
    found = update.metrics
    assert found["loss_align"] == pytest.approx(align.item(), rel=1e-4)
    assert found["loss_uniform"] == pytest.approx(uniform.item(), rel=1e-4)
    assert found["loss_dsr"] == pytest.approx(regularisation.item(), rel=1e-4)
    assert found["loss_distill"] == pytest.approx(distillation.item(), rel=1e-4)
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert_trained(update.message.tensors, stepped(network, loss))


def test_no_gradient_flows_through_the_target_of_the_regularisation():
    """By hand: of the mean of |z - t|^2 with t held fast, the gradient is 2 (z - t) / n, here of two views."""
    z = unit(torch.randn(4, 3, generator=torch.Generator().manual_seed(0))).requires_grad_()
    scale = torch.tensor([10.0, 1.0, 1.0])
    squared_dsr(z, scale, torch.eye(3)).backward()
    target = unit(z.detach() * scale)
    torch.testing.assert_close(z.grad, 2 * (z.detach() - target) / 4)


def test_hard_separation_leaves_the_own_subspace_only():
    inside = torch.tensor([True, True, False, False])
    z = confined(torch.randn(5, 4), inside, torch.eye(4))
    assert float(z[:, 2:].abs().sum()) == 0
    torch.testing.assert_close(z.norm(dim=1), torch.ones(5))


def test_hard_separation_is_no_regularisation(world):
    with pytest.raises(MethodError, match=r"method\.gamma is 1, and with method\.form=hard .* set method\.gamma=0"):
        world.method("ssd_forms", form="hard")
    assert world.method("ssd_forms", form="hard", gamma=0.0).has_subspaces
