"""One local step of FedPNP and of its baselines, against the same step done again from the equations."""

import pytest
import torch

from shoal.data.views.augment import choose_recipe, normalise, two_views
from shoal.methods.fedpnp.fedpnp import PAST
from shoal.methods.fedpnp.pool import past_look_alikes
from shoal.methods.training.model_stack import LocalModel
from tests.methods.one_step import (
    assert_trained,
    byol,
    cluster_loss,
    cosine_fall,
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


def pools_by_definition(y_a, y_b, mu):
    """Eq. 3: j is a negative of anchor i where both past soft labels of j are unlike that of i."""

    def unlike(u, v):
        return torch.exp(torch.cosine_similarity(u, v, dim=0) - 1) < mu

    n = len(y_a)
    return tuple(
        torch.tensor(
            [[i != j and bool(unlike(y[i], y_a[j]) and unlike(y[i], y_b[j])) for j in range(n)] for i in range(n)]
        )
        for y in (y_a, y_b)
    )


def settled_past(method, client):
    """The client's past model with the statistics of its own views."""
    past = method._past(client)
    preparation = method._settling(client)
    preparation.work(LocalModel(past, {PAST: past}), {}, preparation.select(), {})
    return past


@pytest.mark.parametrize("mu", [0.6, 0.8, 0.9])
def test_the_pools_of_both_views_are_by_definition(mu):
    g = torch.Generator().manual_seed(3)
    y_a, y_b = (torch.randn(9, 4, generator=g).mul(1.5).softmax(1) for _ in range(2))
    expected = pools_by_definition(y_a, y_b, mu)
    found = ~past_look_alikes(torch.cat((y_a, y_b)), mu)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert not torch.equal(*expected), "the views are told apart"


@pytest.mark.parametrize("round", [1, 2])
def test_fedpnp(world, round):
    """The past model says who is a negative, in evaluation mode; in round 1 the current labels do."""
    mu, alpha = 0.9, {1: 2.0, 2: 0.1}[round]
    method = method_of_one_step(world, "fedpnp", mu=mu)
    initial = world.start(method).tensors
    own, mean = perturbed(initial, 4.0), perturbed(initial, 4.0, seed=6)  # sure of some samples
    memory = {name: t for name, t in own.items() if not name.startswith("instance.")} if round > 1 else {}
    done = one_step(method, world, round, memory, mean)
    x = views(method, done.client)
    network = network_of(method, done.message.tensors)
    now = network(x)
    labels = now.y.detach() if round == 1 else settled_past(method, done.client)(x).y
    pools = pools_by_definition(*labels.chunk(2), mu)
    n = len(done.client.train)
    share = float(pools[0].sum() + pools[1].sum()) / (2 * n * (n - 1))
    instance = nt_xent(*now.z.chunk(2), 0.5, pools)
    cluster = cluster_loss(*now.y.chunk(2))
    assert 0.1 < share < 0.9, "some samples are negatives, and some are not"
    found = done.update.metrics
    assert found["loss_instance"] == pytest.approx(instance.item(), rel=1e-4, abs=1e-5)
    assert found["loss_cluster"] == pytest.approx(cluster.item(), rel=1e-4)
    assert found["loss"] == pytest.approx((instance + alpha * cluster).item(), rel=1e-4)
    assert found["pool_dropped"] == pytest.approx(1 - share, abs=1e-6)
    assert found["confidence"] == pytest.approx(float(labels.max(1).values.mean()), rel=1e-5)
    assert_trained(done.update.message.tensors, stepped(network, instance + alpha * cluster))


def test_the_past_model_has_statistics_of_the_clients_own_views(world):
    """It answers them as in training mode, whatever statistics its training left."""
    method = method_of_one_step(world, "fedpnp", mu=0.9)
    own = perturbed(world.start(method).tensors, 4.0)
    memory = {name: t for name, t in own.items() if not name.startswith("instance.")}
    done = one_step(method, world, 2, memory)
    client, recipe = done.client, choose_recipe(method.context.augment, world.spec.name, world.spec.shape)
    drawn = client.train.x(torch.randperm(12, generator=client.streams.torch("past samples")))
    past_views = normalise(two_views(drawn, recipe, client.streams.torch("past views")))
    past = settled_past(method, client)
    torch.testing.assert_close(past(past_views).y, network_of(method, own)(past_views).y, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(past(past_views).y, network_of(method, own).eval()(past_views).y, atol=0.05)
    found = float(past(views(method, client)).y.max(1).values.mean())
    assert done.update.metrics["confidence"] == pytest.approx(found, rel=1e-5)
    assert not past.training
    assert all(torch.equal(p, own[name]) for name, p in past.named_parameters() if not name.startswith("instance."))


@pytest.mark.parametrize("alpha", [1.0, 0.25])
def test_fedcc(world, alpha):
    method = method_of_one_step(world, "fedcc", alpha=alpha)
    method.tau_instance = 0.4
    method.tau_cluster = 0.9
    done = one_step(method, world)
    network = network_of(method, done.message.tensors)
    now = network(views(method, done.client))
    instance = nt_xent(*now.z.chunk(2), 0.4)
    cluster = cluster_loss(*now.y.chunk(2), 0.9)
    found = done.update.metrics
    assert found["loss_instance"] == pytest.approx(instance.item(), rel=1e-4)
    assert found["loss_cluster"] == pytest.approx(cluster.item(), rel=1e-4)
    assert found["loss"] == pytest.approx((instance + alpha * cluster).item(), rel=1e-4)
    assert_trained(done.update.message.tensors, stepped(network, instance + alpha * cluster))


def test_fedbyolcc(world):
    """The target starts from the broadcast."""
    method = method_of_one_step(world, "fedbyolcc", alpha=0.5)
    done = one_step(method, world)
    x = views(method, done.client)
    network = network_of(method, done.message.tensors)
    h = network.encoder(x)
    prediction, y = network.predictor(network.instance(h)), network.cluster(h).softmax(1)
    instance, cluster = byol(prediction, target_of(network)(x)), cluster_loss(*y.chunk(2))
    assert done.update.metrics["loss_instance"] == pytest.approx(instance.item(), rel=1e-4)
    assert done.update.metrics["loss"] == pytest.approx((instance + 0.5 * cluster).item(), rel=1e-4)
    assert_trained(done.update.message.tensors, stepped(network, instance + 0.5 * cluster))
    assert done.update.memory is None


def test_single_goes_on_from_its_own_weights(world):
    method = method_of_one_step(world, "single", tau=0.3)
    first = one_step(method, world)
    done = one_step(method, world, 2, first.update.memory)
    for each, start in ((first, method.network().state_dict()), (done, first.update.memory)):
        network = network_of(method, {name.removeprefix("network."): t for name, t in start.items()})
        loss = nt_xent(*network(views(method, each.client)).z.chunk(2), 0.3)
        assert each.update.metrics["loss"] == pytest.approx(loss.item(), rel=1e-4)
        assert_trained(each.update.memory, stepped(network, loss), "network.")


def prototypes(z, labels):
    """The mean unit embedding of each pseudo label that occurs, of unit length."""
    return unit(torch.stack([unit(z)[labels == k].mean(0) for k in labels.unique()]))


def prototype_contrast(online, target, labels, tau):
    """-log of e(q_k, t_k) over itself and every other e(q_k, q_l), mean over clusters that occur."""
    q, t = prototypes(online, labels), prototypes(target, labels)
    terms = []
    for k in range(len(q)):
        positive = (q[k] @ t[k] / tau).exp()
        rest = sum((q[k] @ q[other] / tau).exp() for other in range(len(q)) if other != k)
        terms.append(-torch.log(positive / (positive + rest)))
    return sum(terms) / len(terms)


def test_ncc_in_its_second_round(world):
    """Noise before the predictor, prototypes of the pseudo labels that it remembers, its own rates."""
    own = {"sigma": 0.1, "tau": 0.4, "weight": 0.3, "warmup": 0.0, "predictor_lr": 3.0, "momentum": 0.6, "rounds": 4}
    method = method_of_one_step(world, "ncc", **own)
    start = perturbed(method.network().state_dict())
    slow = perturbed(method.network().state_dict(), 0.5)
    labels = torch.arange(12) % 3  # of four clusters one does not occur
    memory = {f"network.{name}": t for name, t in start.items()} | {"labels": labels}
    memory |= {f"target.{name}": t for name, t in slow.items() if not name.startswith("predictor.")}
    done = one_step(method, world, 2, memory)
    network, x = network_of(method, start), views(method, done.client)
    projection = target_of(network_of(method, slow))(x)
    z = network(x).z
    noise = torch.randn(z.shape, generator=done.client.streams.torch("noise"))
    instance = byol(network.predictor(z + 0.1 * noise), projection) / 2
    mine = labels[torch.randperm(12, generator=done.client.streams.torch("batches"))]
    (z_a, z_b), (t_a, t_b) = z.chunk(2), projection.chunk(2)
    contrast = (prototype_contrast(z_a, t_b, mine, 0.4) + prototype_contrast(z_b, t_a, mine, 0.4)) / 2
    found = done.update.metrics
    assert found["loss_instance"] == pytest.approx(instance.item(), rel=1e-4)
    assert found["loss_prototypes"] == pytest.approx(contrast.item(), rel=1e-4)
    assert found["loss"] == pytest.approx((instance + 0.3 * contrast).item(), rel=1e-4)
    rate = cosine_fall(2 / 4)  # the second of four steps
    expected = stepped(network, instance + 0.3 * contrast, {"encoder": rate, "instance": rate, "predictor": 3 * rate})
    assert_trained(done.update.memory, expected, "network.")
    followed = {name: 0.6 * slow[name] + 0.4 * t for name, t in expected.items() if not name.startswith("predictor.")}
    assert_trained(done.update.memory, followed, "target.")
