"""FedSimCLR with federated K-means: phases, what travels, and agreement with K-means of pooled features."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from shoal.methods.clustering.federated_k_means import cluster_sums
from shoal.methods.contract.base import Message, Update
from shoal.methods.contract.declared import fault
from shoal.methods.scores.clustering import crossed, table_scores
from shoal.methods.ssd.fedsimclr_kmeans import CENTRES, FEATURES, MEAN, PROJECTION, clustered
from tests.methods.conftest import ClientList

PLAIN = {"kmeans_rounds": 12, "components": 3, "whitening": 1.0, "starts": 10}


def carried_out(world, method, rounds, clients=3, without=lambda index: index < 0):
    """The states after each round, the updates of each, and the clients with their memories; some samples left out."""
    server = world.start(method, clients)
    clients_now = [world.client(k, every=clients) for k in range(clients)]
    parts = [client.train.index[~without(client.train.index)] for client in clients_now]
    clients_now = [replace(client, train=world.samples(part)) for client, part in zip(clients_now, parts, strict=True)]
    states, sent = [server], []
    for round in range(1, rounds + 1):
        updates = []
        for k in range(clients):
            client = replace(
                world.client(k, round, clients_now[k].memory, every=clients), train=world.samples(parts[k])
            )
            update = replace(method.client_update(method.broadcast(server, k), client), client=k)
            clients_now[k] = client if update.memory is None else replace(client, memory=update.memory)
            updates.append(update)
        server = method.aggregate(server, iter(updates))
        states.append(server)
        sent.append(updates)
        if server.finished:
            break
    return states, sent, ClientList(clients_now)


@pytest.fixture
def method(world):
    return world.method("fedsimclr_kmeans", rounds=14, min_points=1, epochs=4, **PLAIN)


def test_clusters_are_those_of_k_means_on_all_features(world, method):
    states, _, clients = carried_out(world, method, 14)
    assert states[-1].finished, "K-means settles within its rounds"
    found = method.assignment(states[-1], clients, world.evaluation())
    n = world.spec.train
    h = found.features[:n].double().numpy()
    centres = method.centres(states[-1]).numpy()
    again = KMeans(4, init=centres, n_init=1).fit(h)
    np.testing.assert_allclose(again.cluster_centers_, centres, atol=1e-6)
    pooled = KMeans(4, n_init=50, random_state=0).fit(h)
    assert states[-1].facts["inertia"][states[-1].facts["best"]] <= 1.02 * pooled.inertia_
    assert method.evaluate(states[-1], clients, world.evaluation())["acc"] == pytest.approx(
        table_scores(crossed(torch.cat((world.data.train_y, world.data.test_y)).numpy(), found.cluster.numpy()))["acc"]
    )


def test_the_best_start_counts(world, method):
    states, _, _ = carried_out(world, method, 14)
    facts = states[-1].facts
    assert len(facts["inertia"]) == 10
    assert facts["inertia"][facts["best"]] == min(facts["inertia"])
    for best in (2, 5):
        other = replace(states[-1], facts={**facts, "best": best})
        assert torch.equal(method.centres(other), states[-1].tensors[CENTRES][best])
    found = method.aggregate(states[4], iter([sums_of(states[4], inertia=[float(k != 7) for k in range(10)])]))
    assert found.facts["best"] == 7


def sums_of(state, inertia):
    """An update of client 0 in a K-means round, with these sums of squared distances."""
    zeros = torch.zeros_like(state.tensors[CENTRES])
    tensors = {"sums": zeros, "counts": zeros[..., 0], "inertia": torch.tensor(inertia).double()}
    return Update(Message(tensors), client=0)


def test_the_encoder_rests_while_clusters_are_found(world, method):
    states, sent, clients = carried_out(world, method, 5)
    assert [CENTRES in state.tensors for state in states] == [False, False, False, False, True, True]
    for name, tensor in states[2].tensors.items():
        assert torch.equal(states[5].tensors[name], tensor)
    assert all("loss" in update.metrics for update in sent[1])
    assert set(sent[2][0].message.tensors) == {"samples", "total", "outer"}
    assert set(sent[3][0].message.tensors) == {"centres", "counts"}
    assert set(sent[4][0].message.tensors) == {"sums", "counts", "inertia"}
    assert set(clients[0].memory) == {FEATURES}


def test_the_network_travels_once_and_then_centres_alone(world, method):
    states, _, _ = carried_out(world, method, 5)
    assert set(method.broadcast(states[5], 0).tensors) == {CENTRES, MEAN, PROJECTION}
    late = method.broadcast(states[5], 7).tensors  # has missed the rounds before
    assert set(late) == set(states[5].tensors)
    client = world.client(0, 6)
    update = method.client_update(method.broadcast(states[5], 7), client)
    assert len(update.memory[FEATURES]) == len(client.train)


def test_a_client_of_three_samples_tells_their_mean(world):
    method = world.method("fedsimclr_kmeans", rounds=14, min_points=2, **PLAIN)
    x = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]])
    found = method.local_centres(x, world.client(0, 6))
    assert found["counts"].tolist() == [3.0]
    assert found["centres"].tolist() == [[1.0, 1.0]]


def test_small_clusters_of_a_client_are_not_told(world):
    """A client of nine samples, of which one is of another class than the rest."""
    told = {}
    for min_points in (1, 2):
        method = world.method("fedsimclr_kmeans", rounds=14, epochs=4, min_points=min_points, **PLAIN)
        states, _, _ = carried_out(world, method, 6)
        own = torch.tensor([0, 4, 8, 12, 16, 20, 24, 28, 1])
        client = replace(world.client(0, 4), train=world.samples(own))
        starting = method.client_update(method.broadcast(states[3], 9), client)
        moving = method.client_update(method.broadcast(states[-1], 9), client)
        told[min_points] = (starting.message.tensors["counts"], moving.message.tensors["counts"][0])
    assert sorted(told[1][1].tolist()) == [0, 0, 1, 8]
    assert sorted(told[2][1].tolist()) == [0, 0, 0, 8]
    assert 1 in told[1][0]
    assert (told[2][0] >= 2).all()
    assert len(told[2][0])


def test_what_is_clustered_is_whitened_over_all_clients(world, method):
    states, _, clients = carried_out(world, method, 4)
    h = torch.cat([client.memory[FEATURES] for client in clients]).double()
    mean, projection = states[3].tensors[MEAN], states[3].tensors[PROJECTION]
    white = (h - mean) @ projection
    torch.testing.assert_close(white.T @ white / len(h), torch.eye(white.shape[1]).double(), atol=1e-5, rtol=0)
    pooled = np.linalg.svd((h - h.mean(0)).numpy(), full_matrices=False)[2][: white.shape[1]]
    own = (projection / projection.norm(dim=0)).T.numpy()
    np.testing.assert_allclose(np.abs(own @ pooled.T), np.eye(len(own)), atol=1e-3)
    assert torch.allclose(clustered(h, states[3].tensors).norm(dim=1), torch.ones(len(h)).double())


def test_variances_are_made_equal_as_far_as_the_settings_say(world, method):
    half = world.method("fedsimclr_kmeans", rounds=14, epochs=4, **PLAIN | {"whitening": 0.5})
    whole, partly = (carried_out(world, m, 3)[0][-1].tensors[PROJECTION] for m in (method, half))
    torch.testing.assert_close(whole.norm(dim=0).sqrt(), partly.norm(dim=0))


def test_what_starts_cost_lies_within_bounds_that_the_centres_give(world):
    """Any samples of unit length: honest scores are within, whatever centres are, and others not."""
    method = world.method("fedsimclr_kmeans", rounds=14, min_points=1, **PLAIN)
    generator = torch.Generator().manual_seed(0)
    start = replace(world.start(method, 3), round=12)
    for length in (0.0, 0.3, 1.0, 5.0):
        x = torch.nn.functional.normalize(torch.randn(20, 3, generator=generator, dtype=torch.float64), dim=1)
        centres = length * torch.nn.functional.normalize(
            torch.randn(10, 4, 3, generator=generator, dtype=torch.float64), dim=2
        )
        server = start.with_model({MEAN: torch.zeros(3), PROJECTION: torch.zeros(3, 3), CENTRES: centres})
        form = method.declared(server, 0, 20)
        sums = cluster_sums(x, centres)._asdict()
        assert fault(Message(sums), form) is None
        alone = 20 * (1 + centres.norm(dim=2)).square()  # all in one cluster
        for wrong, words in ((alone.amin(1) + 0.01, "expected at most"), (sums["inertia"] - 500, "expected")):
            changed = sums["inertia"].clone()
            changed[3] = wrong[3]
            told = fault(Message({**sums, "inertia": changed}), form) or ""
            assert words in told
            assert "start 3" in told or wrong[3] < 0
        longer = {**sums, "sums": sums["sums"] + 2 * sums["counts"][..., None]}
        assert "expected at most 1, that of the client's samples" in (fault(Message(longer), form) or "")


def test_no_mean_of_samples_of_unit_length_is_longer_than_one(world):
    method = world.method("fedsimclr_kmeans", rounds=14, min_points=1, **PLAIN)
    server = replace(world.start(method, 3), round=12)
    server = server.with_model({MEAN: torch.zeros(3), PROJECTION: torch.zeros(3, 3)})
    form = method.declared(server, 0, 20)
    sent = {"centres": torch.eye(3, dtype=torch.float64), "counts": torch.ones(3, dtype=torch.float64)}
    assert fault(Message(sent), form) is None
    assert "longer than 1" in (fault(Message({**sent, "centres": 1.01 * sent["centres"]}), form) or "")
