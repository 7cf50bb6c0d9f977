"""CF-CL through the contract: who sends what to whom, when, and what is kept."""

from dataclasses import replace

import pytest
import torch

from shoal.core.streams import Streams
from shoal.methods.contract.base import Federation, Message, MethodError, Update

DEVICES = 4


class Net:
    """Plays rounds of four devices that hold 24 samples each, with the engine's rules for inbox and memory."""

    def __init__(self, world, considered=12, name="cfcl", **settings):
        settings = {
            "selection": "cfcl",
            "steps": 6,
            "tau_a": 2,
            "tau_p": 2,
            "reserve": 5,
            "budget": 3,
            **settings,
        }
        self.world = world
        self.method = world.method(name, encoder="pooled-conv", batch=8, **settings)
        self.method.considered = considered
        self.server = self.method.init_server(Federation(world.spec, (24,) * DEVICES, Streams(0)))
        self.memory = [{} for _ in range(DEVICES)]
        self.inbox = [[] for _ in range(DEVICES)]
        self.kinds = []

    def client(self, k):
        round = self.server.round + 1
        client = replace(self.world.client(k, round, self.memory[k], every=DEVICES), id=k)
        return replace(client, inbox=tuple(self.inbox[k]), streams=Streams(0, round, k))

    def round(self):
        self.kinds.append(self.server.facts["next"])
        updates, messages = [], [[] for _ in range(DEVICES)]
        for k in range(DEVICES):
            update = self.method.client_update(self.method.broadcast(self.server, k), self.client(k))
            self.memory[k] = update.memory
            for peer, message in update.peers.items():
                messages[peer].append((k, message))
            updates.append(replace(update, client=k))
        self.inbox = messages
        self.server = self.method.aggregate(self.server, iter(updates))
        return updates

    def run(self):
        while not self.server.finished:
            self.updates = self.round()
        return self


RING = ((0, 1), (1, 2), (2, 3), (0, 3))


def test_push_pull_train_in_turn(world):
    net = Net(world).run()
    assert net.kinds == ["push", "pull", "train", "pull", "train", "pull", "train"]
    assert net.server.facts["step"] == 6
    assert net.server.facts["averagings"] == 3


@pytest.mark.parametrize(
    ("tau_a", "tau_p", "pulls", "averagings"), [(1, 3, 2, 6), (3, 1, 6, 2), (2, 3, 2, 3), (4, 4, 2, 2), (50, 2, 3, 1)]
)
def test_pulls_and_averagings_are_independent(world, tau_a, tau_p, pulls, averagings):
    net = Net(world, tau_a=tau_a, tau_p=tau_p).run()
    assert net.kinds.count("pull") == pulls
    assert net.server.facts["averagings"] == averagings
    assert net.server.facts["step"] == 6


def test_without_exchange_it_is_federated_averaging(world):
    net = Net(world, selection="none").run()
    assert net.kinds == ["train"] * 3
    assert all("pulled" not in memory for memory in net.memory)


def test_reserves_and_pulls_go_to_neighbours_only(world):
    net = Net(world, edges=RING)
    push = net.round()
    near = [{1, 3}, {0, 2}, {1, 3}, {0, 2}]
    for k, update in enumerate(push):
        assert set(update.peers) == near[k]
        for message in update.peers.values():
            index = message.samples["reserve"]
            assert len(index) == 5
            assert (index % DEVICES == k).all(), "a device gives its own samples"
            assert message.size(64) == 5 * 64
    for update in net.round():
        assert all(len(m.samples["pulled"]) == 3 for m in update.peers.values())
    net.round()
    for k, memory in enumerate(net.memory):
        assert memory["pulled"].shape == (6,)
        assert set((memory["pulled"] % DEVICES).tolist()) == near[k]
        assert set(memory["received"][:, 1].tolist()) == near[k]


def test_what_was_pulled_is_dropped_at_the_next_pull(world):
    for memory in Net(world, edges=RING).run().memory:
        assert len(memory["pulled"]) == 6
        assert len(memory["received"]) == 18, "who got what is remembered"
        assert memory["received"][:, 2].unique().tolist() == [2, 4, 6], "by the round of the pull"


def test_a_device_that_was_left_out_still_gets_the_average(world):
    net = Net(world, selection="none", tau_a=2)
    assert all("weights" in net.method.broadcast(net.server, k).tensors for k in range(DEVICES))
    updates = net.round()
    assert net.server.facts["behind"] == [0, 1, 2, 3], "a new average"
    updates = [replace(u, message=Message({}, {"n": 24})) for u in updates if u.client != 2]
    after = net.method.aggregate(net.server, iter(updates))
    assert [k for k in range(DEVICES) if "weights" in net.method.broadcast(after, k).tensors] == [2]


def pulled_classes(world, step, pulled, name="cfcl", **settings):
    """Labels that a device with classes 0 and 2 sends a neighbour whose reserve holds the samples `pulled`."""
    s = {"steps": 10, "tau_a": 1, "tau_p": 1, "budget": 12, "clusters": 2, "edges": ((0, 1),)}
    method = world.method(name, encoder="pooled-conv", selection="cfcl", **{**s, **settings})
    server = method.init_server(Federation(world.spec, (48, 48), Streams(0)))
    server = replace(server, facts={**server.facts, "next": "pull", "step": step})
    update = method.client_update(method.broadcast(server, 0), world.client(0, 2, {"reserve/1": pulled}, every=2))
    return world.data.train_y[update.peers[1].samples["pulled"]].tolist()


def test_the_selection_temperature_grows_with_the_steps(world, monkeypatch):
    """lambda_t = 1 + (5 - 1) t / T."""
    heats = []

    def importance(candidates, anchors, positives, *, heat, **rest):
        heats.append(heat)
        return torch.full((len(candidates),), 1 / len(candidates), dtype=torch.float64)

    monkeypatch.setattr("shoal.methods.cfcl.cfcl.importance", importance)
    for step in (0, 5, 9):
        pulled_classes(world, step, torch.arange(4))
    assert heats == pytest.approx([1.0, 3.0, 4.6])


def test_averages_by_points_held(world):
    net = Net(world)
    net.server = replace(net.server, facts={**net.server.facts, "next": "train"})
    size = len(net.server.tensors["weights"])
    updates = [
        Update(Message({"weights": torch.full((size,), value)}, {"n": 1, "points": points}), client=k)
        for k, (value, points) in enumerate(((1.0, 10.0), (4.0, 20.0)))
    ]
    after = net.method.aggregate(net.server, iter(updates))
    torch.testing.assert_close(after.tensors["weights"], torch.full((size,), 3.0))


def test_points_held_are_counted_by_step(world):
    net = Net(world, edges=RING)
    for _ in range(3):
        updates = net.round()
    assert [u.message.facts["points"] for u in updates] == [30.0] * 4, "24 of its own and 6 pulled"


def test_training_lowers_the_loss_and_evaluation_probes(world, client_list):
    net = Net(world, steps=60, tau_a=20, tau_p=20, selection="uniform")
    losses = []
    while not net.server.finished:
        updates = net.round()
        if net.kinds[-1] == "train":
            losses.append(sum(u.metrics["loss"] for u in updates))
    assert losses[-1] < losses[0]
    metrics = net.method.evaluate(
        net.server, client_list([net.client(k) for k in range(4)]), world.evaluation(final=True)
    )
    assert metrics["step"] == 60
    assert {"probe", "probe_full"} <= metrics.keys()
    assert metrics["probe"] > 0.5


def test_a_uniform_pull_draws_from_the_whole_local_set(world):
    """Within one interval of averaging importance has the same few candidates; a uniform pull is not bound to them."""
    given = {}
    for selection in ("uniform", "cfcl"):
        net = Net(world, selection=selection, edges=RING, steps=12, tau_a=12, tau_p=1, considered=4).run()
        sent = torch.cat([memory["received"] for memory in net.memory])
        given[selection] = len(sent[sent[:, 1] == 0][:, 0].unique())
    assert given["cfcl"] == 4, "of the 24 samples of device 0"
    assert given["uniform"] > 12


def test_partial_participation_is_refused(world):
    method = world.method("cfcl", encoder="pooled-conv")
    method.context = replace(method.context, fraction=0.5)
    with pytest.raises(MethodError, match="participation"):
        method.init_server(Federation(world.spec, (24,) * 4, Streams(0)))
