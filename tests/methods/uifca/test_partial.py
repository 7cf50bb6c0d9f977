"""UIFCA where not all clients take part in a round: who missed a re-assignment makes up for it."""

from dataclasses import replace

import pytest
import torch

pytestmark = pytest.mark.long

SCHEDULE = {"cluster_rounds": 12, "comm_rounds": 10, "steps": 10}


@pytest.mark.slow
def test_planted_clusters_are_found_as_well_as_with_everyone(federated):
    everyone = federated.play(federated.method(**SCHEDULE), 120)
    server, memory = federated.play(federated.method(fraction=0.4, **SCHEDULE), 120)
    assert federated.purity(everyone[1]) >= 0.98
    assert federated.purity(memory) >= 0.98
    assert server.finished
    assert server.facts["cluster_round"] < 12, "it ended because no assignment changes any more, of nobody's points"


def test_who_missed_the_start_of_a_cluster_round_is_assigned_by_the_flows_it_began_from(federated):
    method = federated.method(fraction=0.5, cluster_rounds=3, comm_rounds=3, steps=10)
    late, rest = 7, list(range(7))
    # Client 7 takes part in the first cluster round, misses the second one's start, and comes in its last round.
    there = [[*rest, late]] * 3 + [rest, rest]
    server, memory = federated.play(method, 5, there)
    assert server.facts["current"] == rest
    began_from = federated.play(method, 3, there)[0].tensors["flows"]
    message = method.broadcast(server, late)
    assert torch.equal(message.tensors["assigning"], began_from)
    assert "assigning" not in method.broadcast(server, 0).tensors, "who was there needs nothing more"
    client = federated.client(late, 6, memory[late])
    update = method.client_update(message, client)
    assert torch.equal(update.memory["assignment"], method.likeliest(began_from, client))
    changed = int((memory[late]["assignment"] != update.memory["assignment"]).sum())
    assert update.message.facts["changed"] == changed > 0
    # Once in a cluster round is enough.
    after = method.aggregate(server, iter([replace(update, client=late)]))
    assert after.facts["current"] == []
    assert int(update.memory["cluster_round"]) == 1


def test_a_run_settles_only_when_everyone_was_asked(federated):
    """Three clients whose assignments no longer change, while the others are away, do not end the run."""
    method = federated.method(fraction=0.5, cluster_rounds=20, comm_rounds=1, steps=60)
    everyone = list(range(8))
    server, _ = federated.play(method, 20, [everyone] * 20)
    assert server.finished
    rounds = server.round
    assert 2 < rounds < 20
    server, _ = federated.play(method, rounds, [*[everyone] * (rounds - 1), [0, 1, 2]])
    assert server.facts["changed"] == 0
    assert server.facts["still"] == 0
    assert not server.finished


def test_a_flow_whose_clients_are_away_waits_for_them(federated):
    """Client 0 has no point of cluster 2 in the second round: what others taught its flow in the first stays."""
    for fraction, kept in ((0.5, True), (1.0, False)):
        method = federated.method(fraction=fraction, cluster_rounds=2, comm_rounds=3, steps=5)
        server, memory = federated.play(method, 1, [list(range(8))])
        mine = torch.where(memory[0]["assignment"] == 2, 0, memory[0]["assignment"])
        client = federated.client(0, 2, {**memory[0], "assignment": mine})
        update = method.client_update(method.broadcast(server, 0), client)
        after = method.aggregate(server, iter([replace(update, client=0)]))
        assert after.facts["empty"] == [2]
        assert torch.equal(after.tensors["flows"][2], server.tensors["flows"][2]) == kept
        assert torch.equal(after.tensors["flows"][2], method.starts()[2]) != kept


def test_k_feds_start_goes_with_it(federated):
    method = federated.method(lr=1e-2, fraction=0.5, **{**SCHEDULE, "cluster_rounds": 16, "init": "kfed"})
    server, memory = federated.play(method, 200)
    assert server.finished
    assert federated.purity(memory) >= 0.95


def test_nothing_of_it_travels_where_everyone_takes_part(federated):
    method = federated.method(cluster_rounds=3, comm_rounds=2, steps=5)
    server, _ = federated.play(method, 3)
    assert set(server.tensors) == {"flows"}
    assert server.facts["current"] == []
    assert set(method.broadcast(server, 0).tensors) == {"flows"}
    assert len(method.broadcast(server, 0).facts) == 3
