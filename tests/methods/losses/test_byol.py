import pytest
import torch

from shoal.methods.losses.byol import byol_loss, make_target, spread, update_target
from shoal.models.encoders import build_encoder
from shoal.models.heads import ByolNet


@pytest.fixture
def network():
    torch.manual_seed(0)
    return ByolNet(build_encoder("tiny-conv", (1, 8, 8)))


def follow(target, network, momentum):
    update_target(dict(target.named_parameters()), dict(network.named_parameters()), momentum)


def test_loss_limits_and_swap():
    z = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    a, b = z.chunk(2)
    assert byol_loss(torch.cat((a, b)), torch.cat((b, a)) * 5).item() == pytest.approx(0, abs=1e-6)
    assert byol_loss(torch.cat((a, b)), -torch.cat((b, a))).item() == pytest.approx(8, abs=1e-5)
    cos = torch.cosine_similarity(a, b, dim=1).mean().item()
    assert byol_loss(torch.cat((a, b)), torch.cat((a, b))).item() == pytest.approx(2 * (2 - 2 * cos), abs=1e-5)


def test_no_gradient_into_the_target():
    q = torch.randn(4, 3, requires_grad=True)
    z = torch.randn(4, 3, requires_grad=True)
    byol_loss(q, z).backward()
    assert q.grad is not None
    assert z.grad is None


def test_target_starts_as_the_network_and_follows_it(network):
    x = torch.randn(6, 1, 8, 8)
    target = make_target(network)
    torch.testing.assert_close(target(x), network(x).z)
    assert not any(p.requires_grad for p in target.parameters())
    old = [p.clone() for p in target.parameters()]
    with torch.no_grad():
        for p in network.parameters():
            p.add_(1.0)
    follow(target, network, 0.75)
    for p, before in zip(target.parameters(), old, strict=True):
        torch.testing.assert_close(p, before + 0.25)


@pytest.mark.parametrize(("momentum", "moves"), [(1.0, False), (0.0, True)])
def test_momentum_limits(network, momentum, moves):
    target = make_target(network)
    old = target.encoder.layers[0].weight.clone()
    with torch.no_grad():
        network.encoder.layers[0].weight.mul_(2)
    follow(target, network, momentum)
    assert torch.equal(target.encoder.layers[0].weight, 2 * old if moves else old)


def test_target_keeps_its_own_batch_statistics(network):
    target = make_target(network)
    norm = target.encoder.layers[1]
    before = norm.running_mean.clone()
    follow(target, network, 0.5)
    assert torch.equal(norm.running_mean, before)
    target(torch.randn(6, 1, 8, 8) + 3)
    assert not torch.equal(norm.running_mean, before)
    assert int(norm.num_batches_tracked) == 1


def test_spread_limits():
    assert spread(torch.ones(5, 8)).item() == 0
    assert spread(torch.randn(4000, 64, generator=torch.Generator().manual_seed(0))).item() == pytest.approx(
        1, abs=0.01
    )


def test_a_client_of_fedbyol_keeps_its_target_and_one_of_fedbyolcc_begins_each_round_from_the_broadcast(world):
    kept = world.method("fedbyol", momentum=1.0)
    server = world.start(kept)
    first = kept.client_update(kept.broadcast(server, 0), world.client())
    after = kept.aggregate(server, [first])
    second = kept.client_update(kept.broadcast(after, 0), world.client(0, 2, first.memory))
    # With momentum 1 the client's target is still that of the first broadcast, after two rounds.
    for name, tensor in second.memory.items():
        if name.startswith("target.") and name.endswith("weight"):
            assert torch.equal(tensor, server.tensors[name.removeprefix("target.")])
    restarted = world.method("fedbyolcc")
    update = restarted.client_update(restarted.broadcast(world.start(restarted), 0), world.client(0, 2))
    assert update.memory is None
