"""What holds for every registered method. What a method can do, its class says (see
`shoal.methods.contract.base.Method`)."""

import contextlib
import math
import operator
from dataclasses import fields, replace

import pytest
import torch

from shoal.core.streams import Streams
from shoal.methods.contract.base import ClientError, Method, MethodError
from shoal.methods.registry import METHODS


def those(says):
    """The names of the methods of whose class something holds."""
    return [name for name, kind in METHODS.items() if says(kind)]


def has_model(kind):
    return kind.predictor is not Method.predictor


def notes_its_loss(kind):
    """Whether the losses of its rounds cannot be compared; those of few rounds of UIFCA and NCC can."""
    return kind.loss_note and kind.name not in ("uifca", "ncc")


TRAINED = those(lambda kind: kind.trains)
WITHIN = {"gt": operator.gt, "ge": operator.ge, "lt": operator.lt, "le": operator.le}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("name", METHODS)
def test_settings_say_what_they_mean(name):
    kind = METHODS[name]
    assert kind.name == name
    for item in fields(kind.Settings):
        assert item.metadata["description"]
        outside = [key for key in WITHIN if key in item.metadata and not WITHIN[key](item.default, item.metadata[key])]
        assert not outside, f"the default of {item.name} is refused"


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize("name", TRAINED)
def test_other_seeds_rounds_and_clients_draw_otherwise(world, name):
    method = world.method(name)
    server, memory = world.at_training(method)
    message = method.broadcast(server, 0)

    def loss(streams):
        client = replace(world.client(memory=memory), streams=streams)
        return method.client_update(message, client).metrics["loss"]

    assert (
        len({loss(streams) for streams in (Streams(0, 1, 0), Streams(1, 1, 0), Streams(0, 2, 0), Streams(0, 1, 1))})
        == 4
    )


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


@pytest.mark.long
@pytest.mark.parametrize("name", those(lambda kind: kind.trains and not notes_its_loss(kind)))
def test_training_lowers_the_loss(world, name):
    """By the method's own optimiser and learning rate."""
    _, updates = world.run(world.method(name, epochs=4, rounds=4), 4)
    losses = [update.metrics["loss"] for update in updates]
    assert losses[-1] < losses[0] - 0.02, losses


@pytest.mark.parametrize("name", TRAINED)
def test_a_loss_that_is_not_finite_is_the_clients_error(world, name):
    method = world.method(name, lr=1e30)
    server, memory = world.at_training(method)
    with pytest.raises(ClientError, match="client 0"):
        method.client_update(method.broadcast(server, 0), world.client(memory=memory))


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
    update = method.client_update(method.broadcast(world.at_training(method)[0], 0), client)
    assert torch.isfinite(torch.tensor(update.metrics["loss"]))


@pytest.mark.parametrize("name", those(lambda kind: kind.averages))
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


@pytest.mark.parametrize("name", those(lambda kind: kind.learns_from_labels))
def test_labels_are_learnt(world, name, client_list):
    method = world.method(name, epochs=4, rounds=4)
    server, updates = world.run(method, 4)
    client = world.client(0, 4, updates[-1].memory)
    metrics = method.evaluate(server, client_list([client]), world.evaluation())
    assert metrics["acc"] == 1.0, "the planted quarters are easily told apart"


@pytest.mark.parametrize("name", those(lambda kind: kind.learns_from_labels))
def test_who_needs_validation_samples_is_judged_on_them(world, name, client_list):
    method = world.method(name)
    server, updates = world.run(method, 1)
    client = world.client(0, 1, updates[-1].memory)
    metrics = method.evaluate(server, client_list([client]), world.evaluation())
    other = replace(client, validation=client.train.take(torch.arange(4)))
    assert metrics["val_loss"] != method.evaluate(server, client_list([other]), world.evaluation())["val_loss"]
    with pytest.raises(ClientError, match=r"partition\.validation"):
        method.client_update(
            method.broadcast(server, 0), replace(client, validation=client.validation.take(torch.arange(0)))
        )


@pytest.fixture
def judged(world, client_list):
    """Plays one round of a method; gives its evaluation between rounds and its last one."""

    def judge(name):
        method = world.method(name, epochs=1, rounds=1)
        server, updates = world.run(method, 1)
        clients = client_list([world.client(0, 1, updates[-1].memory)])
        return [method.evaluate(server, clients, world.evaluation(final=final)) for final in (False, True)]

    return judge


@pytest.mark.parametrize("name", METHODS)
def test_evaluations_are_numbers_and_the_last_one_has_every_name(judged, name):
    between, last = judged(name)
    assert between
    assert between.keys() <= last.keys()
    assert all(isinstance(value, float) and math.isfinite(value) for value in last.values()), last


@pytest.mark.parametrize("name", those(lambda kind: kind.finds_clusters))
def test_clusters_are_judged_in_every_evaluation(judged, name):
    names = {"acc", "nmi", "ari", "purity"}
    between, last = judged(name)
    assert names <= between.keys()
    assert all(between[key] == last[key] for key in names)


@pytest.mark.parametrize("name", those(lambda kind: kind.judges_features))
def test_features_are_judged_in_the_last_evaluation(judged, name):
    between, last = judged(name)
    assert "effective_rank" not in between
    assert {"knn", "probe", "uniformity", "effective_rank"} <= last.keys()
    assert ("alignment" in last) == METHODS[name].trains


@pytest.mark.parametrize("name", those(has_model))
def test_predictions_fit_together(world, name):
    kind = METHODS[name]
    method = world.method(name, epochs=1, rounds=1)
    server, _ = world.run(method, 1)
    predict = method.predictor(server)
    x = world.samples().x()[:10]
    found = predict(x)
    assert found.cluster.dtype == torch.int64
    assert found.embedding.shape[0] == 10
    if kind.finds_clusters or kind.learns_from_labels:
        assert found.soft.shape == (10, 4)
        assert torch.equal(found.cluster, found.soft.argmax(1))
        torch.testing.assert_close(found.soft.sum(1), torch.ones(10))
    else:
        assert found.soft.shape == (10, 0)
        assert found.cluster.tolist() == [-1] * 10
    # A sample's answer does not depend on its company.
    predictions = [predict(x[i : i + 1]) for i in range(10)]
    torch.testing.assert_close(torch.cat([each.soft for each in predictions]), found.soft, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        torch.cat([each.embedding for each in predictions]), found.embedding, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("name", those(lambda kind: not has_model(kind)))
def test_who_holds_no_model_says_so(world, name):
    method = world.method(name, epochs=1, rounds=1)
    server, _ = world.run(method, 1)
    with pytest.raises(MethodError, match="holds no model"):
        method.predictor(server)


@pytest.mark.parametrize("name", TRAINED)
def test_bfloat16_passes_run(world, name):
    method = world.method(name, epochs=1, rounds=1)
    method.context = replace(method.context, precision="bf16")
    update = method.client_update(method.broadcast(world.start(method), 0), world.client())
    kept = [*update.message.tensors.values(), *(update.memory or {}).values()]
    assert kept
    assert all(t.dtype != torch.bfloat16 for t in kept)


class Closed(dict):
    """Tensors by name that nobody may look at."""

    def refuse(self, *_):
        raise AssertionError("a client's memory or inbox was read")

    __getitem__ = __contains__ = __iter__ = __len__ = __bool__ = get = keys = values = items = refuse


@pytest.mark.parametrize("name", those(lambda kind: not kind.evaluation_reads_memory))
def test_what_is_judged_without_memories_reads_none(world, client_list, name):
    method = world.method(name)
    server, _ = world.run(method, 2)
    closed = client_list([replace(world.client(round=3), memory=Closed(), inbox=Closed())])
    evaluation = replace(world.evaluation(final=True), recalibrate=32)
    server = server.with_model(method.recalibrate(server, closed, evaluation))
    assert method.evaluate(server, closed, evaluation)
    with contextlib.suppress(MethodError):
        method.assignment(server, closed, evaluation)
