"""FedSimCLR with federated K-means towards clusters of one size."""

from dataclasses import replace

import pytest
import torch

from shoal.methods.contract.base import Message, Server
from shoal.methods.contract.declared import fault
from shoal.methods.scores.assignment import nearest_centres
from shoal.methods.ssd.fedsimclr_kmeans import CENTRES, FEATURES, MEAN, PROJECTION, clustered
from shoal_research.variants import even_clusters
from shoal_research.variants.even_clusters import PRICES
from tests.methods.ssd.test_fedsimclr_kmeans import carried_out

PRICED = {"kmeans_rounds": 24, "components": 3, "whitening": 1.0, "starts": 10, "evenness": 0.5}


@pytest.fixture
def priced(world):
    return world.method("fedsimclr_even", rounds=26, min_points=1, epochs=4, **PRICED)


def half_a_class(index):
    return index % 8 == 0  # every second sample of class 0


def test_prices_are_what_the_sizes_over_all_clients_are_worth(world, priced, monkeypatch):
    monkeypatch.setattr(even_clusters, "UNEVEN_SIZES", 10)
    states, sent, clients = carried_out(world, priced, 26, without=half_a_class)
    n = sum(len(client.train) for client in clients)
    facts = states[-1].facts
    best = facts["best"]
    sums = [update.message.tensors for update in sent[-1]]
    counts = sum(tensors["counts"][best] for tensors in sums)
    assert float(counts.sum()) == pytest.approx(n)
    prices = states[-2].tensors[PRICES][best]
    torch.testing.assert_close(prices, 0.5 * torch.log(n / 4 / counts), atol=1e-3, rtol=0)
    assert float(prices.max()) > 0.1, "one class is half as large as the others"
    assert facts["inertia"][best] == min(facts["inertia"])
    early, value = states[6].tensors[PRICES], sum(update.message.tensors["value"] for update in sent[6])
    uneven = 0.5 * (n - n / 4 * torch.exp(-early / 0.5).sum(1))
    assert float(uneven.abs().max()) > 0.05, "prices do not fit the sizes yet"
    assert states[7].facts["inertia"] == pytest.approx((value + uneven).tolist())


def test_the_prices_of_the_start_that_counts_decide(world, priced):
    states, _, _ = carried_out(world, priced, 6)
    tensors = {**states[-1].tensors, PRICES: torch.zeros(10, 4).double()}
    tensors[PRICES][3] = torch.tensor([0.0, 9.0, 0.0, 0.0])
    x = world.client(0).train.x(torch.arange(5))
    for best, decided in ((3, True), (0, False)):
        state = Server(tensors, facts={**states[-1].facts, "best": best}, round=6)
        assert bool((priced.predictor(state)(x).cluster == 1).all()) is decided


def test_prices_are_dropped_where_classes_are_uneven(world, priced):
    states, sent, clients = carried_out(world, priced, 26, without=half_a_class)
    after = next(number for number, state in enumerate(states) if state.facts.get("uneven"))
    assert after <= priced.training_rounds + 2 + priced.last_priced_move
    assert PRICES in states[after - 1].tensors
    assert not {PRICES, CENTRES} & states[after].tensors.keys(), "K-means starts again"
    assert priced.next_step(states[after]) == "start"
    assert set(sent[after + 1][0].message.tensors) == {"sums", "counts", "inertia"}
    projection = states[-1].tensors[PROJECTION]
    torch.testing.assert_close(projection.T @ projection, torch.eye(3, dtype=torch.float64))
    sizes = torch.bincount(priced.assignment(states[-1], clients, world.evaluation()).cluster, minlength=4)
    assert (sizes > 0).all()


def test_prices_stay_where_classes_are_even(world, priced):
    states, _, _ = carried_out(world, priced, 26)
    assert PRICES in states[-1].tensors
    assert "uneven" not in states[-1].facts


def test_with_prices_a_sample_goes_to_the_cheapest_cluster(world, priced, monkeypatch):
    monkeypatch.setattr(even_clusters, "UNEVEN_SIZES", 10)
    states, _, clients = carried_out(world, priced, 12, without=half_a_class)
    state = states[-1]
    best = state.facts["best"]
    h = clustered(torch.cat([client.memory[FEATURES] for client in clients]), state.tensors)
    centres = state.tensors[CENTRES][best]
    prices = state.tensors[PRICES][best]
    assert float(prices.max() - prices.min()) > 0.01
    found = priced.predictor(state)(torch.cat([client.train.x(torch.arange(len(client.train))) for client in clients]))
    assert torch.equal(found.cluster, (torch.cdist(h, centres).square() - prices).argmin(1))
    assert priced.centres(state).shape == (4, h.shape[1] + 1)
    all_samples = priced.assignment(state, clients, world.evaluation())
    again = nearest_centres(all_samples.features, priced.centres(state))
    assert torch.equal(again.cluster, all_samples.cluster), "the centres are those that decide"


def test_prices_travel_and_messages_are_as_declared(world, priced):
    states, sent, _ = carried_out(world, priced, 7)
    assert PRICES not in states[3].tensors
    assert not states[4].tensors[PRICES].any()
    assert set(priced.broadcast(states[5], 0).tensors) == {CENTRES, PRICES, MEAN, PROJECTION}
    assert set(sent[4][0].message.tensors) == {"sums", "counts", "products", "value"}
    for state, updates in zip(states, sent, strict=False):
        for k, update in enumerate(updates):
            assert fault(update.message, priced.declared(state, k, world.spec.train // 3)) is None
    wrong = sent[4][0].message
    beyond = Message({**wrong.tensors, "products": wrong.tensors["products"] - 1e3}, wrong.facts)
    assert "products" in fault(beyond, priced.declared(states[4], 0, world.spec.train // 3))


def test_priced_clusters_tell_nothing_of_what_little_a_client_has_in_a_cluster(world):
    method = world.method("fedsimclr_even", rounds=26, epochs=4, min_points=2, **PRICED)
    states, _, _ = carried_out(world, method, 6)
    client = replace(world.client(0, 4), train=world.samples(torch.tensor([0, 4, 8, 12, 16, 20, 24, 28, 1])))
    counts = method.client_update(method.broadcast(states[-1], 9), client).message.tensors["counts"]
    assert ((counts == 0) | (counts >= 2)).all()
    assert (counts == 0).any()
