"""FedEMA over several rounds: the distance of networks and the share that a client keeps, computed again."""

from dataclasses import replace

import pytest
import torch

ROUNDS = 3


def learnt(tensors):
    """The encoder's weights by name: what is no running statistic and no counter."""
    odd = ("running_mean", "running_var", "num_batches_tracked")
    return {name: t for name, t in tensors.items() if name.startswith("encoder.") and not name.endswith(odd)}


def apart(a, b):
    return torch.cat([(t.double() - b[name].double()).flatten() for name, t in learnt(a).items()]).norm().item()


def play(method, world):
    """Rounds of two clients: of each round the broadcast, and each client's memory before it and update."""
    server, memories, rounds = world.start(method, 2), [{}, {}], []
    for round in range(1, ROUNDS + 1):
        clients = [replace(world.client(k, round, memories[k], every=2), id=k) for k in range(2)]
        updates = [method.client_update(method.broadcast(server, k), clients[k]) for k in range(2)]
        rounds.append((server.tensors, memories, updates))
        memories = [update.memory for update in updates]
        server = method.aggregate(server, iter([replace(u, client=k) for k, u in enumerate(updates)]))
    return rounds


def test_distance_and_share_are_of_the_parameters_alone(world):
    """On a network with BatchNorm, whose averaged statistics lie further from the client's than its weights do."""
    method = world.method("fedema", encoder="tiny-conv", epochs=1, tau=0.4)
    rounds = play(method, world)
    assert "divergence" not in rounds[0][2][0].metrics
    for number, (broadcast, memories, updates) in enumerate(rounds[1:], 2):
        for k, update in enumerate(updates):
            own = {n.removeprefix("own."): t for n, t in memories[k].items() if n.startswith("own.")}
            distance = apart(broadcast, own)
            assert update.metrics["divergence"] == pytest.approx(distance, rel=1e-6)
            first = apart(rounds[1][0], rounds[0][2][k].message.tensors)
            assert update.metrics["lambda"] == pytest.approx(0.4 / first, rel=1e-6)
            statistics = [n for n in broadcast if n.startswith("encoder.") and "running" in n]
            gaps = torch.cat([(broadcast[n] - own[n]).flatten().double() for n in statistics])
            assert gaps.norm().item() > 0.1 * distance, "statistics would count"
            mu = min(1.0, 0.4 / first * distance)
            network = method.network()
            client = replace(world.client(k, number, memories[k], every=2), id=k)
            method.begin(network, method.broadcast(replace(world.start(method, 2), model=broadcast), k), client)
            for name, tensor in network.named_parameters():
                torch.testing.assert_close(tensor.data, mu * own[name] + (1 - mu) * broadcast[name])


def test_other_statistics_alone_are_no_distance(world):
    method = world.method("fedema", encoder="tiny-conv", epochs=1)
    broadcast, memories, _ = play(method, world)[1]
    moved = {n: t + 100.0 if "running" in n else t for n, t in memories[0].items()}
    message = method.broadcast(replace(world.start(method, 2), model=broadcast), 0)
    found = [
        float(method.begin(method.network(), message, world.client(0, 2, memory))["divergence"])
        for memory in (memories[0], moved)
    ]
    assert found[0] == found[1]
