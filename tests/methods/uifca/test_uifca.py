"""UIFCA: planted clusters are found, and odd clusters are handled by rule."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from shoal.core.streams import Streams
from shoal.data.sets.prepared import Manifest, open_prepared, write_prepared
from shoal.data.views.view import DeviceData, Samples
from shoal.engine.settings.run_settings import make_settings
from shoal.methods.contract.base import (
    Client,
    ClientError,
    Context,
    Federation,
    Message,
    MethodError,
    ModelSettings,
    Update,
)
from shoal.methods.registry import METHODS
from shoal.methods.scores.clustering import crossed, table_purity
from shoal.methods.uifca.flow_method import flow_input, minibatches
from shoal.methods.uifca.quality import majority
from shoal.methods.uifca.uifca import UIFCA, UIFCASettings

D, K, CLIENTS, POINTS = 4, 3, 2, 60


@pytest.fixture(scope="module")
def blobs(tmp_path_factory):
    """Three blobs in four dimensions, 60 points for each of two clients."""
    rng = np.random.default_rng(0)
    y = np.arange(CLIENTS * POINTS) % K
    centres = np.array([[4.0, 0, 0, 0], [0, 4, 0, 0], [0, 0, 4, 4]])
    x = (centres[y] + rng.standard_normal((len(y), D))).astype(np.float32)
    folder = tmp_path_factory.mktemp("blobs") / "blobs"
    manifest = Manifest("blobs", "vector", (D,), K, len(x), 0, "made here", "none")
    write_prepared(folder, manifest, {"train_x": x, "train_y": y.astype(np.int64)})
    return DeviceData(open_prepared(folder))


def client(data, k, round=1, memory=None):
    index = torch.arange(k * POINTS, (k + 1) * POINTS)
    samples = Samples(data, index)
    return Client(k, samples, samples.take(torch.arange(0)), memory or {}, (), Streams(0, round, k))


def method(data, lr=1e-2, name="uifca", **settings):
    kind = METHODS[name]
    local = replace(kind.local_defaults, lr=lr, batch=20)
    return kind(kind.Settings(**settings), Context(data.spec, ModelSettings(), local, seed=0))


def play(data, uifca, rounds):
    """Rounds of all clients through the contract; returns the last server and the memories."""
    server = uifca.init_server(Federation(data.spec, (POINTS,) * CLIENTS, Streams(0)))
    memory = [{} for _ in range(CLIENTS)]
    for round in range(1, rounds + 1):
        updates = []
        for k in range(CLIENTS):
            update = uifca.client_update(uifca.broadcast(server, k), client(data, k, round, memory[k]))
            memory[k] = memory[k] if update.memory is None else update.memory
            updates.append(replace(update, client=k))
        server = uifca.aggregate(server, iter(updates))
        if server.finished:
            break
    return server, memory


def score(data, memory):
    found = torch.cat([m["assignment"] for m in memory]).numpy()
    return table_purity(crossed(data.train_y.numpy(), found))


def test_a_flow_that_diverges_takes_no_other_with_it(blobs):
    uifca = method(blobs, flow="tabular", width=2, steps=5, spread=0.1)
    one = client(blobs, 0)
    starts = uifca.starts()
    starts[0] = float("inf")
    assert uifca.fit(starts[0], torch.arange(30), one, 0) is None
    trained, _ = uifca.fit(starts[2], torch.arange(25, 60), one, 2)
    assert not torch.equal(trained, starts[2])


def test_planted_blobs_are_found_exactly(blobs):
    uifca = method(blobs, lr=3e-3, cluster_rounds=20, comm_rounds=10, steps=10)
    server, memory = play(blobs, uifca, 200)
    assert score(blobs, memory) >= 0.98
    assert server.finished
    assert server.facts["cluster_round"] < 20, "it ended because no assignment changed"
    again = [uifca.likeliest(server.tensors["flows"], client(blobs, k)) for k in range(CLIENTS)]
    assert torch.equal(torch.stack(again), torch.stack([m["assignment"] for m in memory])), "nothing changes any more"


def test_every_point_goes_to_the_flow_under_which_it_is_likeliest(blobs):
    """Three unit Gaussians around the planted centres: their assignment is the planted one, by hand."""
    uifca = method(blobs, warm_start=True, cluster_rounds=2, comm_rounds=2, steps=2)
    centres = torch.tensor([[4.0, 0, 0, 0], [0, 4, 0, 0], [0, 0, 4, 4]])
    flows = torch.cat((torch.eye(D).flatten().repeat(K, 1), centres), 1)
    server = uifca.init_server(Federation(blobs.spec, (POINTS,), Streams(0)))
    server = replace(server, model={"flows": flows}, facts={**server.facts, "cluster_round": 1})
    nearest = torch.cdist(blobs.train_x[:POINTS], centres).argmin(1)
    memory = {"assignment": (nearest + 1) % K}
    update = uifca.client_update(uifca.broadcast(server, 0), client(blobs, 0, 3, memory))
    assert torch.equal(update.memory["assignment"], nearest)
    assert update.message.facts["changed"] == POINTS


def test_assignments_never_travel(blobs):
    uifca = method(blobs, cluster_rounds=2, comm_rounds=2, steps=2)
    server = uifca.init_server(Federation(blobs.spec, (POINTS,), Streams(0)))
    update = uifca.client_update(uifca.broadcast(server, 0), client(blobs, 0))
    assert set(update.memory) == {"assignment"}
    assert all(t.is_floating_point() for t in update.message.tensors.values())
    assert sum(update.message.facts["counts"]) == POINTS


def test_flows_are_averaged_by_points_and_empty_ones_restart(blobs):
    uifca = method(blobs, cluster_rounds=2, comm_rounds=2, steps=2)
    server = uifca.init_server(Federation(blobs.spec, (POINTS,) * 2, Streams(0)))
    size = server.tensors["flows"].shape[1]
    server = replace(server, model={"flows": torch.zeros(K, size)}, facts={**server.facts, "comm_round": 1})

    def update(k, value, counts, points=None):
        tensors = {f"flow/{i}": torch.full((size,), value) for i, n in enumerate(counts) if n}
        facts = {"counts": counts, "changed": 5, "points": points or counts}
        return Update(Message(tensors, facts), client=k)

    after = uifca.aggregate(server, iter([update(0, 1.0, [30, 0, 0]), update(1, 3.0, [10, 50, 0], [10, 50, 7])]))
    torch.testing.assert_close(after.tensors["flows"][0], torch.full((size,), 1.5))
    torch.testing.assert_close(after.tensors["flows"][1], torch.full((size,), 3.0))
    assert torch.equal(after.tensors["flows"][2], uifca.starts()[2])
    assert after.facts["diverged"] == [2], "it had points, and nobody's training of it was finite"
    empty = uifca.aggregate(server, iter([update(0, 1.0, [60, 0, 0])]))
    assert empty.facts["empty"] == [1, 2]


def test_a_diverging_flow_is_left_out_and_all_of_them_are_the_clients_error(blobs):
    uifca = method(blobs, lr=1e30, cluster_rounds=2, comm_rounds=2, steps=3)
    server = uifca.init_server(Federation(blobs.spec, (POINTS,), Streams(0)))
    with pytest.raises(ClientError, match="every flow diverged"):
        uifca.client_update(uifca.broadcast(server, 0), client(blobs, 0))
    # One flow that cannot be trained: the others go on.
    calm = method(blobs, cluster_rounds=2, comm_rounds=2, steps=3, warm_start=True)
    broken = replace(server, model={"flows": server.tensors["flows"].clone()})
    broken.tensors["flows"][1] = float("inf")
    update = calm.client_update(calm.broadcast(broken, 0), client(blobs, 0))
    assert update.message.facts["counts"][1] == 0
    assert update.message.facts["points"][1] > 0
    assert set(update.message.tensors) == {"flow/0", "flow/2"}


def test_images_become_bytes_with_noise(world):
    samples = world.samples()
    context = Context(world.spec)
    generator = torch.Generator().manual_seed(0)
    x = flow_input(samples, torch.arange(8), context, False, generator)
    raw = samples.raw(torch.arange(8)).float()
    assert ((x >= raw) & (x < raw + 1)).all()
    dark = flow_input(samples, torch.arange(96), context, True, generator)[samples.raw() < 2.56]
    assert dark.max() > 128, "dark pixels become uniform over the range"


def test_image_flows_run_through_the_contract(world):
    uifca = UIFCA(
        UIFCASettings(cluster_rounds=1, comm_rounds=1, steps=2, width=4, blocks=1, background=True),
        Context(world.spec, local=replace(UIFCA.local_defaults, batch=8)),
    )
    server, updates = world.run(uifca, 1)
    assert server.finished
    found = uifca.predictor(server)(world.samples().x()[:4])
    assert found.soft.shape == (4, 4)
    assert torch.isfinite(found.embedding).all()
    assert updates[0].metrics["trained"] == 4


def test_losses_of_images_are_in_bits_per_dimension(world, client_list):
    s = UIFCASettings(cluster_rounds=1, comm_rounds=1, steps=2, width=2, flow="dense_cycle")
    uifca = UIFCA(s, Context(world.spec, local=replace(UIFCA.local_defaults, batch=8)))
    server, _ = world.run(uifca, 1)
    clients = client_list([world.client()])
    metrics = uifca.evaluate(server, clients, world.evaluation())
    nats = uifca.current_assignment(server, clients).loss
    dimensions = math.prod(world.spec.shape)
    assert metrics["loss_all"] == pytest.approx(float(nats.mean()) / dimensions / math.log(2), rel=1e-5)
    assert 0 < metrics["loss_all"] < 16, "uniform bytes have 8"
    found = uifca.current_assignment(server, clients)
    right = majority(found.truth, found.cluster)
    assert 0 < int(right.sum()) < len(right)
    for name, rows in (("loss_right", right), ("loss_wrong", ~right)):
        assert metrics[name] == pytest.approx(float(nats[rows].mean()) / dimensions / math.log(2), rel=1e-5)


def test_who_is_right_by_majority():
    truth = torch.tensor([0, 0, 1, 1, 1, 2])
    cluster = torch.tensor([5, 5, 5, 6, 6, 6])
    assert majority(truth, cluster).tolist() == [True, True, False, True, True, False]


def test_flows_that_do_not_fit_the_data_are_named(blobs):
    with pytest.raises(MethodError, match="is for images"):
        method(blobs, flow="cycle").starts()


def test_the_rate_falls_by_lr_decay_within_a_cluster_round(blobs):
    """With a decay to nearly 0 the second communication round moves no flow, and the next cluster round does again."""
    settings = {"cluster_rounds": 3, "comm_rounds": 2, "steps": 4}
    constant, falling = method(blobs, **settings), method(blobs, **settings)
    falling.context = replace(falling.context, local=replace(falling.context.local, lr_decay=1e-9))
    (one, _), (two, _), (three, _) = (play(blobs, falling, rounds) for rounds in (1, 2, 3))
    assert torch.equal(one.tensors["flows"], play(blobs, constant, 1)[0].tensors["flows"])
    torch.testing.assert_close(two.tensors["flows"], one.tensors["flows"], rtol=0, atol=1e-6)
    assert not torch.equal(play(blobs, constant, 2)[0].tensors["flows"], two.tensors["flows"])
    assert (three.tensors["flows"] - falling.starts()).abs().max() > 1e-3
    warm = method(blobs, warm_start=True, **settings)
    warm.context = replace(warm.context, local=replace(warm.context.local, lr_decay=1e-9))
    after, _ = play(blobs, warm, 3)
    torch.testing.assert_close(after.tensors["flows"], play(blobs, warm, 2)[0].tensors["flows"], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("flow", "data", "rate"),
    [("auto", "gaussian", 1e-5), ("auto", "mnist-shrink2", 1e-4), ("tabular", "gaussian", 1e-4)],
)
def test_rates_where_the_settings_name_none_fit_the_flow(flow, data, rate):
    settings = make_settings({"method": {"name": "uifca", "flow": flow}, "data": {"name": data}})
    assert settings.local.lr == rate
    given = make_settings({"method": {"name": "uifca"}, "data": {"name": data}, "local": {"lr": 0.5}})
    assert given.local.lr == 0.5


def test_a_client_that_comes_late_begins_at_random(blobs):
    uifca = method(blobs, cluster_rounds=2, comm_rounds=3, steps=2)
    server = uifca.init_server(Federation(blobs.spec, (POINTS,), Streams(0)))
    later = replace(server, facts={**server.facts, "cluster_round": 1, "comm_round": 2})
    update = uifca.client_update(uifca.broadcast(later, 0), client(blobs, 0, 6))
    assert len(update.memory["assignment"].unique()) == K
    assert update.message.facts["changed"] == POINTS


def test_partial_participation_is_refused(federated):
    with pytest.raises(MethodError, match=r"every client in every round: set participation\.fraction=1"):
        federated.play(federated.method(fraction=0.5), 1)


def test_flows_alone_travel(federated):
    method = federated.method(cluster_rounds=3, comm_rounds=2, steps=5)
    server, _ = federated.play(method, 3)
    assert set(server.tensors) == {"flows"}
    assert set(method.broadcast(server, 0).tensors) == {"flows"}
    assert len(method.broadcast(server, 0).facts) == 3


def test_a_client_that_missed_the_start_of_a_cluster_round_keeps_its_assignment(federated):
    method = federated.method(cluster_rounds=3, comm_rounds=2, steps=5)
    everyone, rest = list(range(8)), list(range(7))
    server, memory = federated.play(method, 3, [everyone, everyone, rest])
    assert server.facts["cluster_round"] == 1
    update = method.client_update(method.broadcast(server, 7), federated.client(7, 4, memory[7]))
    assert torch.equal(update.memory["assignment"], memory[7]["assignment"])


def test_local_steps_of_an_affine_flow_follow_the_gradients_by_hand(blobs):
    """-log p of z = A (x - b) has the gradients A E(x - b)(x - b)^T - A^-T in A, and -A^T A E(x - b) in b."""
    uifca = method(blobs, lr=1e-2, steps=20)
    start = uifca.starts()[1]
    matrix = start[: D * D].view(D, D).clone()
    shift = start[D * D :].clone()
    for rows in minibatches(client(blobs, 0).streams, 1, POINTS, 20, 20):
        offset = blobs.train_x[rows] - shift
        shift = shift + 1e-2 * matrix.T @ matrix @ offset.mean(0)
        matrix = matrix - 1e-2 * (matrix @ (offset.T @ offset / len(rows)) - torch.linalg.inv(matrix).T)
    trained, _ = uifca.fit(start, torch.arange(POINTS), client(blobs, 0), 1)
    torch.testing.assert_close(trained, torch.cat((matrix.flatten(), shift)), rtol=1e-4, atol=1e-5)
