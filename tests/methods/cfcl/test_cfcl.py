"""CF-CL through the contract: who sends what to whom, when, and what is kept."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from shoal.core.streams import Streams
from shoal.data.partition.table import Transformation
from shoal.data.views.augment import normalise
from shoal.methods.cfcl.batches import batch_inputs, batch_positions, held_negatives, pulled_negatives, select_from
from shoal.methods.cfcl.consent import consented
from shoal.methods.cfcl.losses import Triplet
from shoal.methods.cfcl.memory import label_counts, package, pulled_samples, read_inbox, with_pulled
from shoal.methods.contract.base import Federation, Message, MethodError, Update

DEVICES = 4


class Net:
    """Plays rounds of four devices that hold 24 samples each, with the engine's rules for inbox and memory."""

    def __init__(self, world, considered=12, **settings):
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
        self.method = world.method("cfcl", encoder="pooled-conv", batch=8, **settings)
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
        assert memory["pulled"].shape == (6, 2)
        assert set((memory["pulled"][:, 0] % DEVICES).tolist()) == near[k]
        assert set(memory["received"][:, 1].tolist()) == near[k]


def test_what_was_pulled_is_dropped_at_the_next_pull(world):
    for memory in Net(world, edges=RING).run().memory:
        assert len(memory["pulled"]) == 6
        assert len(memory["received"]) == 18, "who got what is remembered"
        assert memory["received"][:, 2].unique().tolist() == [2, 4, 6], "by the round of the pull"


def test_what_was_pulled_is_dropped_also_where_nothing_comes(world):
    net = Net(world, edges=RING, selection="uniform", consent=tuple((k, 4) for k in range(DEVICES)))
    for _ in range(4):  # pull, train, pull, train
        net.round()
    # Its first pull used up what each device shares: of each neighbour three samples, and one.
    assert all(0 < len(memory["received"]) <= 6 for memory in net.memory)
    assert all(len(memory["pulled"]) == 0 for memory in net.memory)


def test_planted_transformations_travel_with_the_sample(world):
    turns = (Transformation(), Transformation(degrees=90))
    own = replace(world.samples(torch.arange(8)), transformations=turns, transformation=torch.arange(8) % 2)
    message = package(own, "pulled", torch.tensor([1, 4]), 3)
    assert message.size(64) == 2 * 64 + 2 * 2 + 8
    memory = {}
    read_inbox(replace(world.client(0), inbox=((5, message),)), memory)
    assert memory["received"].tolist() == [[1, 5, 3], [4, 5, 3]]
    got = pulled_samples(own, memory["pulled"])
    assert torch.equal(got.raw(), own.raw(torch.tensor([1, 4])))
    assert torch.equal(with_pulled(own, memory["pulled"]).raw()[8:], got.raw())


def test_whom_consent_cuts_is_drawn():
    rng = np.random.default_rng(0)
    memory = {"shared": torch.tensor(3)}
    chosen = torch.cat([consented(torch.arange(100), 13, dict(memory), rng) for _ in range(40)])
    assert len(chosen) == 400
    assert 40 < chosen.double().mean() < 60, "not the first ones"
    assert len(consented(torch.arange(5), None, memory, rng)) == 5
    assert int(memory["shared"]) == 8


def test_a_device_that_was_left_out_still_gets_the_average(world):
    net = Net(world, selection="none", tau_a=2)
    assert all("weights" in net.method.broadcast(net.server, k).tensors for k in range(DEVICES))
    updates = net.round()
    assert net.server.facts["behind"] == [0, 1, 2, 3], "a new average"
    updates = [replace(u, message=Message({}, {"n": 24})) for u in updates if u.client != 2]
    after = net.method.aggregate(net.server, iter(updates))
    assert [k for k in range(DEVICES) if "weights" in net.method.broadcast(after, k).tensors] == [2]


def test_consent_is_kept(world):
    net = Net(world, edges=RING, consent=((0, 0), (1, 7))).run()
    given = torch.cat([memory["received"] for memory in net.memory])
    assert 0 not in given[:, 1]
    reserves = 7  # the first neighbour's reserve of 5, and 2 for the next
    assert int(net.memory[1]["shared"]) == reserves
    assert 1 not in given[:, 1], "its seven were gone with the reserves"
    assert int(net.memory[2]["shared"]) == 2 * 5 + 3 * 2 * 3


def test_selecting_by_the_receivers_model_costs_its_model(world):
    net = Net(world, edges=RING, selection="cfcl_local")
    kinds = []
    while not net.server.finished:
        kinds.append((net.server.facts["next"], net.round()))
    sent = [[set(m.tensors) for m in u.peers.values()] for kind, updates in kinds if kind == "train" for u in updates]
    assert {"model"} in sent[0]
    assert sent[-1] == [], "no pull follows the last steps"


def pulled_classes(world, step, pulled, name="cfcl", **settings):
    """Labels that a device with classes 0 and 2 sends a neighbour whose reserve holds the samples `pulled`."""
    s = {"steps": 10, "tau_a": 1, "tau_p": 1, "budget": 12, "clusters": 2, "edges": ((0, 1),)}
    method = world.method(name, encoder="pooled-conv", selection="cfcl", **{**s, **settings})
    server = method.init_server(Federation(world.spec, (48, 48), Streams(0)))
    server = replace(server, facts={**server.facts, "next": "pull", "step": step})
    reserved = torch.stack((pulled, torch.zeros_like(pulled)), 1)
    update = method.client_update(method.broadcast(server, 0), world.client(0, 2, {"reserve/1": reserved}, every=2))
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


def test_training_lowers_the_loss_and_evaluation_tells_labels(world, client_list):
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
    # Device k holds class k only: 24 points of it at one device and 0 at three before any exchange.
    no_exchange = Net(world, selection="none")
    before = no_exchange.method.evaluate(
        no_exchange.server, client_list([no_exchange.client(k) for k in range(4)]), world.evaluation()
    )
    assert before["label_variance"] == pytest.approx(24**2 * 3 / 16)
    assert before["label_share_variance"] == pytest.approx(3 / 16)
    assert metrics["label_variance"] < before["label_variance"]
    assert metrics["label_share_variance"] < before["label_share_variance"]
    assert {"probe", "probe_full"} <= metrics.keys()
    assert metrics["probe"] > 0.5


@pytest.mark.parametrize("loss", ["simclr", "ssd", "fedcc"])
def test_other_losses_take_part_in_the_exchange(world, loss):
    net = Net(world, loss=loss).run()
    assert net.kinds.count("pull") == 3
    assert all(len(m["pulled"]) for m in net.memory)


def test_a_uniform_pull_draws_from_the_whole_local_set(world):
    """Within one interval of averaging importance has the same few candidates; a uniform pull is not bound to them."""
    given = {}
    for selection in ("uniform", "cfcl"):
        net = Net(world, selection=selection, edges=RING, steps=12, tau_a=12, tau_p=1, considered=4).run()
        sent = torch.cat([memory["received"] for memory in net.memory])
        given[selection] = len(sent[sent[:, 1] == 0][:, 0].unique())
    assert given["cfcl"] == 4, "of the 24 samples of device 0"
    assert given["uniform"] > 12


def test_redundancy_is_the_share_pulled_of_labels_that_the_receiver_holds(world, client_list):
    """Device 0 holds classes 0 and 2; of five samples that it has from others three are of these."""
    y = world.data.train_y
    picked = torch.cat(
        [torch.nonzero(y == label).flatten()[:count] for label, count in ((0, 1), (2, 2), (1, 1), (3, 1))]
    )
    pulled = torch.stack((picked, torch.zeros_like(picked)), 1)
    first, second = world.client(0, 1, {"pulled": pulled}, every=2), replace(world.client(1, every=2), id=1)
    counts = label_counts(client_list([first, second]), 4)
    assert counts.own.tolist() == [[24, 0, 24, 0], [0, 24, 0, 24]]
    assert counts.pulled.tolist() == [[1, 1, 2, 1], [0, 0, 0, 0]]
    assert counts.redundancy == pytest.approx(3 / 5)
    assert label_counts(client_list([second]), 4).redundancy is None
    # What is on its way counts.
    net = Net(world, edges=RING, selection="uniform")
    net.round()
    clients = client_list([net.client(k) for k in range(DEVICES)])
    metrics = net.method.evaluate(net.server, clients, world.evaluation())
    assert metrics["redundancy"] == 0, "device k holds class k only, and gives only that"
    assert label_counts(clients, 4).pulled.sum() == 2 * 3 * DEVICES


def test_any_other_sample_that_is_held_is_as_likely_a_negative():
    """Anchor 2 of five held samples: each of the four others a quarter of the time."""
    positions = torch.full((4000,), 2)
    drawn = held_negatives(positions, 5, torch.Generator().manual_seed(0))
    assert (drawn.bincount(minlength=5) / 4000).tolist() == pytest.approx([0.25, 0.25, 0, 0.25, 0.25], abs=0.03)
    ends = held_negatives(torch.tensor([0, 4] * 500), 5, torch.Generator().manual_seed(1))
    assert set(ends[::2].tolist()) == {1, 2, 3, 4}
    assert set(ends[1::2].tolist()) == {0, 1, 2, 3}


def test_held_negatives_are_of_own_and_of_pulled_samples(world):
    samples = with_pulled(world.samples(torch.arange(6)), torch.tensor([[90, 0], [91, 0]]))
    net = Net(world)
    select = select_from(samples)
    inputs = batch_inputs(samples.data, net.method.recipe(), Streams(0, 1, 0).torch("views"), True)
    rows = batch_positions(samples, 2, 4, 40, Streams(0, 1, 0), "held")
    positions = {position for drawn in rows for position in _found(inputs(select(drawn))[1], samples)}
    assert positions == set(range(8))


def _found(negatives, samples):
    """Which of the samples each negative is."""
    own = normalise(samples.x())
    return [int((own - each).abs().flatten(1).sum(1).argmin()) for each in negatives]


def test_negatives_are_drawn_from_what_was_pulled_and_are_never_the_anchor():
    generator = torch.Generator().manual_seed(0)
    positions = torch.tensor([3, 10, 11, 12] * 50)  # ten own samples, then three that were pulled
    drawn = pulled_negatives(positions, 10, 3, generator)
    assert set(drawn.tolist()) == {10, 11, 12}
    assert not bool((drawn == positions).any())
    own = drawn[positions < 10]
    assert all(int((own == k).sum()) >= 5 for k in (10, 11, 12)), "each of three about 17 times in 50"


def test_pulled_negatives_take_the_place_of_the_next_sample():
    x = torch.tensor([[0.0], [4.0], [1.0], [4.0]])  # anchors 0 and 4, positives 1 and 4
    loss = Triplet()
    assert float(loss(nn.Identity(), x)) == 0, "1 - 16 + 1, and 0 - 16 + 1"
    assert float(loss(nn.Identity(), x, torch.tensor([[1.5], [3.5]]))) == pytest.approx((0 + 0.75) / 2)
    assert float(loss(nn.Identity(), x, torch.tensor([[1.0], [4.0]]))) == pytest.approx((1 + 1) / 2)


def test_where_nothing_comes_negatives_are_of_the_batch(world):
    weights = [
        Net(world, edges=RING, selection="uniform", negatives=negatives, consent=consent)
        .run()
        .server.tensors["weights"]
        for negatives in ("batch", "pulled")
        for consent in ((), tuple((k, 0) for k in range(DEVICES)))
    ]
    assert not torch.equal(weights[0], weights[2]), "what was pulled is used"
    assert torch.equal(weights[1], weights[3]), "nobody shares anything"


def test_pulled_negatives_are_for_triplets(world):
    with pytest.raises(MethodError, match=r"method\.negatives"):
        world.method("cfcl", encoder="pooled-conv", loss="simclr", negatives="pulled")
    with pytest.raises(MethodError, match=r"method\.negatives: held is for the triplet loss"):
        world.method("cfcl", encoder="pooled-conv", loss="ssd", negatives="held")


def test_partial_participation_is_refused(world):
    method = world.method("cfcl", encoder="pooled-conv")
    method.context = replace(method.context, fraction=0.5)
    with pytest.raises(MethodError, match="participation"):
        method.init_server(Federation(world.spec, (24,) * 4, Streams(0)))
