"""CFL's server on hand-made updates: splits, the tree, new clients, permutation."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from shoal.core.streams import Streams
from shoal.methods.averaging.vectors import flatten, load_vector, mean_vector, parameter_count
from shoal.methods.cfl.bipartition import bipartition
from shoal.methods.cfl.measure import ClusterMeasure
from shoal.methods.cfl.scores import choice, path_metrics
from shoal.methods.cfl.state import CFLState
from shoal.methods.cfl.supervised import Score
from shoal.methods.cfl.tree import Tree, branch_similarities, nearest_child
from shoal.methods.contract.base import ClientError, Federation, Message, MethodError, Update

EIGHT = tuple(range(8))


def directions(groups, per_group, size, seed=0, noise=0.1):
    """Updates that pull apart by group and cancel in the mean, as at a stationary point."""
    rng = np.random.default_rng(seed)
    pulls = rng.standard_normal((groups, size))
    pulls -= pulls.mean(0)
    rows = np.repeat(pulls, per_group, 0) + noise * rng.standard_normal((groups * per_group, size))
    return torch.from_numpy(rows).float()


def start(method, clients=1, truth=()):
    return method.init_server(Federation(method.context.spec, (10,) * clients, Streams(0), truth))


def a_round(method, server, rows, clients=None, **facts):
    """One aggregation of the given updates; `facts` travel with each."""
    clients = range(len(rows)) if clients is None else clients
    size = len(server.tensors["node/0"])
    updates = []
    for client, pull in zip(clients, rows, strict=True):
        update = torch.zeros(size)
        update[: len(pull)] = pull
        updates.append(Update(Message({"update": update}, {"n": 10, **facts}), client=client))
    return method.aggregate(server, iter(updates))


def leaves(server):
    return sorted(node.clients for node in Tree.from_facts(server.facts).leaves())


def test_planted_groups_are_found_by_three_splits_and_ids_stay_global(world):
    """Eight groups of three: seven splits, one at each scheduled round, never mixing local and global ids."""
    method = world.method("cfl", criterion="schedule", schedule=tuple(range(1, 12)))
    server = start(method, 24, tuple(np.repeat(EIGHT, 3).tolist()))
    rows = directions(8, 3, 60)
    for _ in range(7):
        server = a_round(method, server, rows)
        if len(leaves(server)) == 8:
            break
    assert leaves(server) == [(3 * g, 3 * g + 1, 3 * g + 2) for g in range(8)]
    tree = Tree.from_facts(server.facts)
    for node in tree.nodes[1:]:
        assert server.tensors[f"edge/{node.id}"].shape[0] == len(node.founders)
        assert set(node.clients) <= set(tree.nodes[node.parent].clients)


def test_children_start_from_the_parents_weights_and_move_by_their_own_mean(world):
    method = world.method("cfl", criterion="schedule", schedule=(1,))
    server = start(method, 4)
    rows = directions(2, 2, 20)
    after = a_round(method, server, rows)
    tree = Tree.from_facts(after.facts)
    torch.testing.assert_close(after.tensors["node/0"], server.tensors["node/0"])
    for child in tree.nodes[0].children:
        group = tree.nodes[child].clients
        moved = (after.tensors[f"node/{child}"] - server.tensors["node/0"])[:20]
        torch.testing.assert_close(moved, rows[list(group)].mean(0), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("criterion", ["absolute", "relative"])
def test_no_split_while_all_pull_the_same_way_or_hardly_pull(world, criterion):
    method = world.method("cfl", criterion=criterion, eps1=0.3, eps2=0.1)
    method.min_age = 0
    method.patience = 1
    together = torch.ones(6, 20) + 0.1 * directions(2, 3, 20)
    server = a_round(method, start(method, 6), together)
    assert leaves(server) == [tuple(range(6))], "the mean is as long as the clients' updates"
    apart = directions(2, 3, 20)
    assert len(leaves(a_round(method, server, apart))) == 2
    assert len(leaves(a_round(method, server, apart * 1e-3))) == 1, "small updates: the clients are content"


def test_gamma_forbids_a_split_of_similar_clients(world):
    rows = directions(2, 3, 20)
    loose = world.method("cfl", criterion="schedule", schedule=(1,))
    assert len(leaves(a_round(loose, start(loose, 6), rows))) == 2
    strict = world.method("cfl", criterion="schedule", schedule=(1,), gamma_max=0.999)
    spread = torch.eye(6, 20)  # all at right angles: sqrt((1 - 0) / 2) = 0.71
    assert len(leaves(a_round(strict, start(strict, 6), spread))) == 1


def test_patience_counts_rounds_in_a_row(world):
    method = world.method("cfl")
    method.min_age = 0
    rows = directions(2, 3, 20)
    server = start(method, 6)
    for pulls, clusters in ((rows, 1), (rows, 1), (torch.ones(6, 20), 1), (rows, 1), (rows, 1), (rows, 2)):
        server = a_round(method, server, pulls)
        assert len(leaves(server)) == clusters


def part_of(method, fraction):
    """The method where only a share of the clients takes part in a round."""
    method.context = replace(method.context, fraction=fraction)
    return method


def test_planted_groups_are_found_though_half_the_clients_take_part(world):
    """Four groups of four; eight clients a round. Each cluster is judged by the latest update of each client."""
    method = part_of(world.method("cfl", criterion="schedule", schedule=tuple(range(1, 60))), 0.5)
    truth = tuple(np.repeat(range(4), 4).tolist())
    federation = Federation(method.context.spec, (10,) * 16, Streams(0), truth)
    server, rows = method.init_server(federation), directions(4, 4, 60)
    for _ in range(40):
        there = method.sample_clients(server, federation)
        assert len(there) == 8
        server = a_round(method, server, rows[there], there)
    assert leaves(server) == [tuple(range(4 * g, 4 * g + 4)) for g in range(4)]
    kept = [key for key in server.tensors if key.startswith("latest/") and key.endswith("/update")]
    assert len(kept) == 16, "one vector a client"


def test_the_latest_updates_say_whether_a_cluster_rests_and_a_new_one_begins_without_them(world):
    """Norms of all clients' latest updates: of one group's alone, the mean would be as long as the updates."""
    settings = {"criterion": "absolute", "eps1": 0.5, "eps2": 1.0}
    rows = directions(2, 3, 40, noise=0.01)
    method = part_of(world.method("cfl", **settings), 0.5)
    server = a_round(method, start(method, 6), rows[:3], range(3))
    assert server.facts["log"][0]["mean_norm"] > 1
    moved = server.tensors["node/0"]
    server = a_round(method, server, rows[3:], range(3, 6))
    assert server.facts["log"][0]["mean_norm"] < 0.5 < 1 < server.facts["log"][0]["max_norm"]
    assert leaves(server) == [(0, 1, 2), (3, 4, 5)]
    tree = Tree.from_facts(server.facts)
    still = next(child for child in tree.nodes[0].children if tree.nodes[child].clients == (0, 1, 2))
    assert torch.equal(server.tensors[f"node/{still}"], moved), "nobody of it took part in this round"
    assert server.tensors[f"edge/{still}"].shape[0] == 3
    assert not [key for key in server.tensors if key.startswith("latest/")]
    everyone = a_round(world.method("cfl", **settings), start(method, 6), rows)
    assert not [key for key in everyone.tensors if key.startswith("latest/")], "nothing is kept where all take part"


def test_zero_updates_are_cut_and_no_cosine_is_undefined(world):
    method = world.method("cfl", criterion="schedule", schedule=(1,), gamma_max=0.5)
    rows = directions(1, 4, 20, noise=0.0) + 1
    rows[1] = rows[3] = 0
    server = a_round(method, start(method, 4), rows)
    assert server.facts["log"][0]["cross"] == 0
    assert torch.isfinite(server.tensors["similarity/0"]).all()


@pytest.mark.parametrize(("criterion", "clusters"), [("absolute", 2), ("relative", 1)])
def test_only_the_relative_criterion_waits_for_a_cluster_to_settle(world, criterion, clusters):
    method = world.method("cfl", criterion=criterion, eps1=0.3, eps2=0.1, gamma_max=0.5)
    method.patience = 1
    server = a_round(method, start(method, 6), directions(2, 3, 20))
    assert len(leaves(server)) == clusters


def test_a_cluster_with_somebody_missing_is_not_split(world):
    method = world.method("cfl", criterion="schedule", schedule=(1, 2))
    rows = directions(2, 3, 20)
    server = a_round(method, start(method, 6), rows[:5], range(5))
    assert leaves(server) == [tuple(range(6))]
    assert len(leaves(a_round(method, server, rows))) == 2


def test_mean_by_samples_or_by_clients():
    vectors = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 4.0])]
    torch.testing.assert_close(mean_vector(vectors, [0.75, 0.25]), torch.tensor([0.75, 1.0]))


def test_branches_by_hand():
    tree = Tree.start([0, 1, 2])
    tree.split(0, [[0, 1], [2]], 1)
    tensors = {
        "edge/1": torch.tensor([[1.0, 0.0, 9.0], [0.0, 1.0, 9.0]]),
        "edge/2": torch.tensor([[1.0, 1.0, -9.0]]),
    }
    found = branch_similarities(tree, tensors, 0, torch.tensor([2.0, 1.0, 5.0]), 2)
    assert found[1] == pytest.approx(2 / 5**0.5)
    assert found[2] == pytest.approx(3 / 10**0.5)
    assert nearest_child(found) == 2
    assert nearest_child({4: 0.5, 3: 0.5}) == 3


def test_permuted_runs_are_the_same_runs(world, client_list):
    """Weights after permuting back, tree and scores are identical."""
    outcomes = []
    for permute in (False, True):
        method = world.method("cfl", permute=permute, criterion="schedule", schedule=(2,), gamma_max=0.0, epochs=1)
        server = start(method, 2)
        for round in (1, 2, 3):
            clients = [replace(world.client(k, round, every=2), id=k) for k in (0, 1)]
            updates = [replace(method.client_update(method.broadcast(server, c.id), c), client=c.id) for c in clients]
            server = method.aggregate(server, iter(updates))
        networks = [flatten(method.loaded(v)) for key, v in sorted(server.tensors.items()) if key.startswith("node/")]
        outcomes.append((networks, server, method.evaluate(server, client_list(clients), world.evaluation())))
    (tensors, server, metrics), (hidden, permuted, also) = outcomes
    assert len(tensors) == 3
    assert all(torch.equal(a, b) for a, b in zip(tensors, hidden, strict=True))
    assert not torch.equal(server.tensors["node/0"], permuted.tensors["node/0"]), "the server sees another order"
    assert server.facts["nodes"] == permuted.facts["nodes"]
    assert metrics.keys() == also.keys()
    for key in metrics:
        assert metrics[key] == pytest.approx(also[key], abs=1e-12), key


def test_the_better_of_parent_and_child_is_kept(world, client_list):
    method = world.method("cfl", criterion="schedule", schedule=(2,), gamma_max=0.0, lr=0.05)
    server = start(method, 2)
    clients = [replace(world.client(k, 1, every=2), id=k) for k in (0, 1)]
    for round in (1, 2, 3):
        now = [replace(c, streams=Streams(0, round, c.id)) for c in clients]
        updates = [replace(method.client_update(method.broadcast(server, c.id), c), client=c.id) for c in now]
        server = method.aggregate(server, iter(updates))
    # Ruin one child: its client must keep the root's model.
    ruined = Tree.from_facts(server.facts).nodes[0].children[0]
    server.model[f"node/{ruined}"] = torch.zeros_like(server.tensors["node/0"])
    metrics = method.evaluate(server, client_list(clients), world.evaluation())
    tree = Tree.from_facts(server.facts)
    own, scores = method.scores(tree, server.tensors, [0, 1], client_list(clients))
    (client,) = tree.nodes[ruined].clients
    assert scores[client].keys() == {0, ruined}
    assert [half.number for half in scores[client][0]] == [6, 6]
    assert all(scores[client][ruined][half].correct < scores[client][0][half].correct for half in (0, 1))
    kept = sum(half.correct for half in scores[client][0]) / 12
    others = scores[1 - client]
    other = sum(others[choice(others, by)][1 - by].correct for by in (0, 1)) / 12
    assert metrics["acc_best"] == pytest.approx((kept + other) / 2)
    assert metrics["acc"] == (own[client].accuracy + own[1 - client].accuracy) / 2


def test_a_model_is_chosen_on_one_half_and_judged_on_the_other():
    """By hand. Client 0: the root's model is better on one half, its cluster's on the other; client 1 has no choice."""
    root, cluster = (Score(1.0, 4, 5), Score(1.0, 1, 5)), (Score(1.0, 2, 5), Score(1.0, 3, 5))
    own = {0: Score(1.0, 5, 10), 1: Score(1.0, 9, 10)}
    metrics = path_metrics(own, {0: {0: root, 1: cluster}})
    # Chosen by the first half: the root, with 1 right on the second; by the second: the cluster, with 2 on the first.
    assert metrics["acc_best"] == pytest.approx((0.3 + 0.9) / 2)
    assert metrics["acc_root"] == pytest.approx((0.5 + 0.9) / 2)
    assert metrics["below_root"] == 1
    assert choice({0: (Score(1, 3, 5),) * 2, 4: (Score(1, 3, 5),) * 2}, 0) == 4, "equally good: its own cluster's"


def test_what_is_measured_is_logged_by_its_names(world):
    method = world.method("cfl", criterion="schedule", schedule=(9,))
    server = a_round(method, start(method, 4, (0, 0, 1, 1)), torch.tensor([[3.0, 0], [3, 0], [0, 4], [0, 4]]))
    (entry,) = server.facts["log"]
    assert entry == {
        "node": 0,
        "mean_norm": pytest.approx(2.5),
        "max_norm": pytest.approx(4.0),
        "median_norm": pytest.approx(3.0),
        "cross": pytest.approx(0.0),
        "gap": pytest.approx(1.0),
    }
    again = CFLState.from_server(server)
    assert again.facts() == server.facts
    assert again.log[0]["gap"] == entry["gap"]


@pytest.mark.parametrize(
    ("settings", "ratio", "peak", "split"),
    [
        ({"criterion": "absolute", "eps1": 0.4, "eps2": 1.6}, 0.2, 3.9, True),
        ({"criterion": "absolute", "eps1": 0.3, "eps2": 1.6}, 0.2, 3.9, False),
        ({"criterion": "absolute", "eps1": 0.4, "eps2": 2.0}, 0.2, 3.9, False),
        ({"criterion": "relative", "floor": 0.5}, 0.2, 3.9, True),
        ({"criterion": "relative", "floor": 0.5}, 0.15, 3.9, False),
        ({"criterion": "relative", "floor": 0.5}, 0.2, 4.0, False),
    ],
)
def test_criteria_by_hand(world, settings, ratio, peak, split):
    method = world.method("cfl", gamma_max=0.0, **settings)
    method.ratio = ratio
    method.patience = 1
    method.min_age = 1
    alpha = np.array([[1.0, -1.0], [-1.0, 1.0]])
    measure = ClusterMeasure(0, mean_norm=0.3, max_norm=2.0, median_norm=1.0, alpha=alpha, groups=bipartition(alpha))
    found = method.groups_to_split(Tree.start((0, 1)), measure, [0, 1], 5, peak)
    assert found == ([[0], [1]] if split else None)


def test_wrong_settings_are_named(world):
    with pytest.raises(MethodError, match=r"method\.schedule"):
        world.method("cfl", criterion="schedule")
    method, client = world.method("cfl"), world.client()
    message = method.broadcast(start(method, 1), 0)
    with pytest.raises(ClientError, match="client 0"):
        method.client_update(message, replace(client, train=client.train.take(torch.arange(1))))


def test_vectors_round_trip_with_buffers(world):
    method = world.method("fedavg", encoder="tiny-conv")
    network, other = method.network("a"), method.network("b")
    size = parameter_count(network)
    for order in (None, torch.randperm(size)):
        vector = flatten(network, order)
        assert size < len(vector), "BatchNorm's statistics travel too"
        load_vector(other, vector, order)
        for key, tensor in network.state_dict().items():
            assert torch.equal(tensor, other.state_dict()[key]), key
    with pytest.raises(ValueError, match="does not fit"):
        load_vector(other, vector[:-1])
