import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from shoal.methods.averaging.mean import WeightedMean
from shoal.methods.averaging.robust import aggregated
from shoal.methods.contract.base import Message, Update
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
