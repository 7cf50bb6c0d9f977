"""ClusterGAN: its losses by hand, shapes at all sizes, and a run through the contract."""

import pytest
import torch
from torch import nn

from shoal.core.streams import Streams
from shoal.methods.contract.base import Context
from shoal.methods.uifca.clustergan import ClusterGAN, ClusterGANSettings, critic_loss
from shoal.models.gan import ClusterGANNetwork


class LinearCritic(nn.Module):
    """Score = w . x + c: its gradient is w everywhere."""

    def __init__(self, w):
        super().__init__()
        self.w = w

    def judge(self, x):
        return x.flatten(1) @ self.w + 7


@pytest.mark.parametrize(("length", "penalty"), [(1.0, 0.0), (3.0, 40.0)])
def test_critic_loss_by_hand(length, penalty):
    """A gradient of norm 3 costs 10 (3 - 1)^2; one of norm 1 costs nothing."""
    w = torch.tensor([length, 0.0, 0.0, 0.0])
    real, fake = torch.zeros(5, 1, 2, 2), torch.ones(5, 1, 2, 2)
    loss = critic_loss(LinearCritic(w), real, fake, torch.Generator().manual_seed(0))
    assert loss.item() == pytest.approx(length + penalty)


def test_cycle_loss_is_zero_where_the_encoder_undoes_the_generator(world):
    gan = ClusterGAN(ClusterGANSettings(width=4), Context(world.spec))
    z, cluster = gan.latents(6, Streams(0).torch("game"))
    assert z.shape == (6, gan.latent)

    class Perfect:
        def encode(self, x):
            return z, 100.0 * nn.functional.one_hot(cluster, gan.context.clusters)

    class Shifted(Perfect):
        def encode(self, x):
            return z + 2, super().encode(x)[1]

    assert gan.cycle(Perfect(), z, z, cluster).item() == pytest.approx(0, abs=1e-6)
    assert gan.cycle(Shifted(), z, z, cluster).item() == pytest.approx(10 * 4, rel=1e-5)


def test_training_lowers_the_generators_loss(world):
    """By Adam: a game, whose loss wanders for longer by SGD."""
    gan = world.method("clustergan", optimiser="adam", lr=1e-3)
    losses = [update.metrics["loss"] for update in world.run(gan, 4)[1]]
    assert losses[-1] < losses[0] - 0.02, losses


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 14, 14), (1, 28, 28), (3, 32, 32)])
def test_images_have_the_datas_shape_and_range(shape, dense):
    network = ClusterGANNetwork(5, 4, shape, width=4, dense=dense)
    x = network.generate(torch.randn(3, 5), torch.tensor([0, 1, 3]))
    assert x.shape == (3, *shape)
    assert x.min() >= 0
    assert x.max() <= 1
    z, logits = network.encode(x)
    assert (z.shape, logits.shape, network.judge(x).shape) == ((3, 5), (3, 4), (3,))


def test_rounds_through_the_contract(world):
    gan = ClusterGAN(ClusterGANSettings(steps=2, critic_steps=2, width=4), Context(world.spec))
    server, updates = world.run(gan, 2)
    assert server.round == 2
    assert set(updates[0].metrics) == {"critic", "loss"}
    assert all(update.memory is None for update in updates)
    found = gan.predictor(server)(world.samples().x()[:4])
    torch.testing.assert_close(found.soft.sum(1), torch.ones(4))
