"""BatchNorm before judging, calibrated on networks whose exact statistics are known."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from torch import nn

from shoal.data.views.augment import normalise
from shoal.methods.contract.base import Evaluation
from shoal.methods.scores import recalibration
from shoal.methods.scores.recalibration import MIN_CLIENT_SAMPLES, recalibrate
from shoal.methods.training import batch_statistics
from shoal.methods.training.batch_statistics import Party, has_batch_norm, layer_sums, settle
from shoal.methods.training.local import load, seeded_build, weights
from shoal.models.encoders import build_encoder
from shoal.models.heads import ClusterNet

ALL = 10_000


def build(encoder="tiny-conv"):
    return seeded_build(lambda: ClusterNet(build_encoder(encoder, (1, 8, 8)), 4), 0)


@pytest.fixture
def one_class_each(world, client_list):
    """Four clients, each with one planted class, and none of equal size."""
    every = torch.arange(world.spec.train)
    own = [every[every % 4 == k][: 24 - 5 * k] for k in range(4)]
    return client_list([replace(world.client(k), train=world.samples(index)) for k, index in enumerate(own)])


def wrong(network):
    """The same network with statistics that are not those of any data."""
    planted = copy.deepcopy(network)
    for name, buffer in planted.named_buffers():
        if name.endswith("running_mean"):
            buffer.copy_(torch.linspace(-1, 2, len(buffer)))
        if name.endswith("running_var"):
            buffer.copy_(torch.linspace(0.2, 5, len(buffer)))
    return planted


def judge(world, samples=ALL, batch=50):
    return replace(world.evaluation(batch=batch), recalibrate=samples)


def pooled(clients):
    return normalise(torch.cat([client.train.x() for client in clients]))


def test_it_answers_as_training_mode_does_to_all_data_in_one_batch(world, one_class_each):
    """To which nobody had to send a sample; also where the averaged statistics are planted wrong."""
    network, x = build(), pooled(one_class_each)
    exact = copy.deepcopy(network).train()(x)
    for start in (network, wrong(network)):
        judged = copy.deepcopy(start)
        found = recalibrate(judged, one_class_each, judge(world), world.method("fedcc").context)
        answer = judged(x)
        assert not judged.training
        torch.testing.assert_close(answer.h, exact.h, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(answer.y, exact.y, rtol=1e-3, atol=1e-4)
        assert not torch.allclose(copy.deepcopy(start).eval()(x).h, exact.h, atol=0.05), "it was another network before"
        assert found.keys() == {n for n, _ in network.named_buffers() if not n.endswith("num_batches_tracked")}
        assert all(torch.equal(dict(judged.named_buffers())[name], tensor) for name, tensor in found.items())
        assert all(torch.equal(p, dict(judged.named_parameters())[name]) for name, p in start.named_parameters())


def test_sums_that_parties_send_settle_a_network(world):
    """A party counts by its weight, however few of its samples pass; a channel that never varies has no variance."""
    x = torch.tensor([[1.0, 7.0], [2.0, 7.0], [6.0, 7.0], [10.0, 7.0]])
    parties = [Party(6.0, [lambda: x[:2], lambda: x[2:3]]), Party(1.0, [lambda: x[3:]])]
    network = nn.Sequential(nn.BatchNorm1d(2))
    context = world.method("fedcc").context
    settle(network, parties, context)
    parts = [layer_sums(network, network[0], party, context) for party in parties]
    whole = pickle.loads(pickle.dumps(parts[0])) + parts[1]
    as_weighted = torch.cat([x[:3], x[:3], x[3:]]).double()
    for found, expected in ((whole.mean, as_weighted.mean(0)), (whole.variance, as_weighted.var(0, correction=0))):
        torch.testing.assert_close(found, expected)
    assert torch.equal(network[0].running_mean, whole.mean.float())
    assert torch.equal(network[0].running_var, whole.variance.float())


def test_the_size_of_a_pass_does_not_matter(world, one_class_each):
    runs = []
    for batch in (7, 500):
        network = build()
        runs.append(recalibrate(network, one_class_each, judge(world, batch=batch), world.method("fedcc").context))
    for name, tensor in runs[0].items():
        torch.testing.assert_close(tensor, runs[1][name], rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("encoder", ["tiny-conv", "resnet18-cifar"])
def test_one_pass_finds_what_a_pass_for_each_layer_finds(world, one_class_each, monkeypatch, encoder):
    context = world.method("fedcc").context
    found = []
    for max_bytes in (1 << 40, 0):
        monkeypatch.setattr(batch_statistics, "MOST_BYTES", {"cpu": max_bytes})
        network = Counted(build(encoder))
        found.append(recalibrate(network, one_class_each, judge(world, 64, batch=9), context))
        found.append(network.samples)
    together, once, apart, often = found
    assert together.keys() == apart.keys()
    for name, tensor in together.items():
        torch.testing.assert_close(tensor, apart[name], rtol=1e-5, atol=1e-6)
    layers = len(together) // 2
    assert (once - 2) * layers == often - 2


class Counted(nn.Module):
    """A network that counts the samples which reach it."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.samples = 0

    def forward(self, x):
        self.samples += len(x)
        return self.inner(x)


def test_a_bounded_seeded_draw_of_samples(world, one_class_each, monkeypatch):
    """Equally many of each client, or all that it has: of 24, 19, 14 and 9 samples 10, 10, 10 and 9."""
    monkeypatch.setattr(recalibration, "MIN_CLIENT_SAMPLES", 8)
    context = world.method("fedcc").context
    evaluation = judge(world, 40)
    network = Counted(build())
    drawn = recalibrate(network, one_class_each, evaluation, context)
    assert network.samples == 2 + 39, "after a look at two samples, all of them in one pass"
    again = recalibrate(Counted(build()), one_class_each, evaluation, context)
    assert all(torch.equal(tensor, again[name]) for name, tensor in drawn.items())
    other = replace(evaluation, streams=replace(evaluation.streams, round=2))
    elsewhere = recalibrate(Counted(build()), one_class_each, other, context)
    assert any(not torch.equal(tensor, elsewhere[name]) for name, tensor in drawn.items())


def test_of_very_many_clients_some_are_asked(world, client_list):
    class Watched(type(client_list([]))):
        asked = 0

        def __getitem__(self, client):
            self.asked += 1
            return super().__getitem__(client)

    clients = Watched([world.client(k, every=8) for k in range(8)] * 25)
    recalibrate(build(), clients, judge(world, 5 * MIN_CLIENT_SAMPLES), world.method("fedcc").context)
    assert clients.asked == 5


def test_nothing_is_done_without_batch_norm_or_where_it_is_switched_off(world):
    """Nobody's data are touched."""
    context = world.method("fedcc").context
    network = build("plain-conv")
    assert has_batch_norm(build())
    assert not has_batch_norm(network)
    assert recalibrate(network, None, judge(world), context) == {}
    assert recalibrate(build(), None, judge(world, 0), context) == {}
    assert isinstance(world.evaluation(), Evaluation)


def test_a_client_without_samples_says_nothing(world, client_list):
    some, nobody = world.client(0, every=2), world.client(1)
    nobody = replace(nobody, train=nobody.train.take(torch.arange(0)))
    context = world.method("fedcc").context
    both = recalibrate(build(), client_list([some, nobody]), judge(world), context)
    statistics = recalibrate(build(), client_list([some]), judge(world), context)
    assert both
    assert all(torch.allclose(tensor, statistics[name]) for name, tensor in both.items())
    assert recalibrate(build(), client_list([nobody]), judge(world), context) == {}


@pytest.mark.parametrize("name", ["fedpnp", "fedcc", "fedbyolcc", "ssd", "fedsimclr", "fedbyol", "fedema", "cfcl"])
def test_every_averaged_network_with_batch_norm_is_judged_so(world, one_class_each, name):
    """By its own predictor: features of the recalibrated state are those of exact statistics."""
    method = world.method(name, encoder="tiny-conv")
    server = world.start(method, 4)
    found = method.recalibrate(server, one_class_each, judge(world))
    assert found
    assert found.keys() <= server.tensors.keys()
    x = torch.cat([client.train.x() for client in one_class_each])
    network = method.network().train()
    if "weights" not in server.tensors:
        load(network, server.tensors)
    exact = network.encoder(normalise(x)).detach()
    if name == "cfcl":
        exact = torch.nn.functional.normalize(exact, dim=1)
    features = method.predictor(server.with_model(found))(x).embedding
    torch.testing.assert_close(features, exact.float(), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(method.predictor(server)(x).embedding, features, atol=0.01)
    assert weights(network)  # the server's own state stays
    assert all(torch.equal(server.tensors[n], t) for n, t in world.start(method, 4).tensors.items())
