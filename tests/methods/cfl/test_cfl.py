"""CFL's server on hand-made updates: splits, the tree, new clients, who leaves, permutation, adversaries."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from shoal.core.streams import Streams
from shoal.data.partition.table import Transformation
from shoal.methods.averaging.vectors import Vectors, mean_vector
from shoal.methods.cfl import criteria
from shoal.methods.cfl.adversary import attack_of, corrupt
from shoal.methods.cfl.gamma import NOTHING_SHARED, gamma_of, halves
from shoal.methods.cfl.measure import ClusterMeasure
from shoal.methods.cfl.scores import choice, enrolled_right, path_metrics
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


def start(method, clients, truth=()):
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


def test_history_sums_updates_and_finds_what_one_round_hides(world):
    """Swings of length 3 that cancel over two rounds hide the groups in each round alone."""
    pull = directions(2, 3, 60, noise=0.0)
    swing = 3 * directions(3, 2, 60, seed=1, noise=0.0)[[0, 2, 4, 1, 3, 5]]
    rounds = (pull + swing, pull - swing)
    method = world.method("cfl", criterion="schedule", schedule=(2,), gamma_max=0.0)
    server = start(method, 6, (0, 0, 0, 1, 1, 1))
    for rows in rounds:
        server = a_round(method, server, rows)
    assert server.facts["log"][0]["gap"] < 0
    assert leaves(server) != [(0, 1, 2), (3, 4, 5)]
    assert "past" not in server.tensors
    method = world.method("cfl", criterion="schedule", schedule=(2,), gamma_max=0.0, history=0.99)
    server = start(method, 6, (0, 0, 0, 1, 1, 1))
    for rows in rounds:
        server = a_round(method, server, rows)
    torch.testing.assert_close(server.tensors["past"][:, :60], 0.99 * rounds[0] + rounds[1])
    assert server.facts["log"][0]["gap"] > 0 > server.facts["log"][0]["gap_round"]
    assert leaves(server) == [(0, 1, 2), (3, 4, 5)]
    again = a_round(method, server, rounds[0][:2], (0, 1))
    torch.testing.assert_close(again.tensors["past"][2:], server.tensors["past"][2:])


def test_history_of_gradients_is_refused(world):
    with pytest.raises(MethodError, match=r"method\.history is of updates"):
        world.method("cfl", history=0.5, similarity="gradients")


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


def test_who_left_is_forgotten(world):
    method = part_of(world.method("cfl", criterion="schedule", schedule=(9,), presence=((2, 1, 2),)), 0.5)
    server = a_round(method, start(method, 3), directions(1, 3, 20, noise=1.0))
    assert len([key for key in server.tensors if key.startswith("latest/2/")]) == 2
    server = a_round(method, server, directions(1, 1, 20, noise=1.0), [0])
    assert not [key for key in server.tensors if key.startswith("latest/2/")]


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


def test_gamma_by_hand():
    """s = (3, 0), halves s + (0, 1) and s - (0, 1): |a - b|^2 / 4 = 1, <a, b> = 8."""
    assert gamma_of(torch.tensor([3.0, 1.0]), torch.tensor([3.0, -1.0])) == pytest.approx((1 / 8) ** 0.5)
    assert gamma_of(torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 0.0])) == NOTHING_SHARED
    assert gamma_of(torch.zeros(2), torch.zeros(2)) == NOTHING_SHARED
    first, second = halves(9, torch.Generator().manual_seed(0))
    assert len(first) == len(second) == 4
    assert len({*first.tolist(), *second.tolist()}) == 8


@pytest.mark.parametrize("gamma", [0.3, 1.0, 3.0])
def test_gamma_is_that_of_planted_noise(gamma):
    """Samples whose pulls are a group's plus noise: measured by halves, the noise of their mean is what was planted."""
    rng = torch.Generator().manual_seed(0)
    size, samples = 20_000, 40
    pull = torch.randn(size, generator=rng)
    found = []
    for _ in range(5):
        pulls = pull + gamma * samples**0.5 * torch.randn(samples, size, generator=rng)
        first, second = (pulls[rows].mean(0) for rows in halves(samples, rng))
        found.append(gamma_of(first, second))
    assert sum(found) / 5 == pytest.approx(gamma, rel=0.1)


def test_measured_gamma_decides_as_equation_39_says(world):
    """Opposite groups, cross -1: the bound is 1. A louder noise forbids the split."""
    method = world.method("cfl", criterion="schedule", schedule=(1,), gamma_max="measured")
    rows = directions(2, 3, 20, noise=0.0)
    for gamma, clusters in ((0.9, 2), (1.1, 1)):
        server = a_round(method, start(method, 6), rows, gamma=gamma)
        assert len(leaves(server)) == clusters
        assert server.facts["log"][0]["gamma"] == gamma
    assert len(leaves(a_round(method, start(method, 6), rows))) == 1, "nobody measured it"


def test_clients_measure_gamma_only_where_a_split_is_possible(world):
    method = world.method("cfl", criterion="schedule", schedule=(2,), gamma_max="measured", epochs=1)
    server = start(method, 1)
    client = world.client(every=2)
    assert "gamma" not in method.client_update(method.broadcast(server, 0), client).message.facts
    later = replace(server, round=1)
    update = method.client_update(method.broadcast(later, 0), client)
    assert 0 < update.message.facts["gamma"] == update.metrics["gamma"]
    averaging = world.method("cfl", criterion="schedule", schedule=(2,), epochs=1)
    same = averaging.client_update(averaging.broadcast(later, 0), client)
    assert torch.equal(same.message.tensors["update"], update.message.tensors["update"])
    few = replace(client, train=client.train.take(torch.arange(3)))
    with pytest.raises(ClientError, match=r"3 training samples; method\.gamma_max measured"):
        method.client_update(method.broadcast(later, 0), few)
    with pytest.raises(MethodError, match=r"method\.gamma_max measured is the noise of one round"):
        world.method("cfl", gamma_max="measured", history=0.5)


def test_a_cluster_with_somebody_missing_is_not_split(world):
    method = world.method("cfl", criterion="schedule", schedule=(1, 2))
    rows = directions(2, 3, 20)
    server = a_round(method, start(method, 6), rows[:5], range(5))
    assert leaves(server) == [tuple(range(6))]
    assert len(leaves(a_round(method, server, rows))) == 2


def test_mean_by_samples_or_by_clients():
    vectors = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 4.0])]
    torch.testing.assert_close(mean_vector(vectors, [0.75, 0.25]), torch.tensor([0.75, 1.0]))


def test_new_clients_walk_down_and_others_leave(world):
    """Clients 6 and 7 come in round 3, one of each group, and go one level a round; client 0 leaves in round 3."""
    rows = directions(2, 4, 30)
    order = [0, 1, 2, 4, 5, 6]  # rows of the six founders: three of each group
    method = world.method("cfl", criterion="schedule", schedule=(1,), presence=((6, 3, 0), (7, 3, 0), (0, 1, 3)))
    federation = Federation(method.context.spec, (10,) * 8, Streams(0), (0, 0, 0, 1, 1, 1, 0, 1))
    server = method.init_server(federation)
    assert method.sample_clients(server, federation) == [0, 1, 2, 3, 4, 5]
    server = a_round(method, server, rows[order], range(6))
    server = a_round(method, server, rows[order], range(6))
    assert leaves(server) == [(0, 1, 2), (3, 4, 5)]
    assert method.sample_clients(server, federation) == [1, 2, 3, 4, 5, 6, 7]
    root = server.tensors["node/0"]
    assert torch.equal(method.broadcast(server, 6).tensors["weights"], root), "a new client begins at the root"
    server = a_round(method, server, rows[[*order[1:], 3, 7]], range(1, 8))
    assert leaves(server) == [(1, 2, 6), (3, 4, 5, 7)]
    assert enrolled_right(Tree.from_facts(server.facts), 6, federation.truth)


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
        networks = [
            Vectors(n).flatten(n)
            for key, v in sorted(server.tensors.items())
            if key.startswith("node/")
            for n in [method.vectors().load(method.network(), v)]
        ]
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
    scores = method.path_scores(tree, server.tensors, [0, 1], client_list(clients))
    (client,) = tree.nodes[ruined].clients
    assert scores[client].keys() == {0, ruined}
    assert [half.number for half in scores[client][0]] == [6, 6]
    assert all(scores[client][ruined][half].correct < scores[client][0][half].correct for half in (0, 1))
    own = method.own_scores(tree, server.tensors, [0, 1], client_list(clients))
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
    assert again.log[0].gap == entry["gap"]


def test_criteria_by_hand():
    measure = ClusterMeasure(0, mean_norm=0.3, max_norm=2.0, median_norm=1.0)
    assert criteria.absolute(measure, eps1=0.4, eps2=1.6)
    assert not criteria.absolute(measure, eps1=0.3, eps2=1.6)
    assert not criteria.absolute(measure, eps1=0.4, eps2=2.0)
    assert criteria.relative(measure, ratio=0.2, floor=0.5, peak=3.9)
    assert not criteria.relative(measure, ratio=0.15, floor=0.5, peak=3.9)
    assert not criteria.relative(measure, ratio=0.2, floor=0.5, peak=4.0)


def test_attacks():
    streams = Streams(0, 1, 5)
    update, begun = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(corrupt(update, "flip", streams, begun), -update)
    assert torch.equal(corrupt(update, "scale", streams, begun), update * 10)
    noise = corrupt(update, "random", streams, begun)
    torch.testing.assert_close(noise.norm(), update.norm())
    assert abs(float(noise @ update / update.norm() ** 2)) < 0.15
    assert torch.equal(noise, corrupt(update, "random", streams, begun))
    assert [attack_of(c, 5, ("random", "flip", "zeros")) for c in range(5)] == [None, None, "random", "flip", "zeros"]
    assert [attack_of(c, 2, ()) for c in range(2)] == [None, None]
    assert not (begun + corrupt(update, "zeros", streams, begun)).any()
    assert torch.equal(corrupt(update, "labels", streams, begun), update)


def test_colluding_adversaries_send_the_same_in_all_rounds():
    update = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    sent = [corrupt(update, "collude", Streams(0, r, c), update) for r, c in ((1, 5), (1, 6), (4, 5))]
    assert torch.equal(sent[0], sent[1])
    assert torch.equal(sent[0], sent[2])
    torch.testing.assert_close(sent[0].norm(), update.norm())
    assert not torch.equal(sent[0], corrupt(update, "collude", Streams(1, 1, 5), update))


@pytest.mark.parametrize("name", ["fedavg", "cfl", "ifca"])
def test_an_adversary_of_false_labels_is_trained_on_them(world, name):
    """What it sends is what an honest client would send whose labels are the other way round."""
    one = {"models": 1} if name == "ifca" else {}
    honest = world.method(name, epochs=1, **one)
    hostile = world.method(name, epochs=1, adversaries=("labels",), **one)
    server, client = start(honest, 1), world.client()
    reversed_ = replace(client, train=replace(client.train, transformations=(Transformation(labels=(3, 2, 1, 0)),)))
    sent = [
        method.client_update(method.broadcast(server, 0), who).message.tensors
        for method, who in ((hostile, client), (honest, reversed_), (honest, client))
    ]
    key = next(iter(sent[0]))
    torch.testing.assert_close(sent[0][key], sent[1][key], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(sent[0][key], sent[2][key], rtol=1e-2, atol=1e-3)


def test_wrong_settings_are_named(world):
    with pytest.raises(MethodError, match=r"method\.schedule"):
        world.method("cfl", criterion="schedule")
    for wrong in (1.0, -0.1):
        with pytest.raises(MethodError, match=rf"method\.gamma_max is {wrong:g}, expected a number of at least 0"):
            world.method("cfl", gamma_max=wrong)
    with pytest.raises(MethodError, match="client 9"):
        start(world.method("cfl", presence=((9, 2, 0),)), 3)
    method, client = world.method("cfl"), world.client()
    message = method.broadcast(start(method, 1), 0)
    with pytest.raises(ClientError, match="client 0"):
        method.client_update(message, replace(client, train=client.train.take(torch.arange(1))))


def test_vectors_round_trip_with_buffers(world):
    method = world.method("fedavg", encoder="tiny-conv")
    network, other = method.network("a"), method.network("b")
    for permutation in (None, torch.randperm(Vectors(network).size)):
        vectors = Vectors(network, permutation)
        vector = vectors.flatten(network)
        assert vectors.size < len(vector), "BatchNorm's statistics travel too"
        vectors.load(other, vector)
        for key, tensor in network.state_dict().items():
            assert torch.equal(tensor, other.state_dict()[key]), key
    with pytest.raises(ValueError, match="does not fit"):
        Vectors(network).load(other, vector[:-1])
