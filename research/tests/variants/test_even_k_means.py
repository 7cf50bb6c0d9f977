"""K-means with prices: they solve the transport problem for any split over clients, and clusters become more even."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.methods.clustering.federated_k_means import moved_centres, nearest
from shoal_research.variants import even_k_means
from shoal_research.variants.even_k_means import (
    SoftSums,
    cost,
    lifted_centres,
    lifted_samples,
    moved_prices,
    soft_sums,
)
from tests.methods.clustering.test_federated_k_means import blobs, shares

SOFTNESS = 0.5
EVENNESS = 0.8


def unit(seed, n=240, clusters=4, width=3):
    """Samples and centres of length 1, as the method has them, and prices."""
    rng = np.random.default_rng(seed)
    x, centres = (torch.from_numpy(rng.normal(size=(rows, width))) for rows in (n, clusters))
    prices = torch.from_numpy(rng.normal(size=(1, clusters)))
    normal = torch.nn.functional.normalize
    return normal(x, dim=1), normal(centres, dim=1)[None], prices


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), clients=st.integers(1, 7))
def test_an_iteration_is_one_on_pooled_samples(seed, clients):
    x, centres, prices = unit(seed)
    parts = [
        soft_sums(x[own], centres, prices, SOFTNESS) for own in shares(len(x), clients, np.random.default_rng(seed))
    ]
    together = SoftSums(*(torch.stack(column).sum(0) for column in zip(*parts, strict=True)))
    for ours, pooled in zip(together, soft_sums(x, centres, prices, SOFTNESS), strict=True):
        torch.testing.assert_close(ours, pooled)
    weight = torch.softmax((prices - torch.cdist(x, centres[0]).square()) / SOFTNESS, 1)
    torch.testing.assert_close(together.counts[0], weight.sum(0))
    torch.testing.assert_close(
        moved_centres(centres, together.sums, together.counts)[0], (weight.T @ x) / weight.sum(0)[:, None]
    )


def test_how_weights_answer_to_prices_is_their_derivative():
    x, centres, prices = unit(3)
    sums = soft_sums(x, centres, prices, SOFTNESS)

    def counts(prices):
        return torch.softmax((prices - torch.cdist(x, centres[0]).square()) / SOFTNESS, 1).sum(0)

    jacobian = torch.autograd.functional.jacobian(counts, prices[0])
    torch.testing.assert_close((torch.diag(sums.counts[0]) - sums.products[0]) / SOFTNESS, jacobian)
    # and the counts are the derivative of what the samples pay
    pays = torch.autograd.functional.jacobian(
        lambda p: SOFTNESS * torch.logsumexp((p - torch.cdist(x, centres[0]).square()) / SOFTNESS, 1).sum(), prices[0]
    )
    torch.testing.assert_close(sums.counts[0], pays)
    by_hand = SOFTNESS * torch.logsumexp((prices - torch.cdist(x, centres[0]).square()) / SOFTNESS, 1).sum()
    torch.testing.assert_close(sums.value[0], -by_hand)


@pytest.mark.parametrize(("softness", "evenness"), [(0.05, 0.2), (0.5, 0.2), (0.05, 5.0)])
def test_prices_solve_the_transport_of_sinkhorn(softness, evenness):
    """Iterations for a relaxed marginal (Chizat et al. 2018), written out here, give the same prices and cost."""
    x, centres, _ = unit(4, clusters=5)
    prices, costs = torch.zeros(1, 5).double(), []
    for _ in range(80):
        sums = soft_sums(x, centres, prices, softness)
        costs.append(float(cost(sums.value, prices, sums.counts, evenness)))
        prices = moved_prices(prices, sums.counts, sums.products, softness, evenness)
    even = len(x) / 5
    squared = torch.cdist(x, centres[0]).square()
    kernel = torch.exp(-squared / softness)
    v = torch.ones(5).double()
    for _ in range(5000):
        u = 1 / (kernel @ v)
        v = (even / (kernel.T @ u)) ** (evenness / (evenness + softness))
    torch.testing.assert_close(prices[0], softness * torch.log(v), atol=1e-7, rtol=0)
    torch.testing.assert_close(prices, evenness * torch.log(even / sums.counts))
    plan = u[:, None] * kernel * v
    sizes = plan.sum(0)
    uneven = (sizes * (sizes / even).log() - sizes + even).sum()
    primal = (plan * squared).sum() + softness * (plan * plan.log()).sum() + evenness * uneven
    assert costs[-1] == pytest.approx(float(primal), abs=1e-6), "strong duality"
    assert costs[-1] == pytest.approx(max(costs)), "and weak duality on the way"


def test_the_larger_the_evenness_the_more_even_are_clusters():
    x, centres, _ = unit(4, clusters=5)
    spread = []
    for evenness in (0.02, 0.2, 2.0, 20.0):
        prices = torch.zeros(1, 5).double()
        for _ in range(80):
            sums = soft_sums(x, centres, prices, SOFTNESS)
            prices = moved_prices(prices, sums.counts, sums.products, SOFTNESS, evenness)
        spread.append(float(sums.counts.std()))
    assert spread == sorted(spread, reverse=True)
    assert spread[-1] < 0.1 * spread[0]


def settled(x, centres, softness, evenness, rounds=60):
    """The cluster of each sample after so many iterations from centres (c, d)."""
    centres, prices = centres[None], torch.zeros(1, len(centres)).double()
    for _ in range(rounds):
        sums = soft_sums(x, centres, prices, softness)
        centres = moved_centres(centres, sums.sums, sums.counts)
        prices = moved_prices(prices, sums.counts, sums.products, softness, evenness)
    return nearest(lifted_samples(x), lifted_centres(centres[0], prices[0])[None])[0][0]


def test_clusters_of_one_size_are_found_where_plain_k_means_divides_the_widest():
    """Two narrow groups side by side and a wide one, forty samples each."""
    rng = np.random.default_rng(0)
    groups = [rng.normal(size=(40, 2)) * 0.2 + [side, 0] for side in (-1, 1)]
    x = torch.from_numpy(np.concatenate([*groups, rng.uniform(-1, 1, (40, 2)) * [3, 0.5] + [0, 4]]))
    y = np.repeat(range(3), 40)
    start = torch.tensor([[0.0, 0.0], [-1.5, 4.0], [1.5, 4.0]]).double()
    centres_alone = start
    for _ in range(60):
        cluster = nearest(x, centres_alone[None])[0][0]
        centres_alone = torch.stack([x[cluster == k].mean(0) for k in range(3)])
    assert same(settled(x, start, SOFTNESS, 20.0), y)
    assert not same(nearest(x, centres_alone[None])[0][0], y)


@pytest.mark.parametrize("softness", [0.02, 0.05, 0.3])
def test_groups_far_apart_stay_whole_whatever_their_sizes(softness):
    """Prices that rose without bound would break the largest, or give all samples to one cluster."""
    rng = np.random.default_rng(0)
    y = np.repeat(range(4), [60, 60, 60, 15])
    x = torch.nn.functional.normalize(torch.from_numpy(4 * np.eye(4)[y] + rng.normal(size=(195, 4)) * 0.3), dim=1)
    for rounds in (5, 20, 100):
        assert same(settled(x, x[[0, 60, 120, 180]], softness, 0.2, rounds), y)


def same(cluster, y):
    pairs = set(zip(cluster.tolist(), y.tolist(), strict=True))
    return len(pairs) == len(set(y.tolist()))


def test_starts_go_on_side_by_side_without_touching_each_other():
    (x, *one), (_, *two) = unit(1), unit(2)
    together = soft_sums(x, *(torch.cat(pair) for pair in zip(one, two, strict=True)), SOFTNESS)
    moved = moved_prices(torch.cat((one[1], two[1])), together.counts, together.products, SOFTNESS, EVENNESS)
    for k, (centres, prices) in enumerate((one, two)):
        one_start = soft_sums(x, centres, prices, SOFTNESS)
        for ours, own in zip(together, one_start, strict=True):
            torch.testing.assert_close(ours[k], own[0])
        torch.testing.assert_close(
            moved[k], moved_prices(prices, one_start.counts, one_start.products, SOFTNESS, EVENNESS)[0]
        )


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_nearest_lifted_centre_is_the_cheapest(seed):
    x, centres, prices = unit(seed)
    far, cheap = torch.cdist(x, centres[0]).square() - prices, lifted_centres(centres[0], prices[0])
    assert torch.equal(nearest(lifted_samples(x), cheap[None])[0][0], far.argmin(1))
    lifted = torch.cdist(lifted_samples(x), cheap).square()
    torch.testing.assert_close(lifted, far + prices.max())


def test_a_cluster_in_which_a_client_has_little_is_not_told():
    x, centres, prices = unit(5, n=6)
    all_of_it = soft_sums(x, centres, prices, SOFTNESS)
    min_points = float(all_of_it.counts.sort().values[0, 1])
    told = soft_sums(x, centres, prices, SOFTNESS, min_points=min_points)
    silent = int(all_of_it.counts.argmin())
    assert told.counts[0, silent] == 0
    assert not told.sums[0, silent].any()
    assert not told.products[0, silent].any()
    assert not told.products[0, :, silent].any()
    others = [k for k in range(4) if k != silent]
    for name in ("sums", "counts"):
        assert torch.equal(getattr(told, name)[0, others], getattr(all_of_it, name)[0, others])


def test_prices_stay_finite_where_nobody_sent_anything():
    nothing = torch.zeros(2, 3).double()
    prices = torch.tensor([[1.0, 0.0, -1.0], [0.0, 0.0, 0.0]]).double()
    moved = moved_prices(prices, nothing, torch.zeros(2, 3, 3).double(), SOFTNESS, EVENNESS)
    assert torch.isfinite(moved).all()
    assert torch.isfinite(cost(torch.zeros(2).double(), prices, nothing, EVENNESS)).all()


def test_a_price_moves_by_twice_the_softness_at_most():
    """All samples in one of two clusters that nobody shares: Newton's step is as long as the evenness."""
    counts = torch.tensor([[100.0, 0.0]]).double()
    moved = moved_prices(torch.zeros(1, 2), counts, torch.diag_embed(counts), 0.1, EVENNESS)
    torch.testing.assert_close(moved, torch.tensor([[-0.2, 0.2]]).double())


def test_samples_are_looked_at_in_parts(monkeypatch):
    x, centres, prices = unit(6)
    whole = soft_sums(x, centres, prices, SOFTNESS)
    monkeypatch.setattr(even_k_means, "ROWS", 70)
    for ours, own in zip(soft_sums(x, centres, prices, SOFTNESS), whole, strict=True):
        torch.testing.assert_close(ours, own)


def test_the_price_of_a_cluster_that_nobody_is_near_rises():
    x, _ = blobs(0, clusters=2)
    x = torch.nn.functional.normalize(x, dim=1)
    centres = torch.stack([x[0], -10 * x[0]])[None]
    prices = torch.zeros(1, 2).double()
    for _ in range(3):
        sums = soft_sums(x, centres, prices, 0.01)
        new = moved_prices(prices, sums.counts, sums.products, 0.01, EVENNESS)
        assert torch.isfinite(new).all()
        assert new[0, 1] > prices[0, 1]
        prices = new
