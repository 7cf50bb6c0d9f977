"""CFL with what studies vary: long updates, histories, measured noise, clients that join and leave, adversaries."""

from copy import copy
from dataclasses import replace

import pytest
import torch

from shoal.core.streams import Streams
from shoal.methods.cfl.tree import Tree
from shoal.methods.contract.base import ClientError, Federation
from shoal.methods.contract.context import MethodError
from shoal_research.variants.adversary import attack_of, corrupt
from shoal_research.variants.cfl_gamma import NOTHING_SHARED, gamma_of, halves
from shoal_research.variants.cfl_membership import enrolled_right
from tests.methods.cfl.test_cfl import a_round, directions, leaves, part_of, start


def test_a_much_longer_update_is_cut_off_at_once(world):
    """Its direction is everybody's, so that no cosine tells it apart."""
    rows = directions(1, 6, 60, noise=0.0) + 1
    rows[4] *= 10
    without = a_round(world.method("cfl"), start(world.method("cfl"), 6), rows)
    assert leaves(without) == [(0, 1, 2, 3, 4, 5)]
    method = world.method("cfl_criteria", outliers=4)
    server = a_round(method, start(method, 6), rows)
    assert leaves(server) == [(0, 1, 2, 3, 5), (4,)]


def test_a_rule_on_lengths_that_would_cut_everybody_off_is_refused(world):
    with pytest.raises(MethodError, match=r"method\.outliers is 0\.5"):
        world.method("cfl_criteria", outliers=0.5)
    assert world.method("cfl_criteria", outliers=0).settings.outliers == 0


def test_wrong_settings_are_named(world):
    for wrong in (1.0, -0.1):
        with pytest.raises(MethodError, match=rf"method\.gamma_max is {wrong:g}, expected a number of at least 0"):
            world.method("cfl_criteria", gamma_max=wrong)
    with pytest.raises(MethodError, match="client 9"):
        start(world.method("cfl_criteria", presence=((9, 2, 0),)), 3)


def test_history_sums_updates_and_finds_what_one_round_hides(world):
    """Swings of length 3 that cancel over two rounds hide the groups in each round alone."""
    pull = directions(2, 3, 60, noise=0.0)
    swing = 3 * directions(3, 2, 60, seed=1, noise=0.0)[[0, 2, 4, 1, 3, 5]]
    rounds = (pull + swing, pull - swing)
    method = world.method("cfl_criteria", criterion="schedule", schedule=(2,), gamma_max=0.0)
    server = start(method, 6, (0, 0, 0, 1, 1, 1))
    for rows in rounds:
        server = a_round(method, server, rows)
    assert server.facts["log"][0]["gap"] < 0
    assert leaves(server) != [(0, 1, 2), (3, 4, 5)]
    assert "past" not in server.tensors
    method = world.method("cfl_criteria", criterion="schedule", schedule=(2,), gamma_max=0.0, history=0.99)
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
        world.method("cfl_criteria", history=0.5, similarity="gradients")


def test_who_left_is_forgotten(world):
    method = part_of(world.method("cfl_criteria", criterion="schedule", schedule=(9,), presence=((2, 1, 2),)), 0.5)
    server = a_round(method, start(method, 3), directions(1, 3, 20, noise=1.0))
    assert len([key for key in server.tensors if key.startswith("latest/2/")]) == 2
    server = a_round(method, server, directions(1, 1, 20, noise=1.0), [0])
    assert not [key for key in server.tensors if key.startswith("latest/2/")]


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
    size = 20_000
    samples = 40
    pull = torch.randn(size, generator=rng)
    found = []
    for _ in range(5):
        pulls = pull + gamma * samples**0.5 * torch.randn(samples, size, generator=rng)
        first, second = (pulls[rows].mean(0) for rows in halves(samples, rng))
        found.append(gamma_of(first, second))
    assert sum(found) / 5 == pytest.approx(gamma, rel=0.1)


def test_measured_gamma_decides_as_equation_39_says(world):
    """Opposite groups, cross -1: the bound is 1. A louder noise forbids the split."""
    method = world.method("cfl_criteria", criterion="schedule", schedule=(1,), gamma_max="measured")
    rows = directions(2, 3, 20, noise=0.0)
    for gamma, clusters in ((0.9, 2), (1.1, 1)):
        server = a_round(method, start(method, 6), rows, gamma=gamma)
        assert len(leaves(server)) == clusters
        assert server.facts["log"][0]["gamma"] == gamma
    assert len(leaves(a_round(method, start(method, 6), rows))) == 1, "nobody measured it"


def test_clients_measure_gamma_only_where_a_split_is_possible(world):
    method = world.method("cfl_criteria", criterion="schedule", schedule=(2,), gamma_max="measured", epochs=1)
    server = start(method, 1)
    client = world.client(every=2)
    assert "gamma" not in method.client_update(method.broadcast(server, 0), client).message.facts
    later = replace(server, round=1)
    update = method.client_update(method.broadcast(later, 0), client)
    assert 0 < update.message.facts["gamma"] == update.metrics["gamma"]
    averaging = world.method("cfl_criteria", criterion="schedule", schedule=(2,), epochs=1)
    same = averaging.client_update(averaging.broadcast(later, 0), client)
    assert torch.equal(same.message.tensors["update"], update.message.tensors["update"])
    few = replace(client, train=client.train.take(torch.arange(3)))
    with pytest.raises(ClientError, match=r"3 training samples; method\.gamma_max measured"):
        method.client_update(method.broadcast(later, 0), few)
    with pytest.raises(MethodError, match=r"method\.gamma_max measured is the noise of one round"):
        world.method("cfl_criteria", gamma_max="measured", history=0.5)


def test_new_clients_walk_down_and_others_leave(world):
    """Clients 6 and 7 come in round 3, one of each group, and go one level a round; client 0 leaves in round 3."""
    rows = directions(2, 4, 30)
    order = [0, 1, 2, 4, 5, 6]  # rows of the six founders: three of each group
    method = world.method(
        "cfl_criteria", criterion="schedule", schedule=(1,), presence=((6, 3, 0), (7, 3, 0), (0, 1, 3))
    )
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


@pytest.mark.parametrize("name", ["fedavg", "cfl"])
def test_an_adversary_of_false_labels_is_trained_on_them(world, name):
    """What it sends is what an honest client would send whose labels are the other way round."""
    honest = world.method(name, epochs=1)
    hostile = world.method(
        {"fedavg": "fedavg_attacked", "cfl": "cfl_criteria"}[name], epochs=1, adversaries=("labels",)
    )
    client = world.client()
    other = copy(world.data)
    other.train_y = 3 - other.train_y
    reversed_ = replace(client, train=replace(client.train, data=other))
    sent = [
        method.client_update(method.broadcast(start(method, 1), 0), who).message.tensors
        for method, who in ((hostile, client), (honest, reversed_), (honest, client))
    ]
    key = next(iter(sent[0]))
    torch.testing.assert_close(sent[0][key], sent[1][key], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(sent[0][key], sent[2][key], rtol=1e-2, atol=1e-3)
