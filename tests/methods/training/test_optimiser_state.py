import pytest
import torch
from torch import nn

from shoal.methods.contract.base import LocalSettings
from shoal.methods.training.local import build_optimiser, load, weights
from shoal.methods.training.optimiser_state import optimiser_tensors, restore_optimiser


def network():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))
    return net.to(memory_format=torch.channels_last)


def train(net, optimiser, batches):
    for x in batches:
        optimiser.zero_grad()
        net(x.contiguous(memory_format=torch.channels_last)).pow(2).sum().backward()
        optimiser.step()


@pytest.mark.parametrize(
    "local",
    [
        LocalSettings(weight_decay=0.01),
        LocalSettings(optimiser="sgd", lr=1e-3, momentum=0.9),
        LocalSettings(optimiser="sgd", lr=1e-3),
    ],
)
def test_interrupted_training_is_uninterrupted_training(local):
    g = torch.Generator().manual_seed(1)
    batches = [torch.randn(5, 3, 8, 8, generator=g) for _ in range(6)]
    straight = network()
    train(straight, build_optimiser(straight.parameters(), local, 1), batches)

    first = network()
    optimiser = build_optimiser(first.parameters(), local, 1)
    train(first, optimiser, batches[:3])
    stored = weights(first, "network.") | optimiser_tensors(optimiser)
    train(first, optimiser, batches[3:])
    # What was stored is a copy.
    second = network()
    resumed = build_optimiser(second.parameters(), local, 1)
    load(second, stored, "network.")
    restore_optimiser(resumed, stored)
    train(second, resumed, batches[3:])
    for a, b, c in zip(
        straight.state_dict().values(), first.state_dict().values(), second.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


def test_nothing_stored_is_a_fresh_optimiser():
    net = network()
    optimiser = build_optimiser(net.parameters(), LocalSettings(), 1)
    restore_optimiser(optimiser, {"network.0.weight": torch.ones(1)})
    assert optimiser_tensors(optimiser) == {}
