"""Names that clusters keep, and those that are new or gone, in cases that can be counted by hand."""

from __future__ import annotations

import numpy as np

from shoal.review.results.stable_names import ClusterChange, StableNames, name_clusters


def old(*sizes: int, names: tuple[int, ...] = (), next_name: int = 10) -> tuple[StableNames, tuple[int, ...]]:
    return StableNames(names or tuple(range(len(sizes))), next_name), sizes


def test_clusters_that_only_changed_their_numbers_keep_their_names() -> None:
    shared = np.array([[0, 0, 30], [2, 40, 0], [50, 1, 0]])
    found = name_clusters(*old(30, 42, 51, names=(4, 7, 9)), shared, [60, 41, 30])
    assert found.names == (9, 7, 4)
    assert (found.next_name, found.changes) == (10, ())


def test_a_cluster_that_split_leaves_its_name_to_the_larger_part() -> None:
    shared = np.array([[50, 0, 0], [0, 60, 40]])
    found = name_clusters(*old(50, 100, names=(3, 7)), shared, [50, 60, 40])
    assert found.names == (3, 7, 10)
    assert found.next_name == 11
    assert found.changes == (ClusterChange("new", (7,), (10,), 40),)
    assert found.changes[0].sentence() == "cluster 10 is new, with 40 samples, many of them from cluster 7"


def test_clusters_that_merged_leave_the_name_of_the_larger_one() -> None:
    shared = np.array([[30, 0], [50, 0], [0, 20]])
    found = name_clusters(*old(30, 50, 20, names=(3, 5, 8)), shared, [80, 20])
    assert found.names == (5, 8)
    assert found.changes == (ClusterChange("gone", (3,), (5,), 30),)
    assert found.changes[0].sentence() == "cluster 3 is gone: its samples are now in cluster 5"


def test_a_new_cluster_has_samples_that_no_cluster_had() -> None:
    found = name_clusters(*old(50, 40), np.array([[50, 0, 0], [0, 38, 2]]), [55, 40, 47])
    assert found.names == (0, 1, 10)
    assert found.changes == (ClusterChange("new", (), (10,), 47),)
    assert found.changes[0].sentence() == "cluster 10 is new, with 47 samples"


def test_a_cluster_that_is_gone_left_its_samples_to_others() -> None:
    shared = np.array([[90, 0], [0, 90], [15, 15]])
    found = name_clusters(*old(90, 90, 30), shared, [105, 105])
    assert found.names == (0, 1)
    assert found.changes == (ClusterChange("gone", (2,), (0, 1), 30),)
    assert found.changes[0].sentence() == "cluster 2 is gone: its samples are now in clusters 0 and 1"


def test_samples_that_move_between_clusters_that_stay_are_no_change() -> None:
    # Most of cluster 1 goes to the new cluster that continues 0, and what is left of it still continues 1.
    shared = np.array([[60, 0], [40, 30]])
    found = name_clusters(*old(60, 70), shared, [100, 30])
    assert (found.names, found.changes) == ((0, 1), ())


def test_names_are_never_given_again() -> None:
    first = name_clusters(*old(60, 40, next_name=2), np.array([[60], [40]]), [100])
    assert (first.names, first.next_name) == ((0,), 2)
    second = name_clusters(first, (100,), np.array([[100, 0]]), [100, 60])
    assert (second.names, second.next_name) == ((0, 2), 3)


def test_a_cluster_that_shares_no_sample_is_new() -> None:
    found = name_clusters(*old(10, 20), np.array([[10, 0], [0, 0]]), [10, 20])
    assert found.names == (0, 10)
    assert [(change.kind, change.before, change.after) for change in found.changes] == [
        ("new", (), (10,)),
        ("gone", (1,), ()),
    ]


def test_empty_clusters_need_no_new_names_and_are_no_news() -> None:
    shared = np.array([[50, 0, 0], [0, 0, 0], [0, 0, 40]])
    found = name_clusters(*old(50, 0, 40), shared, [50, 0, 40])
    assert (found.names, found.changes) == ((0, 1, 2), ())
