import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import PartitionError
from shoal.data.partition.deal import (
    NOBODY,
    deal_dirichlet,
    deal_iid,
    deal_labels,
    deal_majority,
    label_holders,
    largest_remainder,
    majority_part,
)
from shoal.data.partition.make import make_partition
from shoal.data.partition.schemes import IID, SCHEMES, ByColumn, Dirichlet, LabelsPerClient, Majority

PROPERTY = settings(max_examples=60, deadline=None)
label_lists = st.lists(st.integers(0, 4), min_size=1, max_size=200).map(np.array)
seeds = st.integers(0, 2**32)


def stream(seed):
    return np.random.default_rng(seed)


@PROPERTY
@given(label_lists, st.integers(1, 12), seeds)
def test_iid_is_even_in_every_class(labels, clients, seed):
    owner = deal_iid(labels, len(labels), clients, stream(seed))
    assert np.ptp(np.bincount(owner, minlength=clients)) <= 1
    for label in np.unique(labels):
        assert np.ptp(np.bincount(owner[labels == label], minlength=clients)) <= 1


@PROPERTY
@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=30), st.integers(0, 100_000))
def test_largest_remainder_is_exact_and_near(weights, total):
    proportions = np.array(weights)
    counts = largest_remainder(proportions, total)
    assert counts.sum() == total
    assert counts.min() >= 0
    assert np.abs(counts - proportions / proportions.sum() * total).max() < 1.001


@PROPERTY
@given(label_lists, st.integers(1, 5), st.floats(0.05, 50), seeds)
def test_dirichlet_gives_every_sample_once_and_the_minimum(labels, clients, beta, seed):
    try:
        owner = deal_dirichlet(labels, clients, beta, 2, stream(seed))
    except PartitionError:
        return
    assert owner.min() >= 0
    assert np.bincount(owner, minlength=clients).min() >= 2


def test_dirichlet_is_skewed_when_beta_is_small():
    labels = np.repeat(np.arange(10), 500)

    def skew(beta):
        owner = deal_dirichlet(labels, 5, beta, 10, stream(0))
        counts = np.array([np.bincount(owner[labels == c], minlength=5) for c in range(10)])
        return (counts.max(axis=1) / 500).mean()

    assert skew(0.05) > 0.8 > 0.5 > skew(100) > 0.2


@PROPERTY
@given(st.integers(1, 12), st.integers(1, 15), st.data())
def test_every_client_holds_its_labels_and_every_label_is_used(classes, clients, data):
    labels = data.draw(st.integers(1, classes))
    labels_held = label_holders(classes, clients, labels, stream(data.draw(seeds)))
    assert labels_held.shape == (clients, labels)
    assert all(len(set(row)) == labels for row in labels_held.tolist())
    uses = np.bincount(labels_held.ravel(), minlength=classes)
    assert np.ptp(uses) <= 1
    if clients * labels >= classes:
        assert uses.min() >= 1


@PROPERTY
@given(st.integers(1, 6), st.integers(1, 8), st.integers(8, 40), st.data())
def test_labels_are_split_evenly_among_holders(classes, clients, size, data):
    y = np.repeat(np.arange(classes), size)
    labels_held = label_holders(classes, clients, data.draw(st.integers(1, classes)), stream(1))
    owner = deal_labels(y, np.arange(classes), labels_held, stream(2))
    for label in range(classes):
        holders = np.flatnonzero((labels_held == label).any(axis=1))
        counts = np.bincount(owner[(y == label) & (owner >= 0)], minlength=clients)
        assert set(np.flatnonzero(counts)) == set(holders)
        assert counts.sum() == (size if len(holders) else 0)
        if len(holders):
            assert np.ptp(counts[holders]) <= 1


@PROPERTY
@given(label_lists, st.integers(1, 8), st.floats(0, 1), seeds)
def test_majority_counts_are_exact(labels, clients, p, seed):
    values = np.unique(labels)
    owner = deal_majority(labels, values, clients, p, stream(seed))
    sizes = np.bincount(owner[owner >= 0], minlength=clients)
    assert np.ptp(sizes) == 0
    assert sizes[0] <= len(labels) // clients
    for k in range(clients):
        own = values[k % len(values)]
        assert (labels[owner == k] == own).sum() >= majority_part(int(sizes[0]), p)


def test_majority_on_balanced_labels_leaves_nothing_out():
    labels = np.repeat(np.arange(4), 100)
    for p in (0, 0.25, 0.29, 0.5, 1):
        owner = deal_majority(labels, np.arange(4), 4, p, stream(0))
        assert NOBODY not in owner
        own = [(labels[owner == k] == k).mean() for k in range(4)]
        assert min(own) >= p
    assert own == [1.0] * 4
    assert majority_part(100, 0.29) == 29


def schemes():
    common = st.fixed_dictionaries({"clients": st.integers(1, 6), "validation": st.sampled_from([0.0, 0.1, 0.5, 0.99])})
    return st.one_of(
        st.builds(lambda c: IID(**c), common),
        st.builds(lambda c, b: Dirichlet(beta=b, minimum=2, **c), common, st.floats(0.3, 20)),
        st.builds(lambda c, n: LabelsPerClient(labels=n, **c), common, st.integers(1, 4)),
        st.builds(lambda c, p: Majority(p=p, **c), common, st.floats(0, 1)),
        st.builds(lambda c: ByColumn(**{**c, "clients": c["clients"] % 4}), common),
    )


@pytest.fixture(scope="module")
def mixed(build):
    rng = np.random.default_rng(0)
    return build(rng.integers(0, 4, 240).tolist(), clients=[f"site {k}" for k in rng.integers(0, 4, 240)])


@PROPERTY
@given(schemes(), st.one_of(st.none(), st.integers(100, 300)), st.integers(0, 50))
def test_whatever_the_scheme(mixed, scheme, limit, seed):
    partition = make_partition(scheme, mixed, limit=limit, seed=seed)
    assert len(np.unique(partition.sample)) == len(partition.sample)
    assert partition.sample.min() >= 0
    assert partition.sample.max() < 240
    order = np.lexsort((partition.sample, partition.client))
    assert np.array_equal(order, np.arange(len(order)))
    left = partition.settings.get("left_out", {}).get("samples", 0)
    assert len(partition.sample) + left == min(limit or 240, 240)
    train, total = partition.counts(), np.bincount(partition.client, minlength=partition.clients)
    assert train.min() >= 1
    validation_counts = total - train
    if scheme.validation:
        expected = np.clip([round(n * scheme.validation) for n in total], 1, total - 1)
        assert validation_counts.tolist() == expected.tolist()
    else:
        assert validation_counts.sum() == 0
    again = make_partition(scheme, mixed, limit=limit, seed=seed)
    assert again.digest == partition.digest
    assert again.settings == partition.settings


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "labels_per_client", "majority"])
def test_different_seeds_differ(kind, digits):
    digests = {make_partition(SCHEMES[kind](), digits, seed=seed).digest for seed in range(5)}
    assert len(digests) == 5


def test_iid_gives_each_client_the_same_of_every_class(digits):
    partition = make_partition(IID(clients=7), digits)
    for label in range(10):
        counts = [int((digits.train_y[partition.samples_of(k)] == label).sum()) for k in range(7)]
        assert max(counts) - min(counts) <= 1


def test_iid_and_columns_need_no_labels(build):
    unlabelled = build(20, clients=["b", "a"] * 10)
    assert make_partition(IID(clients=3), unlabelled).counts().tolist() in ([7, 7, 6], [7, 6, 7], [6, 7, 7])
    natural = make_partition(ByColumn(), unlabelled)
    assert natural.client_names == ("a", "b")
    assert natural.samples_of(0).tolist() == list(range(1, 20, 2))


def test_some_natural_clients(build):
    data = build(30, clients=["x", "y", "z"] * 10)
    partition = make_partition(ByColumn(clients=2), data, seed=3)
    assert partition.clients == len(partition.client_names) == 2
    first = "xyz".index(partition.client_names[0])
    assert partition.samples_of(0).tolist() == list(range(first, 30, 3))
    assert partition.settings["left_out"]["samples"] == 10


def test_labels_that_nobody_holds_are_left_out(digits):
    partition = make_partition(LabelsPerClient(clients=3, labels=2), digits)
    labels_held = set(np.unique(digits.train_y[partition.sample]).tolist())
    assert len(labels_held) == 6
    left = partition.settings["left_out"]
    assert left["samples"] == int((~np.isin(digits.train_y, list(labels_held))).sum())
    assert all(str(label) in left["reason"] for label in set(range(10)) - labels_held)


def test_truth_of_clients_with_one_label(digits):
    partition = make_partition(LabelsPerClient(clients=20, labels=1), digits)
    for client, label in enumerate(partition.truth):
        assert set(digits.train_y[partition.samples_of(client)].tolist()) == {label}


def test_limit_is_a_random_subset(digits):
    a, b = (make_partition(IID(), digits, limit=100, seed=seed) for seed in (0, 1))
    assert len(a.sample) == 100
    assert set(a.sample) != set(b.sample)
    assert max(a.sample) > 1000
    assert len(make_partition(IID(), digits, limit=10**6).sample) == 1437


@pytest.mark.parametrize(
    ("scheme", "limit", "message"),
    [
        (IID(clients=2000), None, "2000 clients cannot share 1437 samples"),
        (IID(clients=1000), None, r"client \d+ would have only one sample"),
        (IID(), 3, "raise data.limit"),
        (IID(), 0, "limit is 0"),
        (Dirichlet(beta=0), None, "partition.beta is 0, expected above 0"),
        (Dirichlet(beta=-1), None, "partition.beta is -1, expected above 0"),
        (Dirichlet(beta=float("nan")), None, "partition.beta is nan"),
        (Dirichlet(beta=1e-4, clients=30), None, "smallest client never had 10 samples .* raise partition.beta"),
        (Dirichlet(clients=200), None, "need 2,000 samples, there are 1,437"),
        (LabelsPerClient(labels=11), None, "there are 10 labels"),
        (LabelsPerClient(clients=1400, labels=10), None, r"label \d has \d+ samples for 1400 clients"),
        (Majority(clients=1000, p=0.5), None, "would have"),
        (ByColumn(), None, "has no column 'client'"),
    ],
)
def test_impossible_partitions_fail_soon_and_say_why(digits, scheme, limit, message):
    start = time.monotonic()
    with pytest.raises(PartitionError, match=message):
        make_partition(scheme, digits, limit=limit)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("scheme", [Dirichlet(), LabelsPerClient(), Majority()])
def test_schemes_that_need_labels(build, scheme):
    with pytest.raises(PartitionError, match="needs labels, and data set 'tiny' has none"):
        make_partition(scheme, build(100))


def test_small_natural_clients_are_left_out_and_named(build):
    data = build(33, clients=["big"] * 20 + ["clinic 7"] + ["far"] * 10 + ["few"] * 2)
    partition = make_partition(ByColumn(), data)
    assert partition.client_names == ("big", "far", "few")
    assert partition.counts().tolist() == [20, 10, 2]
    assert 20 not in partition.sample
    assert partition.settings["left_out"] == {
        "samples": 1,
        "reason": "1 of 4 clients have fewer than 2 samples: 'clinic 7'",
        "clients": {"clinic 7": 1},
    }
    # With a validation split, a client of two samples would train on one.
    with_validation = make_partition(ByColumn(validation=0.3), data)
    assert with_validation.client_names == ("big", "far")
    assert with_validation.settings["left_out"]["clients"] == {"clinic 7": 1, "few": 2}
    assert (
        with_validation.samples_of(1, validation=True).tolist()
        == (partition.sample[20:30][with_validation.validation[20:]]).tolist()
    )
    assert make_partition(replace(ByColumn(), clients=0), data).digest == partition.digest
    assert "left_out" not in make_partition(ByColumn(), build(4, clients=["a", "b"] * 2)).settings


def test_clients_that_were_drawn_and_are_too_small(build):
    data = build(21, clients=["a"] * 10 + ["b"] * 10 + ["c"])
    found = {make_partition(ByColumn(clients=2), data, seed=seed).client_names for seed in range(3) if seed != 1}
    assert found <= {("a", "b")}
    partition = make_partition(ByColumn(clients=3), data)
    assert (partition.clients, partition.settings["left_out"]["samples"]) == (2, 1)


@pytest.mark.parametrize(
    ("clients", "settings", "message"),
    [
        (["big"] * 20 + ["clinic 7"], {}, r"1 of 2 clients have fewer than 2 samples \('clinic 7'\), and at"),
        (list("abc"), {}, r"3 of 3 clients .* \('a', 'b', 'c'\).*add samples .*partition\.kind to iid"),
        (["a"], {}, "1 of 1 clients"),
        (list("aabb"), {"validation": 0.5}, r"2 of 2 clients .*lower partition\.validation"),
    ],
)
def test_too_few_natural_clients(build, clients, settings, message):
    with pytest.raises(PartitionError, match=message):
        make_partition(ByColumn(**settings), build(len(clients), clients=clients))


def test_a_column_of_fewer_clients_than_asked_for(build):
    with pytest.raises(PartitionError, match=r"partition\.clients is 3, but column 'client' of .* names 2 clients"):
        make_partition(ByColumn(clients=3), build(4, clients=list("abab")))


def test_functions_check_for_themselves():
    with pytest.raises(PartitionError, match="expected above 0"):
        deal_dirichlet(np.zeros(10, int), 2, 0.0, 2, stream(0))


def test_validation_of_a_client_does_not_depend_on_the_others(build):
    data = build(40, clients=["a", "b"] * 20)
    both = make_partition(ByColumn(validation=0.3), data)
    assert both.samples_of(0, validation=True).tolist() != (both.samples_of(1, validation=True) - 1).tolist()
    assert replace(both).digest == both.digest
