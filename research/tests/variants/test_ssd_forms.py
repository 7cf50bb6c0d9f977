"""SSD in other forms: one step against its equations, and its losses by hand."""

import pytest
import torch

from shoal.methods.contract.context import MethodError
from shoal.methods.ssd.losses import subspace_basis
from shoal_research.variants.ssd_forms import FormsSSD, confined, squared_dsr
from tests.methods.one_step import (
    mean_over_pairs,
    method_of_one_step,
    network_of,
    one_step,
    unit,
    views,
)
from tests.methods.ssd.test_ssd_steps import check_step, own_dimensions


@pytest.mark.parametrize(
    ("form", "direction", "stop"), [("code", "poster", False), ("poster", "code", True), ("poster", "code", False)]
)
@pytest.mark.parametrize("k", [0, 2])
def test_one_step_of_a_form(world, k, form, direction, stop):
    s = {"form": form, "direction": direction, "stop": stop, "basis": "axis", "alpha": 7.0, "temperature": 0.4}
    method = method_of_one_step(world, "ssd_forms", beta=0.8, gamma=0.6, delta=0.3, **s)
    check_step(world, k, method, torch.eye, form, direction, stop)


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


def test_the_share_of_the_regularisation_is_of_gradients_on_the_first_batch(world):
    """|grad gamma DSR| / |grad (align + beta uniform)| over all parameters, at the broadcast weights."""
    method = method_of_one_step(world, "ssd_forms", beta=0.8, gamma=1.0)
    done = one_step(method, world)
    network = network_of(method, done.message.tensors)
    z = network(views(method, done.client)).z
    scale = torch.ones(z.shape[1])
    scale[own_dimensions(z.shape[1], 2, 0)] = 10.0
    parts = [unit(part) for part in z.chunk(2)]
    basis = subspace_basis(z.shape[1], 0)
    squares = [(part @ basis - unit(part @ basis * scale).detach()).pow(2).sum(1) for part in parts]
    dsr = sum(each.sum().sqrt() / len(each) for each in squares) / 2
    expected = (parts[0] - parts[1]).pow(2).sum(1).mean()
    expected = expected + 0.8 * (mean_over_pairs(parts[0]) + mean_over_pairs(parts[1])) / 2
    norms = []
    for loss in (dsr, expected):
        found = torch.autograd.grad(loss, list(network.parameters()), retain_graph=True)
        norms.append(sum(float(gradient.double().pow(2).sum()) for gradient in found) ** 0.5)
    assert done.update.metrics["dsr_gradient_share"] == pytest.approx(norms[0] / norms[1], rel=1e-3)


def test_the_share_is_that_of_the_weights_broadcast_and_grows_with_gamma(world):
    """More training, or another weight of distillation, does not change it; four times gamma makes it fourfold."""
    shares = [
        one_step(method_of_one_step(world, "ssd_forms", **changes), world).update.metrics["dsr_gradient_share"]
        for changes in ({}, {"epochs": 2}, {"delta": 0.0}, {"gamma": 4.0})
    ]
    assert shares[0] > 0
    assert shares == pytest.approx([shares[0], shares[0], shares[0], 4 * shares[0]], rel=1e-5)
    without = one_step(method_of_one_step(world, "ssd_forms", gamma=0.0), world).update.metrics
    assert "dsr_gradient_share" not in without


def test_measuring_the_share_changes_nothing_of_the_training(world, monkeypatch):
    trained = [one_step(method_of_one_step(world, "ssd_forms"), world).update.message.tensors]
    monkeypatch.setattr(FormsSSD, "dsr_share", lambda self, *_: torch.zeros(()))
    trained.append(one_step(method_of_one_step(world, "ssd_forms"), world).update.message.tensors)
    assert all(torch.equal(tensor, trained[1][name]) for name, tensor in trained[0].items())


def test_without_projector_it_trains(world):
    method = world.method("ssd_forms", epochs=3, rounds=3, lr=0.05, projector=False, delta=0.0)
    _, updates = world.run(method, 3)
    assert updates[-1].metrics["loss"] < updates[0].metrics["loss"]


def test_a_weight_of_what_is_not_there_is_refused(world):
    """Without projector nothing is distilled, and a weight would be ignored."""
    sentence = r"method\.delta is 0\.1, and with method\.projector=false .* set method\.delta=0"
    with pytest.raises(MethodError, match=sentence):
        world.method("ssd_forms", projector=False)
