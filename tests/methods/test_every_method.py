"""What holds for every registered method."""

from dataclasses import fields, replace

import pytest
import torch

from core.setting import BOUNDS
from methods.base import ClientError
from methods.registry import METHODS

TRAINED = [name for name in METHODS if name not in ("kmeans", "kfed")]
SUPERVISED = ["cfl", "fedavg", "ifca", "alone"]
SELF_SUPERVISED = ["ssd", "fedsimclr", "fedbyol", "fedema"]
OWN_SCORES = [
    *SUPERVISED,
    *SELF_SUPERVISED,
    "uifca",
    "kfed",
    "cfcl",
    "ifca_flows",
    "clustergan",
]  # judged in their own tests
CLUSTERING = [name for name in METHODS if name not in OWN_SCORES]
NO_MODEL = [*SELF_SUPERVISED, "cfcl", "single", "kfed", "cfl", "ifca", "alone"]  # the server holds none, or several
AVERAGED = ["fedpnp", "fedcc", "fedbyolcc"]


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("name", METHODS)
def test_settings_say_what_they_mean(name):
    kind = METHODS[name]
    assert kind.name == name
    for item in fields(kind.Settings):
        assert item.metadata["doc"]
        value = item.default
        bounds = {key: item.metadata[key] for key in BOUNDS if key in item.metadata}
        assert bounds.get("gt", float("-inf")) < value if "gt" in bounds else True
        assert bounds.get("ge", float("-inf")) <= value if "ge" in bounds else True


@pytest.mark.parametrize("name", METHODS)
def test_an_update_is_a_function_of_seed_round_and_client(world, name):
    """Two rounds twice over, with other draws from the global generators in between: the same bits."""
    runs = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        method = world.method(name)
        server, memory = world.start(method), {}
        for round in (1, 2):
            update = method.client_update(method.broadcast(server, 0), world.client(0, round, memory))
            memory = update.memory or {}
            runs.append(update)
    for a, b in zip(runs[:2], runs[2:], strict=True):
        assert same(a.message.tensors, b.message.tensors)
        assert same(a.memory or {}, b.memory or {})
        assert a.metrics == b.metrics


@pytest.mark.parametrize("name", TRAINED)
def test_other_rounds_clients_and_seeds_draw_otherwise(world, name):
    method = world.method(name)
    message = method.broadcast(world.start(method, 2), 0)

    def loss(method=method, **client):
        return method.client_update(message, world.client(**client)).metrics[
            "loss_instance" if name == "ncc" else "loss"
        ]

    base = loss()
    assert base != loss(round=2)
    assert base != loss(id=1)


@pytest.mark.parametrize("name", METHODS)
def test_what_travels_is_free_of_gradient_and_aliases(world, name):
    method = world.method(name)
    server = world.start(method)
    before = {k: t.clone() for k, t in server.tensors.items()}
    update = method.client_update(method.broadcast(server, 0), world.client())
    assert same(server.tensors, before)
    kept = [*update.message.tensors.values(), *(update.memory or {}).values()]
    assert all(not t.requires_grad and t.is_contiguous() and torch.isfinite(t.float()).all() for t in kept)
    assert all(isinstance(value, float) for value in update.metrics.values())
    again = {k: t.clone() for k, t in (update.memory or {}).items()}
    method.client_update(method.broadcast(server, 0), world.client(0, 2, update.memory))
    assert same(update.memory or {}, again)


@pytest.mark.parametrize("name", TRAINED)
def test_training_lowers_the_loss(world, name):
    changes = {"lr": {"ncc": 0.02, **dict.fromkeys([*SUPERVISED, *SELF_SUPERVISED], 0.05)}.get(name, 3e-3)}
    if name == "fedpnp":
        changes |= {"alpha_first": 0.1}
    if name == "clustergan":  # a game: by SGD its loss wanders for longer
        changes |= {"optimiser": "adam", "lr": 1e-3}
    key = "loss_instance" if name == "ncc" else "loss"
    _, updates = world.run(world.method(name, epochs=4, rounds=4, **changes), 4)
    losses = [update.metrics[key] for update in updates]
    assert losses[-1] < losses[0] - 0.02, losses


@pytest.mark.parametrize("name", TRAINED)
def test_a_loss_that_is_not_finite_is_the_clients_error(world, name):
    method = world.method(name, lr=1e30)
    with pytest.raises(ClientError, match="client 0"):
        method.client_update(method.broadcast(world.start(method), 0), world.client())


@pytest.mark.parametrize("name", METHODS)
def test_data_that_are_not_finite_are_the_clients_error(make_world, name):
    world = make_world()
    world.data.train_x = world.data.train_x.float()
    world.data.train_x[5] = float("nan")
    method = world.method(name)
    with pytest.raises(ClientError, match="client 0"):
        method.client_update(method.broadcast(world.start(method), 0), world.client())


@pytest.mark.parametrize("name", METHODS)
def test_a_client_without_samples_is_the_clients_error(world, name):
    method = world.method(name)
    client = world.client()
    with pytest.raises(ClientError, match="client 0"):
        method.client_update(
            method.broadcast(world.start(method), 0), replace(client, train=client.train.take(torch.arange(0)))
        )


@pytest.mark.parametrize("name", TRAINED)
def test_fewer_samples_than_a_batch_are_one_batch(world, name):
    method = world.method(name, batch=64)
    client = world.client(every=8)
    assert len(client.train) == 12
    update = method.client_update(method.broadcast(world.start(method), 0), client)
    assert torch.isfinite(torch.tensor(update.metrics["loss"]))


@pytest.mark.parametrize("name", AVERAGED)
def test_the_server_averages_by_samples(world, name):
    method = world.method(name, epochs=1)
    server = world.start(method, 2)
    clients = [replace(world.client(0, every=2), id=0), replace(world.client(1, every=4), id=1)]
    updates = [method.client_update(method.broadcast(server, c.id), c) for c in clients]
    assert [u.message.facts["n"] for u in updates] == [48, 24]
    following = method.aggregate(server, iter(updates))
    assert following.round == 1
    for key, tensor in following.tensors.items():
        a, b = (u.message.tensors[key].double() for u in updates)
        expected = (2 * a + b) / 3
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor.double(), expected, rtol=1e-6, atol=1e-7)
        else:
            assert torch.equal(tensor, expected.round().to(tensor.dtype))


@pytest.mark.parametrize("name", SUPERVISED)
def test_supervised_methods_are_judged_on_validation_samples(world, name, client_list):
    method = world.method(name, epochs=4, rounds=4, lr=0.05)
    server, updates = world.run(method, 4)
    client = world.client(0, 4, updates[-1].memory)
    metrics = method.evaluate(server, client_list([client]), world.evaluation())
    assert metrics["acc"] == metrics["acc_min"] == 1.0, "the planted quarters are easily told apart"
    other = replace(client, validation=client.train.take(torch.arange(4)))
    assert metrics["val_loss"] != method.evaluate(server, client_list([other]), world.evaluation())["val_loss"]
    with pytest.raises(ClientError, match=r"partition\.validation"):
        method.client_update(
            method.broadcast(server, 0), replace(client, validation=client.validation.take(torch.arange(0)))
        )


@pytest.mark.parametrize("name", CLUSTERING)
def test_evaluation_of_a_run(world, name, client_list):
    method = world.method(name, epochs=1, rounds=1)
    server, updates = world.run(method, 1)
    clients = client_list([world.client(0, 1, updates[-1].memory)])
    metrics = method.evaluate(server, clients, world.evaluation())
    assert {"acc", "nmi", "ari", "purity", "clusters_used", "balance"} <= metrics.keys()
    assert "knn" not in metrics
    final = method.evaluate(server, clients, world.evaluation(final=True))
    assert {"knn", "probe", "uniformity", "effective_rank"} <= final.keys()
    assert ("alignment" in final) == (name != "kmeans")
    assert metrics.items() <= final.items()


@pytest.mark.parametrize("name", [name for name in METHODS if name not in NO_MODEL])
def test_predictions_fit_together(world, name):
    method = world.method(name, epochs=1, rounds=1)
    server, _ = world.run(method, 1)
    predict = method.predictor(server)
    x = world.samples().x()[:10]
    found = predict(x)
    assert found.cluster.dtype == torch.int64
    assert torch.equal(found.cluster, found.soft.argmax(1))
    torch.testing.assert_close(found.soft.sum(1), torch.ones(10))
    assert found.embedding.shape[0] == 10
    # A sample's answer does not depend on its company.
    alone = torch.cat([predict(x[i : i + 1]).soft for i in range(10)])
    torch.testing.assert_close(alone, found.soft, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", TRAINED)
def test_bfloat16_passes_run(world, name):
    method = world.method(name, epochs=1, rounds=1)
    method.context = replace(method.context, precision="bf16")
    update = method.client_update(method.broadcast(world.start(method), 0), world.client())
    assert all(t.dtype != torch.bfloat16 for t in update.message.tensors.values())
