"""CF-CL by other importance: macro by counts against cases worked out by hand, and what is pulled by it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from shoal.core.streams import Streams
from shoal.data.views.augment import normalise
from shoal.methods.cfcl.memory import with_pulled
from shoal.methods.cfcl.selection import macro_probability
from shoal.methods.contract.base import Federation
from shoal.methods.contract.context import MethodError
from shoal_research.variants.cfcl_importance import held_negatives, label_counts, macro_by_counts, pulled_negatives
from tests.methods.cfcl.test_cfcl import DEVICES, RING, Net, pulled_classes


def test_macro_by_hand():
    """Clusters with 2, 1 and 0 candidates and 2, 0 and 3 reserve samples."""
    tx, res = torch.tensor([0, 0, 1]), torch.tensor([0, 0, 2, 2, 2])
    share = macro_by_counts(tx, res, 3, "share")
    assert share.tolist() == pytest.approx([0.5 / 1.5, 1 / 1.5, 0])
    # 2 times 1/2, 1 times 1, 0 times 0.
    assert macro_by_counts(tx, res, 3, "sized").tolist() == pytest.approx([0.5, 0.5, 0])
    assert macro_by_counts(torch.tensor([0, 0, 0, 1]), torch.tensor([2]), 3, "sized").tolist() == [0.75, 0.25, 0]
    # As printed: 2 / 2, 1 / 0 taken as 1 / 1, 0 / 3.
    assert macro_by_counts(tx, res, 3, "ratio").tolist() == pytest.approx([0.5, 0.5, 0])


def test_by_fractions_two_hundred_candidates_do_not_drown_twenty_of_a_reserve():
    """Ten clusters of 20 candidates; the reserve's 20 samples lie in two of them.

    Where both have half of the reserve, f / (f + g) is 0.1 / 0.6 against 1 elsewhere: a share of 0.04 of what is
    drawn, where a uniform pull has 0.2. By counts it is 20 / 30 against 1, and a share of 0.14.
    """
    tx, res = torch.arange(200) % 10, torch.arange(20) % 2
    fractions = macro_probability(tx, res, 10)
    share = macro_by_counts(tx, res, 10, "share")
    assert float(fractions[:2].sum()) == pytest.approx((2 / 6) / (2 / 6 + 8))
    assert float(share[:2].sum()) == pytest.approx((4 / 3) / (4 / 3 + 8))


def test_macro_of_one_cluster_and_without_reserve():
    assert macro_by_counts(
        torch.zeros(4, dtype=torch.int64), torch.zeros(2, dtype=torch.int64), 1, "share"
    ).tolist() == [1]
    nobody = torch.zeros(0, dtype=torch.int64)
    assert macro_by_counts(torch.tensor([0, 1, 1]), nobody, 2, "share").tolist() == [0.5, 0.5]


def test_a_pull_brings_what_the_receiver_lacks(world):
    """24 candidates of either class, and a reserve of 20 of one: n_tx / n_res is about 1.2 and 24."""
    y = world.data.train_y
    lacking = 0
    for lacks, has in ((2, 0), (0, 2)):
        pulled = torch.nonzero(y == has).squeeze(1)[:20]
        lacking += pulled_classes(world, 0, pulled, "cfcl_importance", macro="ratio", heat=(0.0, 0.0)).count(lacks)
    assert lacking >= 18, "of 24 in the two pulls; a uniform draw gives about 12"


def test_a_negative_selection_temperature_is_refused(world):
    with pytest.raises(MethodError, match=r"method\.heat: \[-1\.0, 5\.0\] has a negative number"):
        world.method("cfcl_importance", encoder="pooled-conv", heat=(-1.0, 5.0))


def test_selecting_by_the_receivers_model_costs_its_model(world):
    net = Net(world, name="cfcl_importance", edges=RING, selector="receiver")
    kinds = []
    while not net.server.finished:
        kinds.append((net.server.facts["next"], net.round()))
    sent = [[set(m.tensors) for m in u.peers.values()] for kind, updates in kinds if kind == "train" for u in updates]
    assert {"model"} in sent[0]
    assert sent[-1] == [], "no pull follows the last steps"


def test_redundancy_is_the_share_pulled_of_labels_that_the_receiver_holds(world, client_list):
    """Device 0 holds classes 0 and 2; of five samples that it has from others three are of these."""
    y = world.data.train_y
    picked = torch.cat(
        [torch.nonzero(y == label).flatten()[:count] for label, count in ((0, 1), (2, 2), (1, 1), (3, 1))]
    )
    first, second = world.client(0, 1, {"pulled": picked}, every=2), replace(world.client(1, every=2), id=1)
    own, pulled = label_counts(client_list([first, second]), 4)
    assert own.tolist() == [[24, 0, 24, 0], [0, 24, 0, 24]]
    assert pulled.tolist() == [[1, 1, 2, 1], [0, 0, 0, 0]]
    method = world.method("cfcl_importance", encoder="pooled-conv")
    server = method.init_server(Federation(world.spec, (48, 48), Streams(0)))
    counted = method.evaluate(server, client_list([first, second]), world.evaluation())
    assert counted["redundancy"] == pytest.approx(3 / 5)
    assert "redundancy" not in method.evaluate(server, client_list([second]), world.evaluation())
    # What is on its way counts.
    net = Net(world, name="cfcl_importance", edges=RING, selection="uniform")
    net.round()
    clients = client_list([net.client(k) for k in range(DEVICES)])
    metrics = net.method.evaluate(net.server, clients, world.evaluation())
    assert metrics["redundancy"] == 0, "device k holds class k only, and gives only that"
    assert label_counts(clients, 4)[1].sum() == 2 * 3 * DEVICES


def test_any_other_sample_that_is_held_is_as_likely_a_negative():
    """Anchor 2 of five held samples: each of the four others a quarter of the time."""
    positions = torch.full((4000,), 2)
    drawn = held_negatives(positions, 5, torch.Generator().manual_seed(0))
    assert (drawn.bincount(minlength=5) / 4000).tolist() == pytest.approx([0.25, 0.25, 0, 0.25, 0.25], abs=0.03)
    ends = held_negatives(torch.tensor([0, 4] * 500), 5, torch.Generator().manual_seed(1))
    assert set(ends[::2].tolist()) == {1, 2, 3, 4}
    assert set(ends[1::2].tolist()) == {0, 1, 2, 3}


def test_held_negatives_are_of_own_and_of_pulled_samples(world):
    net = Net(world, name="cfcl_importance", negatives="held")
    message = replace(net.method.broadcast(net.server, 0), facts={"step": 0, "next": "train", "steps": 40})
    client = replace(net.client(0), memory={"pulled": torch.tensor([90, 91])})
    samples = with_pulled(client.train, torch.tensor([90, 91]))
    steps = net.method.local_steps(message, client)
    positions = {place for drawn in steps.batches for place in _which(steps.batch(drawn)[1], samples)}
    assert positions == set(range(26))


def _which(negatives, samples):
    """Which of the samples each negative is."""
    own = normalise(samples.x())
    return [int((own - negative).abs().flatten(1).sum(1).argmin()) for negative in negatives]


def test_negatives_are_drawn_from_what_was_pulled_and_are_never_the_anchor():
    generator = torch.Generator().manual_seed(0)
    positions = torch.tensor([3, 10, 11, 12] * 50)  # ten own samples, then three that were pulled
    drawn = pulled_negatives(positions, 10, 3, generator)
    assert set(drawn.tolist()) == {10, 11, 12}
    assert not bool((drawn == positions).any())
    own = drawn[positions < 10]
    assert all(int((own == k).sum()) >= 5 for k in (10, 11, 12)), "each of three about 17 times in 50"


def test_pulled_negatives_take_the_place_of_the_next_sample(world):
    x = torch.tensor([[0.0], [4.0], [1.0], [4.0]])  # anchors 0 and 4, positives 1 and 4
    method = world.method("cfcl_importance", encoder="pooled-conv")

    def loss(*batch):
        return float(method.step_loss(nn.Identity(), {}, batch, {})[0])

    assert loss(x) == 0, "1 - 16 + 1, and 0 - 16 + 1"
    assert loss(x, torch.tensor([[1.5], [3.5]])) == pytest.approx((0 + 0.75) / 2)
    assert loss(x, torch.tensor([[1.0], [4.0]])) == pytest.approx((1 + 1) / 2)


def test_where_nothing_comes_negatives_are_of_the_batch(world):
    weights = [
        Net(world, name="cfcl_importance", selection=selection, negatives=negatives).run().server.tensors["weights"]
        for negatives in ("batch", "pulled")
        for selection in ("uniform", "none")
    ]
    assert not torch.equal(weights[0], weights[2]), "what was pulled is used"
    assert torch.equal(weights[1], weights[3]), "nobody shares anything"


def test_labels_are_spread_more_evenly_by_exchange(world, client_list):
    """Device k holds class k only: 24 points of it at one device and 0 at three before any exchange."""
    spread = {}
    for selection in ("none", "uniform"):
        net = Net(world, name="cfcl_importance", steps=2, tau_a=2, tau_p=2, selection=selection).run()
        clients = client_list([net.client(k) for k in range(DEVICES)])
        spread[selection] = net.method.evaluate(net.server, clients, world.evaluation())
    assert spread["none"]["label_variance"] == pytest.approx(24**2 * 3 / 16)
    assert spread["none"]["label_share_variance"] == pytest.approx(3 / 16)
    for name in ("label_variance", "label_share_variance"):
        assert spread["uniform"][name] < spread["none"][name]


def test_a_random_reserve_is_drawn_without_repetition(world):
    method = world.method("cfcl_importance", encoder="pooled-conv", reserve=20, reserve_kind="random")
    rng = np.random.default_rng(0)
    assert len(method.reserve(torch.zeros(50, 2), rng).unique()) == 20
    assert method.reserve(torch.zeros(3, 2), rng).tolist() == [0, 1, 2]
