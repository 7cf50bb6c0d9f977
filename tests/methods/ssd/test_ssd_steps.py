"""One local step of SSD and of its baselines, against the same step done again from the equations."""

import pytest
import torch

from shoal.core.streams import Streams
from shoal.methods.ssd.losses import subspace_basis
from tests.methods.one_step import (
    assert_trained,
    byol,
    client_of_one_batch,
    divergence,
    mean_over_pairs,
    method_of_one_step,
    network_of,
    nt_xent,
    one_step,
    perturbed,
    stepped,
    target_of,
    unit,
    views,
)


def floats(tensors):
    return {name: t for name, t in tensors.items() if t.is_floating_point()}


def test_fedsimclr(world):
    method = method_of_one_step(world, "fedsimclr", tau=0.3)
    done = one_step(method, world)
    network = network_of(method, done.message.tensors)
    loss = nt_xent(*network(views(method, done.client)).z.chunk(2), 0.3)
    assert done.update.metrics["loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert_trained(done.update.message.tensors, stepped(network, loss))


def own_dimensions(width, clients, client):
    """Where a client's subspace lies: its share of the seed's shuffled dimensions."""
    size = width // clients
    order = torch.randperm(width, generator=Streams(0).torch("subspaces"))
    return order[client * size : (client + 1) * size]


def check_step(world, k, method, basis, form="code", direction="poster", stop=False):
    """Client k of three: both regularisations are of its own dimensions, and of a target without gradient.

    `basis` gives the axes of a width; the research knows other forms, directions and stops than the method.
    """
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
    axes = basis(z.shape[1])
    squares = [(part @ axes - unit(part @ axes * scale).detach()).pow(2).sum(1) for part in parts]
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


@pytest.mark.parametrize("k", [0, 2])
def test_ssd(world, k):
    method = method_of_one_step(world, "ssd", beta=0.8, gamma=0.6, delta=0.3, alpha=7.0, temperature=0.4)
    check_step(world, k, method, lambda width: subspace_basis(width, 0))


def followed(slow, online, momentum):
    """The target after one step: the mean of its own weights and the network's."""
    return {
        name: momentum * slow[name] + (1 - momentum) * t
        for name, t in online.items()
        if not name.startswith("predictor.")
    }


@pytest.mark.parametrize("round", [1, 2])
def test_fedbyol(world, round):
    """Round 2 begins from the broadcast weights and the client's own target."""
    method = method_of_one_step(world, "fedbyol", momentum=0.7)
    start = world.start(method).tensors
    slow = perturbed(start) if round == 2 else start
    memory = {f"target.{name}": t for name, t in slow.items() if not name.startswith("predictor.")}
    done = one_step(method, world, round, memory if round == 2 else {})
    network, x = network_of(method, start), views(method, done.client)
    loss = byol(network.predictor(network(x).z), target_of(network_of(method, slow))(x))
    assert done.update.metrics["loss"] == pytest.approx(loss.item(), rel=1e-4)
    trained = stepped(network, loss)
    assert_trained(done.update.message.tensors, trained)
    assert_trained(done.update.memory, followed(slow, trained, 0.7), "target.")


def encoders_apart(a, b):
    """L2 distance of the parameters of two encoders; running statistics are none."""
    names = [name for name in floats(a) if name.startswith("encoder.") and "running" not in name]
    parts = [(a[name] - b[name]).double().pow(2).sum() for name in names]
    return torch.stack(parts).sum().sqrt()


def remembered(own, round, scale=None):
    """What a client of FedEMA keeps of a round that ended with weights `own`, its target the same."""
    memory = {f"own.{name}": t for name, t in own.items()} | {"round": torch.tensor(round)}
    memory |= {f"target.{name}": t for name, t in own.items() if not name.startswith("predictor.")}
    return memory if scale is None else memory | {"lambda": scale}


@pytest.mark.parametrize("known", [False, True])
def test_fedema_mixes_by_divergence(world, known):
    """The first time a client keeps tau of its own weights; later lambda times how far they are from the broadcast."""
    method = method_of_one_step(world, "fedema", momentum=0.7, tau=0.6)
    start = world.start(method).tensors
    own = perturbed(start)
    apart = encoders_apart(start, own)
    scale = 0.25 / apart if known else None
    done = one_step(method, world, 2, remembered(own, 1, scale))
    mu = 0.25 if known else 0.6
    mixed = {name: mu * own[name] + (1 - mu) * t if t.is_floating_point() else t for name, t in start.items()}
    network, x = network_of(method, mixed), views(method, done.client)
    loss = byol(network.predictor(network(x).z), target_of(network_of(method, own))(x))
    assert done.update.metrics["loss"] == pytest.approx(loss.item(), rel=1e-4)
    trained = stepped(network, loss)
    assert_trained(done.update.message.tensors, trained)
    assert_trained(done.update.memory, trained, "own.")
    assert_trained(done.update.memory, followed(own, trained, 0.7), "target.")
    assert done.update.metrics["divergence"] == pytest.approx(apart.item(), rel=1e-6)
    assert float(done.update.memory["lambda"]) == pytest.approx(float(mu / apart), rel=1e-6)
    assert int(done.update.memory["round"]) == 2


def test_fedema_keeps_no_more_than_all_of_its_own(world):
    method = method_of_one_step(world, "fedema")
    own = perturbed(start := world.start(method).tensors)
    done = one_step(method, world, 2, remembered(own, 1, 3 / encoders_apart(start, own)))
    network, x = network_of(method, own), views(method, done.client)
    loss = byol(network.predictor(network(x).z), target_of(network)(x))
    assert done.update.metrics["loss"] == pytest.approx(loss.item(), rel=1e-4)


def test_fedema_after_a_round_that_the_client_missed(world):
    """As its authors do, network and target restart from the broadcast, and lambda stays."""
    method = method_of_one_step(world, "fedema")
    own = perturbed(start := world.start(method).tensors)
    scale = 0.5 / encoders_apart(start, own)
    done = one_step(method, world, 4, remembered(own, 2, scale))
    network, x = network_of(method, start), views(method, done.client)
    loss = byol(network.predictor(network(x).z), target_of(network)(x))
    assert done.update.metrics["loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert "divergence" not in done.update.metrics
    assert float(done.update.memory["lambda"]) == pytest.approx(float(scale))
    assert int(done.update.memory["round"]) == 4
