"""Robust means by hand; and what is the plain mean, to the bit, where nothing robust is asked for."""

import pytest
import torch

from shoal.methods.averaging.mean import WeightedMean
from shoal.methods.averaging.robust import RobustMean, aggregated, aggregated_vectors, krum_scores, mean_by
from shoal.methods.averaging.vectors import mean_vector
from shoal.methods.contract.base import Message, MethodError, Update
from shoal.methods.contract.context import AggregationSettings
from shoal.methods.registry import BUILT_IN as METHODS

HONEST = [[1.0, 1.0], [1.5, 1.0], [1.0, 1.5], [1.5, 1.5], [1.2, 1.2]]
FAR = [[100.0, -100.0], [90.0, -100.0]]


def updates(rows, sizes=None):
    sizes = sizes or [1] * len(rows)
    return [
        Update(Message({"w": torch.tensor(row), "steps": torch.tensor(5 + k)}, {"n": n}), client=k)
        for k, (row, n) in enumerate(zip(rows, sizes, strict=True))
    ]


def found(rows, sizes=None, start=None, **settings):
    return aggregated(updates(rows, sizes), AggregationSettings(**settings), start)["w"].tolist()


def test_by_default_it_is_the_weighted_mean_to_the_bit():
    torch.manual_seed(0)
    rows, sizes = torch.randn(5, 2).tolist(), [3, 1, 7, 2, 9]
    mean = WeightedMean()
    for update, n in zip(updates(rows), sizes, strict=True):
        mean.add(update.message.tensors, n)
    assert type(mean_by(AggregationSettings())) is WeightedMean
    assert found(rows, sizes) == mean.mean()["w"].tolist()
    # Robust rules without anybody to cut off come to the same.
    assert found(rows, sizes, rule="multi_krum", hostile=0.0) == mean.mean()["w"].tolist()
    assert found(rows, sizes, clip=1e6) == mean.mean()["w"].tolist()
    vectors, shares = [torch.tensor(row) for row in rows], [n / sum(sizes) for n in sizes]
    assert torch.equal(aggregated_vectors(vectors, shares, AggregationSettings()), mean_vector(vectors, shares))


def test_median_by_hand_of_odd_and_even():
    assert found([[1.0, 9.0], [2.0, -7.0], [50.0, 3.0]], rule="median") == [2.0, 3.0]
    assert found([[1.0, 9.0], [2.0, -7.0], [50.0, 3.0], [4.0, 5.0]], rule="median") == [3.0, 4.0]
    # Every client counts alike, whatever it says of its size.
    assert found([[1.0, 0.0], [2.0, 0.0], [50.0, 0.0]], [1, 1, 10**6], rule="median") == [2.0, 0.0]


def test_trimmed_mean_by_hand():
    rows = [[0.0, 5.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [99.0, -99.0]]
    assert found(rows, rule="trimmed_mean", hostile=0.2) == [2.0, 2.0]
    assert found(rows, rule="trimmed_mean", hostile=0.19) == pytest.approx([21.0, -17.6])
    assert found(rows, rule="trimmed_mean", hostile=0.4) == [2.0, 2.0]


def test_krum_scores_by_hand():
    rows = torch.tensor([[0.0], [1.0], [3.0], [10.0], [30.0]])
    # m = 5, f = 1: the two nearest of each.
    assert krum_scores(rows, 0.2) == [1 + 9, 1 + 4, 4 + 9, 49 + 81, 400 + 729]
    # Never fewer than one.
    assert krum_scores(rows[:3], 0.4) == [1, 1, 4]


def test_krum_is_one_clients_model_and_multi_krum_the_mean_of_the_rest():
    assert found([*HONEST, *FAR], rule="krum", hostile=0.3) == pytest.approx([1.2, 1.2])
    expected = torch.tensor(HONEST).mean(0).tolist()
    assert found([*HONEST, *FAR], rule="multi_krum", hostile=0.3) == pytest.approx(expected)
    weighted = [(1 * 1 + 1.5 * 3) / 4, 1.0]
    rows = [*HONEST[:2], FAR[0]]
    assert found(rows, [1, 3, 9], rule="multi_krum", hostile=0.34) == pytest.approx(weighted)


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "krum", "multi_krum"])
def test_two_of_seven_cannot_pull_it_away(rule):
    assert all(0.9 <= value <= 1.6 for value in found([*HONEST, *FAR], rule=rule, hostile=0.3))
    assert not all(0.9 <= value <= 1.6 for value in found([*HONEST, *FAR]))


def test_a_longer_change_is_clipped_to_the_bound():
    start = {"w": torch.tensor([1.0, 1.0])}
    # Changes (3, 4) and (0.3, 0.4), of norms 5 and 0.5; the bound is 1.
    rows = [[4.0, 5.0], [1.3, 1.4]]
    assert found(rows, start=start, clip=1.0) == pytest.approx([1 + (0.6 + 0.3) / 2, 1 + (0.8 + 0.4) / 2])
    assert found(rows, start=start, clip=5.0) == pytest.approx([2.65, 3.2])
    # Without a start the vectors themselves are the changes.
    assert found([[3.0, 4.0]], clip=1.0) == pytest.approx([0.6, 0.8])


def test_whole_numbers_are_rounded_and_do_not_count_as_changes():
    tensors = aggregated(updates([[0.0, 0.0], [0.0, 0.0]]), AggregationSettings(rule="median"))
    assert tensors["steps"].dtype == torch.int64
    assert int(tensors["steps"]) in (5, 6)
    clipped = aggregated(updates([[0.0, 0.0]]), AggregationSettings(clip=0.1))
    assert int(clipped["steps"]) == 5


def test_a_weight_of_zero_has_no_say_and_others_are_refused():
    mean = RobustMean(AggregationSettings(rule="median"))
    mean.add({"w": torch.tensor([5.0])}, 0)
    with pytest.raises(ValueError, match="nothing to average"):
        mean.mean()
    mean.add({"w": torch.tensor([1.0])}, 2.5)
    assert (mean.weight, mean.mean()["w"].tolist()) == (2.5, [1.0])
    for wrong in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="weights are >= 0"):
            mean.add({"w": torch.tensor([1.0])}, wrong)
    with pytest.raises(ValueError, match="shape"):
        mean.add({"w": torch.ones(2)}, 1)


# --- in the methods ---------------------------------------------------------------------------------------------------

ROBUST = [name for name, kind in METHODS.items() if kind.averages or kind.averages_parts]


def with_rule(world, name, **settings):
    from dataclasses import replace

    method = world.method(name, rounds=4, epochs=1)
    return type(method)(method.settings, replace(method.context, aggregation=AggregationSettings(**settings)))


@pytest.mark.parametrize("name", sorted(name for name, method in METHODS.items() if not method.totals))
def test_every_method_that_averages_takes_the_rule_and_the_others_refuse_it(world, name):
    if name not in ROBUST:
        with pytest.raises(MethodError, match=r"aggregation\.rule.*averages none"):
            with_rule(world, name, rule="median")
        return
    method = with_rule(world, name, rule="median")
    if name == "cfcl":
        method = type(method)(type(method.settings)(steps=2, tau_a=2, selection="none"), method.context)
    server = world.start(method, 3)
    answers = []
    for k in range(3):
        client = world.client(k, every=3)
        update = method.client_update(method.broadcast(server, k), client)
        answers.append(Update(update.message, client=k))
    # Two agree, and the third is far: of the plain mean there would be a trace of it.
    same, far = answers[0].message, {n: t * 1e6 for n, t in answers[0].message.tensors.items()}
    trio = [Update(Message(dict(same.tensors), same.facts), client=k) for k in range(2)]
    trio.append(Update(Message(far, same.facts), client=2))
    after = method.aggregate(server, iter(trio))
    biggest = max(float(t.abs().max()) for t in after.tensors.values() if t.is_floating_point())
    result = method.aggregate(server, iter(trio[:2]))
    assert biggest == max(float(t.abs().max()) for t in result.tensors.values() if t.is_floating_point())
