import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from shoal.methods.averaging import mean as averaging
from shoal.methods.averaging.mean import TOGETHER, WeightedMean, together
from shoal.methods.averaging.robust import aggregated
from shoal.methods.contract.base import Message, Update
from shoal.methods.contract.blocks import BLOCK
from shoal.methods.contract.context import AggregationSettings

values = arrays("float32", (3, 2), elements=st.floats(-1e3, 1e3, width=32))
counted = st.lists(st.tuples(values, st.integers(1, 1000)), min_size=1, max_size=6)


def average(updates):
    return aggregated(updates, AggregationSettings())


def update(n, **tensors):
    return Update(Message(tensors, {"n": n}))


def mean_of(pairs, scale=1):
    return average(update(n * scale, w=torch.from_numpy(x)) for x, n in pairs)["w"]


@given(counted)
@settings(max_examples=60, deadline=None)
def test_mean_lies_between_its_parts(pairs):
    stacked = torch.stack([torch.from_numpy(x) for x, _ in pairs])
    mean = mean_of(pairs)
    assert mean.dtype == torch.float32
    slack = 1e-5 * (1 + stacked.abs().max())
    assert (mean >= stacked.min(0).values - slack).all()
    assert (mean <= stacked.max(0).values + slack).all()


@given(counted)
@settings(max_examples=60, deadline=None)
def test_order_and_scale_of_weights_do_not_matter(pairs):
    torch.testing.assert_close(mean_of(pairs[::-1]), mean_of(pairs))
    torch.testing.assert_close(mean_of(pairs, scale=7), mean_of(pairs))


@given(counted, values)
@settings(max_examples=30, deadline=None)
def test_a_weight_of_zero_is_as_if_absent(pairs, extra):
    assert torch.equal(mean_of([*pairs, (extra, 0)]), mean_of(pairs))


@given(values, st.integers(1, 9))
@settings(max_examples=30, deadline=None)
def test_mean_of_equals_is_itself(x, count):
    torch.testing.assert_close(mean_of([(x, 3)] * count), torch.from_numpy(x))


def test_by_hand_with_integers_rounded():
    found = average(
        [
            update(1, w=torch.tensor([0.0, 4.0]), steps=torch.tensor(10)),
            update(3, w=torch.tensor([4.0, 0.0]), steps=torch.tensor(13)),
        ]
    )
    assert found["w"].tolist() == [3.0, 1.0]
    assert found["steps"].dtype == torch.int64
    # 12.25
    assert found["steps"].item() == 12


def test_what_cannot_be_averaged_is_refused():
    with pytest.raises(ValueError, match="nothing to average"):
        average([update(0, w=torch.ones(2))])
    with pytest.raises(ValueError, match="differ in their tensors"):
        average([update(1, w=torch.ones(2)), update(1, v=torch.ones(2))])
    with pytest.raises(ValueError, match="shape"):
        average([update(1, w=torch.ones(2)), update(1, w=torch.ones(1, 2))])
    with pytest.raises(ValueError, match=">= 0"):
        WeightedMean().add({"w": torch.ones(1)}, -1.0)


def test_inputs_are_left_as_they_were():
    w = torch.ones(2)
    average([update(2, w=w), update(1, w=w)])
    assert w.tolist() == [1, 1]


@pytest.mark.parametrize("clients", [1, TOGETHER, 2 * TOGETHER + 1])
def test_several_at_once_have_the_bits_of_one_after_another(clients):
    generator = torch.Generator().manual_seed(clients)
    sent = [
        ({"w": torch.randn(2, BLOCK // 3, generator=generator), "n": torch.tensor(k), "e": torch.zeros(0)}, 1.0 + k / 3)
        for k in range(clients)
    ]
    one_by_one, at_once = WeightedMean(), WeightedMean()
    for tensors, weight in sent:
        one_by_one.add(tensors, weight)
    at_once.add_all(iter(sent))
    assert at_once.weight == one_by_one.weight
    found, expected = at_once.mean(), one_by_one.mean()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    exact = sum(t["w"].double() * w for t, w in sent) / sum(w for _, w in sent)
    torch.testing.assert_close(found["w"], exact.float())


def test_an_odd_one_among_several_is_refused():
    sent = [({"w": torch.zeros(2)}, 1.0), ({"w": torch.zeros(3)}, 1.0)]
    with pytest.raises(ValueError, match=r"w has shape \(3,\), not \(2,\)"):
        WeightedMean().add_all(sent)


def test_of_very_large_ones_fewer_are_held_at_once(monkeypatch):
    sent = [({"w": torch.zeros(6), "b": torch.zeros(4)}, float(k)) for k in range(9)]

    def sizes():
        return [[weight for _, weight in group] for group in together(sent)]

    assert sizes() == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    monkeypatch.setattr(averaging, "TOGETHER_NUMBERS", 20)
    assert sizes() == [[0, 1], [2, 3], [4, 5], [6, 7], [8]]
    monkeypatch.setattr(averaging, "TOGETHER_NUMBERS", 5)
    assert sizes() == [[float(k)] for k in range(9)]
