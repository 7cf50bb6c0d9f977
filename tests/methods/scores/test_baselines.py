"""Clusters beside null baselines: what agreement of neighbours is worth, and where there is nothing to compare."""

import numpy as np
import pytest

from shoal.core.streams import Streams
from shoal.methods.scores.baselines import Comparison, compare_clusters, side_by_side
from shoal.methods.scores.client_scores import ClientScores
from shoal.methods.scores.clustering import ari, chance_ari, crossed, label_table
from shoal.methods.scores.neighbours import nearest_samples, neighbour_agreement
from shoal.methods.scores.probe import probe_of


def blobs(seed: int = 0, each: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    label = np.repeat(np.arange(3), each)
    return (10 * np.eye(3, 5)[label] + rng.normal(size=(len(label), 5))).astype(np.float32), label


def compared(cluster: np.ndarray, clusters: int, spaces: dict, judge: tuple, labels: np.ndarray | None) -> Comparison:
    said = [ClientScores(label_table(cluster, labels, clusters, 3))]
    return compare_clusters(cluster, clusters, spaces, judge, labels, said, Streams(0))


def test_agreement_is_one_for_blobs_and_none_for_random_clusters() -> None:
    x, label = blobs()
    near = nearest_samples(x)
    assert neighbour_agreement(label, near) == 1
    orders = [neighbour_agreement(np.random.default_rng(seed).permutation(label), near) for seed in range(50)]
    assert abs(np.mean(orders)) < 0.01
    assert neighbour_agreement(np.zeros(120, dtype=int), near) == 0


def test_right_clusters_are_as_good_as_the_baseline_and_random_ones_are_chance() -> None:
    x, label = blobs()
    noise = np.random.default_rng(1).normal(size=x.shape)
    found = compared((label + 1) % 3, 3, {"columns": x, "noise": noise}, ("columns", x), label)
    assert found.acc == found.baseline_acc["columns"] == 1
    assert found.baseline_acc["noise"] < 0.6
    assert found.chance_acc == pytest.approx(0.38, abs=0.05)
    assert found.largest_class == pytest.approx(1 / 3)
    assert found.numbers["acc_of_columns"] == 1


def test_labels_of_a_part_count_for_that_part() -> None:
    x, label = blobs()
    cluster = np.where(np.arange(120) < 80, label, np.arange(120) % 2)
    found = compared(cluster, 3, {"columns": x}, ("columns", x), label[:80])
    assert found.acc == 1
    assert found.neighbours < 1


def test_more_clusters_than_samples_have_no_baseline() -> None:
    x, _ = blobs(each=1)
    found = compared(np.array([7, 2, 5]), 8, {"columns": x}, ("columns", x), None)
    assert not found.baseline_neighbours
    assert found.acc is None


def test_the_same_for_every_run_that_compares_with_a_space() -> None:
    x, label = blobs()
    first = compared(label, 3, {"columns": x}, ("columns", x), label)
    second = compared(label[::-1], 3, {"other": -x, "columns": x}, ("columns", x), label)
    assert first.baseline_acc["columns"] == second.baseline_acc["columns"]


def test_side_by_side_both_parts_weigh_the_same() -> None:
    rng = np.random.default_rng(0)
    found = side_by_side(1000 * rng.normal(size=(50, 7)), rng.normal(size=(50, 3)))
    assert np.square(found[:, :7]).sum() / 50 == pytest.approx(1)
    assert np.square(found[:, 7:]).sum() / 50 == pytest.approx(1)
    assert np.isfinite(side_by_side(np.ones((4, 2)), np.zeros((4, 3)))).all()


def test_a_probe_needs_something_to_learn_and_something_to_test() -> None:
    x, label = blobs()
    order = np.random.default_rng(0).permutation(120)
    assert probe_of(x, order[:90], order[90:], label, 0) == 1
    assert probe_of(x, order, order[:0], label, 0) is None
    wide = np.hstack([x, np.zeros((120, 400))])
    assert probe_of(wide, order[:90], order[90:], label, 0) == 1


@pytest.mark.long
def test_the_ari_of_chance_is_that_of_random_orders() -> None:
    rng = np.random.default_rng(0)
    label, cluster = rng.integers(0, 4, 60), rng.integers(0, 3, 60)
    orders = sorted(ari(label, rng.permutation(cluster)) for _ in range(1000))
    table = crossed(label, cluster)
    drawn = sorted(chance_ari(table, 1, rng) for _ in range(1000))
    assert np.quantile(drawn, [0.1, 0.5, 0.9]) == pytest.approx(np.quantile(orders, [0.1, 0.5, 0.9]), abs=0.01)
    assert chance_ari(table, 1000, rng) == pytest.approx(orders[-1], abs=0.05)
    for same in (np.zeros(60, dtype=int), np.arange(60)):
        assert chance_ari(crossed(label, same), 200, rng) == ari(label, same)
