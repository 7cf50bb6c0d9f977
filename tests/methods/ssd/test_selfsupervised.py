"""SSD, FedSimCLR, FedBYOL and FedEMA through the contract; fine-tuning."""

from dataclasses import replace

import pytest
import torch

from shoal.core.streams import Streams
from shoal.methods.contract.base import Client, Federation, LocalSettings, MethodError
from shoal.methods.ssd.losses import subspace_dimensions
from shoal.methods.training.local import batches, weights

NAMES = ["ssd", "fedsimclr", "fedbyol", "fedema", "fedx", "fedu2"]


def start(method, clients):
    return method.init_server(Federation(method.context.spec, (20,) * clients, Streams(0)))


@pytest.mark.parametrize("name", NAMES)
def test_features_are_judged(world, name, client_list):
    method = world.method(name, epochs=2, rounds=2, lr=0.05)
    server, _ = world.run(method, 2)
    clients = client_list([replace(world.client(k, every=2), id=k) for k in (0, 1)])
    metrics = method.evaluate(server, clients, world.evaluation())
    assert {"knn", "uniformity", "uniformity_inter", "uniformity_intra", "alignment"} == metrics.keys()
    final = method.evaluate(server, clients, world.evaluation(final=True))
    assert {"probe", "acc", "nmi", "ari", "effective_rank"} <= final.keys()
    assert final["probe"] >= 0.9, "the planted quarters are easily told apart"


def test_subspaces_belong_to_the_client_id(world):
    """With any other clients, and in any round: client 7 of 50 owns the same dimensions."""
    method = world.method("ssd")
    server = start(method, 50)
    own = subspace_dimensions(128, 50, 0)
    for round in (1, 9):
        for k in (7, 49):
            client = replace(world.client(0, round), id=k)
            extra = method.prepare(method.broadcast(server, k), client)
            assert sorted(torch.nonzero(extra["inside"]).flatten().tolist()) == sorted(own[k].tolist())
            assert set(extra["scale"].tolist()) == {1.0, 10.0}


def test_align_uniform_is_ssd_without_its_additions(world):
    method = world.method("ssd", gamma=0.0, delta=0.0)
    update = method.client_update(method.broadcast(start(method, 2), 0), world.client())
    assert {"loss", "loss_align", "loss_uniform"} == update.metrics.keys()
    assert update.metrics["loss"] == pytest.approx(
        update.metrics["loss_align"] + update.metrics["loss_uniform"], abs=1e-5
    )
    full = world.method("ssd")
    metrics = full.client_update(full.broadcast(start(full, 2), 0), world.client()).metrics
    together = metrics["loss_align"] + metrics["loss_uniform"] + metrics["loss_dsr"] + 0.1 * metrics["loss_distill"]
    assert metrics["loss"] == pytest.approx(together, abs=1e-5)


def test_settings_that_cannot_work_are_named(world):
    with pytest.raises(MethodError, match=r"200 clients cannot each own one of the 128 dimensions"):
        start(world.method("ssd"), 200)


@pytest.mark.parametrize("name", NAMES)
def test_the_last_batch_is_kept_above_ten_clients(world, name):
    """70 samples in batches of 32: two whole ones, and 6 samples left over."""

    def sizes(clients):
        method = world.method(name, epochs=2, batch=32)
        server = start(method, clients)
        client = Client(0, world.samples(torch.arange(70)), world.samples(torch.arange(2)), {}, (), Streams(0, 1, 0))
        rows = 2 if name == "fedx" else 1  # as many other samples beside each batch
        steps = method.local_steps(method.broadcast(server, 0), client)
        return [len(batch) // rows for batch in steps.batches]

    assert sizes(10) == [32, 32, 32, 32]
    assert sizes(11) == [32, 32, 6, 32, 32, 6]


def test_every_sample_is_in_one_batch_of_an_epoch_and_a_single_one_is_dropped(world):
    def drawn(count):
        client = Client(0, world.samples(torch.arange(count)), world.samples(torch.arange(2)), {}, (), Streams(0, 1, 0))
        return list(batches(client, LocalSettings(epochs=1, batch=32), keep_last=True))

    assert sorted(torch.cat(drawn(70)).tolist()) == list(range(70))
    assert [len(batch) for batch in drawn(65)] == [32, 32]
    assert [len(batch) for batch in drawn(20)] == [20]
    assert [len(batch) for batch in drawn(64)] == [32, 32]


def test_training_with_a_kept_last_batch_of_two(world):
    method = world.method("ssd", epochs=1, batch=32)
    client = Client(0, world.samples(torch.arange(34)), world.samples(torch.arange(2)), {}, (), Streams(0, 1, 0))
    update = method.client_update(method.broadcast(start(method, 11), 0), client)
    assert all(torch.isfinite(tensor).all() for tensor in update.message.tensors.values())


def test_networks_built_at_once_by_threads_are_the_same(world):
    """Initial weights come from one global generator, which threads must not share."""
    from concurrent.futures import ThreadPoolExecutor

    method = world.method("ssd")
    first = weights(method.network())
    with ThreadPoolExecutor(4) as pool:
        for built in pool.map(lambda _: weights(method.network()), range(24)):
            assert all(torch.equal(tensor, built[name]) for name, tensor in first.items())
