"""FedX and FedU2 through the contract: what a step sees, what a server does with the clients' models."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from shoal.methods.ssd.fedx import with_others


def sent(world, method):
    return method.broadcast(world.start(method, 2), 0)


def test_a_step_of_fedx_sees_two_views_of_its_batch_and_one_of_others(world):
    method = world.method("fedx", batch=16)
    client = world.client(0, 1)
    steps = method.local_steps(sent(world, method), client)
    (x,) = steps.batch(next(iter(steps.batches)))
    assert len(x) == 3 * 16
    own = list(method.view_steps(client, method.network(), lambda taken: None).batches)
    pairs = list(with_others(iter(own), client))
    assert [len(positions) for positions in pairs] == [2 * len(positions) for positions in own]
    for both, positions in zip(pairs, own, strict=True):
        assert both[: len(positions)].tolist() == positions.tolist()
        others = both[len(positions) :].tolist()
        assert len(set(others)) == len(positions)
        assert set(others) != set(positions.tolist())
    assert pairs[0][16:].tolist() != pairs[1][16:].tolist()


def test_the_loss_of_fedx_is_the_sum_of_its_four_parts(world):
    method = world.method("fedx", batch=16)
    full = method.client_update(sent(world, method), world.client(0, 1)).metrics
    parts = ("loss_local", "loss_global", "loss_relation_local", "loss_relation_global")
    assert full["loss"] == pytest.approx(sum(full[part] for part in parts), abs=1e-4)


def test_the_regulariser_of_fedu2_is_part_of_its_loss(world):
    method = world.method("fedu2", batch=16)
    metrics = method.client_update(sent(world, method), world.client(0, 1)).metrics
    assert metrics["loss"] == pytest.approx(metrics["loss_contrast"] + 0.01 * metrics["loss_uniform"], abs=1e-4)
    method = world.method("fedu2", batch=16, uniform=0.0)
    assert "loss_uniform" not in method.client_update(sent(world, method), world.client(0, 1)).metrics


def test_fedu2s_server_moves_towards_all_clients_alike(world):
    """A client that moved a hundred times as far, with more samples, pulls no harder than the other."""
    method = world.method("fedu2")
    server = world.start(method, 2)
    names = [name for name, _ in method.network().named_parameters()]
    first = names[0]
    last = names[-1]
    update = method.client_update(method.broadcast(server, 0), world.client(0, 1))

    def moved(name, by, count):
        tensors = {**server.model, name: server.model[name] + by}
        return replace(update, message=replace(update.message, tensors=tensors, facts={"n": count}))

    after = method.aggregate(server, [moved(first, 1.0, 10), moved(last, 0.01, 1000)])
    # Both directions are at a right angle: each has a weight of one half, and 2 x 0.1 / 2 is the length of either.
    for name in (first, last):
        change = after.model[name] - server.model[name]
        assert change.norm().item() == pytest.approx(0.1, rel=1e-4)
        assert (change > 0).all()
    for name in set(server.model) - {first, last}:
        assert torch.equal(after.model[name], server.model[name])
