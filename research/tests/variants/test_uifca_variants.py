"""Variants of UIFCA: folds and held-out points do as they say."""

from dataclasses import replace

import pytest
import torch

from shoal.core.streams import Streams
from shoal.methods.contract.base import Federation
from shoal_research.variants.uifca_held_out import keep_best
from tests.methods.uifca.test_uifca import POINTS, client, method, play, score


def test_folds_train_on_the_others_and_assign_the_one_kept_out(blobs):
    uifca = method(blobs, folds=3, name="uifca_folds", cluster_rounds=6, comm_rounds=1, steps=4)
    server = uifca.init_server(Federation(blobs.spec, (POINTS,), Streams(0)))
    parts = [set(uifca.held_out(client(blobs, 0), t).tolist()) for t in range(4)]
    assert parts[0] | parts[1] | parts[2] == set(range(POINTS))
    assert not parts[0] & parts[1]
    assert parts[3] == parts[0]
    memory = {}
    for t in range(4):
        update = uifca.client_update(uifca.broadcast(server, 0), client(blobs, 0, t + 1, memory))
        assert sum(update.message.facts["counts"]) == 2 * POINTS // 3
        before, memory = memory.get("assignment"), update.memory
        if before is not None:
            moved = set(torch.nonzero(before != memory["assignment"]).squeeze(1).tolist())
            assert moved <= parts[t - 1], "only who was kept from training moves"
        server = uifca.aggregate(server, iter([replace(update, client=0)]))


@pytest.mark.long
def test_folds_find_planted_blobs_and_stop_when_every_part_had_its_turn(blobs):
    uifca = method(blobs, folds=2, name="uifca_folds", cluster_rounds=30, comm_rounds=4, steps=20)
    server, memory = play(blobs, uifca, 200)
    assert score(blobs, memory) >= 0.99
    assert server.finished
    assert server.facts["still"] == 2


def test_held_out_points_are_not_trained_on_and_choose_the_flow(blobs):
    uifca = method(blobs, name="uifca_held_out", held_out=0.25, cluster_rounds=2, comm_rounds=3, steps=4)
    server = uifca.init_server(Federation(blobs.spec, (POINTS,), Streams(0)))
    update = uifca.client_update(uifca.broadcast(server, 0), client(blobs, 0))
    assert sum(update.message.facts["counts"]) == 45
    assert sum(update.message.facts["held_count"]) == 15
    held_out_sums = torch.tensor([[10.0, 4.0, 0.0], [5, 2, 0]], dtype=torch.float64)
    first = keep_best(server.tensors, torch.zeros(3, 20), held_out_sums, first=True)
    assert first["best_loss"].tolist() == [2.0, 2.0, float("inf")]
    held_out_sums = torch.tensor([[5.0, 6.0, 1.0], [5, 2, 1]]).double()
    second = keep_best(first, torch.ones(3, 20), held_out_sums, first=False)
    assert second["best_loss"].tolist() == [1.0, 2.0, 1.0]
    assert second["best"][:, 0].tolist() == [1.0, 0.0, 1.0]
