"""IFCA on flows: a client's points share one cluster, and the flows begin apart."""

from dataclasses import replace

import torch

from shoal.core.streams import Streams
from shoal.methods.contract.base import Federation
from tests.methods.uifca.federated_blobs import D, Federated, K


def of_one_blob_each(federated):
    """As many clients as blobs, with the points of one blob each."""
    label = federated.data.train_y
    return Federated(federated.data, tuple(torch.nonzero(label == k).squeeze(1) for k in range(K)))


def choices(method, server, clients):
    return [method.choice(server.tensors["flows"], clients.client(k, 9)) for k in range(len(clients.owned))]


def test_flows_begin_on_different_clients(federated):
    clients = of_one_blob_each(federated)
    apart = clients.method("ifca_flows", lr=1e-2, steps=30)
    server, _ = clients.play(apart, 8)
    assert server.facts["trained"] == [1] * K
    assert len(set(choices(apart, server, clients))) == K


def test_a_client_is_told_its_flow_until_somebody_has_trained_that(federated):
    method = federated.method("ifca_flows", steps=3)
    federation = Federation(federated.data.spec, (30,) * 8, Streams(0))
    server = method.init_server(federation)
    dealt = server.facts["dealt"]
    assert sorted(dealt.count(k) for k in range(K)) == [2, 3, 3]
    server, _ = federated.play(method, 1, [[0]])
    assert [bool(trained) for trained in server.facts["trained"]] == [k == dealt[0] for k in range(K)]
    for client in range(8):
        facts = method.broadcast(server, client).facts
        assert facts == ({} if dealt[client] == dealt[0] else {"choice": dealt[client]})


def test_ifca_on_flows_gives_a_client_one_cluster(federated):
    ifca = federated.method("ifca_flows", lr=1e-2, steps=5)
    server = ifca.init_server(Federation(federated.data.spec, (30,) * 8, Streams(0)))
    flows = server.tensors["flows"].clone()
    flows[1, -D:] += 50  # far from every point
    facts = {**server.facts, "trained": [1] * K}  # clients choose themselves
    server = replace(server, model={"flows": flows}, facts=facts)
    updates = [replace(ifca.client_update(ifca.broadcast(server, k), federated.client(k)), client=k) for k in range(2)]
    chosen = [u.message.facts["choice"] for u in updates]
    assert 1 not in chosen
    after = ifca.aggregate(server, iter(updates)).tensors["flows"]
    assert torch.equal(after[1], flows[1]), "a flow that nobody chose stays as it is"
    mine = [u.message.tensors["flow"] for u in updates if u.message.facts["choice"] == chosen[0]]
    torch.testing.assert_close(after[chosen[0]], torch.stack(mine).mean(0))


def test_the_rate_falls_by_lr_decay(federated):
    method = federated.method("ifca_flows", lr=1e-2, steps=3)
    method.context = replace(method.context, local=replace(method.context.local, lr_decay=1e-9))
    (one, _), (two, _) = federated.play(method, 1), federated.play(method, 2)
    torch.testing.assert_close(two.tensors["flows"], one.tensors["flows"], rtol=0, atol=1e-6)
    assert (one.tensors["flows"] - method.starts()).abs().max() > 1e-3
