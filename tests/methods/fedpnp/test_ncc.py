import math

import pytest
import torch

from shoal.methods.contract.base import MethodError
from shoal.methods.fedpnp.ncc import lr_factor, prototype_loss


def test_prototype_loss_by_hand():
    # Clusters 0 and 2 occur, 1 and 3 do not; prototypes of unit length along the axes.
    online = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 3.0]])
    labels = torch.tensor([0, 0, 2])
    found = prototype_loss(online, online, labels, 4, 0.5)
    expected = -math.log(math.exp(2) / (math.exp(2) + 1))
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_prototype_loss_limits():
    online = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    one = prototype_loss(online, online, torch.zeros(6, dtype=torch.int64), 3, 0.5)
    assert one.item() == pytest.approx(0, abs=1e-6)
    one.backward()
    assert torch.isfinite(online.grad).all()
    # Prototypes that coincide cannot be told apart.
    same = torch.ones(6, 4)
    labels = torch.arange(6) % 3
    assert prototype_loss(same, same, labels, 3, 0.5).item() == pytest.approx(math.log(3), rel=1e-5)


def test_prototypes_that_scatter_lower_the_loss():
    labels = torch.arange(8) % 2
    near = torch.tensor([[1.0, 0.1], [1.0, -0.1]])[labels]
    apart = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])[labels]
    assert prototype_loss(apart, apart, labels, 2, 0.5) < prototype_loss(near, near, labels, 2, 0.5)


def test_learning_rate_rises_then_falls():
    assert lr_factor(0.05, 0.1) == pytest.approx(0.5)
    assert lr_factor(0.1, 0.1) == pytest.approx(1)
    assert lr_factor(0.55, 0.1) == pytest.approx(0.5)
    assert lr_factor(1.0, 0.1) == pytest.approx(0)
    assert lr_factor(0.0, 0.0) == 1


def test_warm_up_trains_byol_alone(world):
    _, updates = world.run(world.method("ncc", rounds=4, epochs=1, warmup=0.5), 3)
    contrasts = [u.metrics["loss_prototypes"] for u in updates]
    assert contrasts[:2] == [0, 0]
    assert contrasts[2] > 0


def test_training_goes_on_where_it_stopped(world):
    method = world.method("ncc", rounds=2)
    server, updates = world.run(method, 2)
    first, second = (u.memory for u in updates)
    # The target followed the network from the first round into the second, and was not set back to it.
    steps = [m["target.encoder.layers.1.num_batches_tracked"].item() for m in (first, second)]
    assert steps == [6, 12]
    assert any(name.startswith("optimiser.") and name.endswith("momentum_buffer") for name in first)
    assert second["labels"].shape == (96,)
    # What predicts is what the client's last target and pseudo labels say.
    found = method.predictor(server)(world.samples().x())
    assert (found.cluster == second["labels"]).float().mean() > 0.95
    torch.testing.assert_close(server.tensors["prototypes"].norm(dim=1), torch.ones(4))


@pytest.mark.long
@pytest.mark.parametrize("part", ["network.", "target.", "optimiser."])
def test_every_part_of_the_memory_counts(world, part):
    method = world.method("ncc", rounds=2)
    _, (first, _) = world.run(method, 2)
    message = method.broadcast(world.start(method), 0)
    if part == "optimiser.":
        other = {k: t for k, t in first.memory.items() if not k.startswith(part)}
    else:
        other = {k: t * 1.1 if k.startswith(part) and t.is_floating_point() else t for k, t in first.memory.items()}
    losses = {
        method.client_update(message, world.client(0, 2, memory)).metrics["loss"] for memory in (first.memory, other)
    }
    assert len(losses) == 2


def test_before_the_first_round_there_is_no_model(world):
    for name in ("ncc", "kmeans"):
        method = world.method(name)
        with pytest.raises(MethodError, match="first round"):
            method.predictor(world.start(method))
