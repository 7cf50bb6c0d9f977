"""Clusters that are sites are found as such, and clusters that are not are not."""

import numpy as np
import pytest
from sklearn.metrics import normalized_mutual_info_score

from shoal.methods.scores.sites import site_dependence


def drawn(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 4, 400), rng.integers(0, 3, 400), rng


def test_the_number_is_scikit_learns() -> None:
    cluster, site, rng = drawn()
    mixed = np.where(rng.random(400) < 0.5, site, cluster)
    assert site_dependence(mixed, site, 4, rng).nmi == pytest.approx(normalized_mutual_info_score(site, mixed))


def test_clusters_by_site_are_called_sites() -> None:
    _, site, rng = drawn()
    found = site_dependence(site, site, 3, rng)
    assert (found.nmi, found.site_clusters, found.sites) == (pytest.approx(1), (0, 1, 2), (0, 1, 2))
    assert found.p_value < 0.01


def test_random_clusters_are_related_to_sites_as_often_as_the_level_says() -> None:
    alarms = 0
    for seed in range(100):
        cluster, site, rng = drawn(seed)
        found = site_dependence(cluster, site, 4, rng)
        assert not found.site_clusters
        alarms += found.nmi > found.by_chance
    assert 1 <= alarms <= 12


def test_a_site_that_holds_nearly_everything_makes_no_cluster_a_site() -> None:
    rng = np.random.default_rng(0)
    site = (rng.random(1000) < 0.05).astype(int)
    assert not site_dependence(rng.integers(0, 3, 1000), site, 3, rng).site_clusters


def test_an_empty_cluster_is_no_site() -> None:
    cluster, site, rng = drawn()
    assert site_dependence(cluster, site, 6, rng).shares[4:] == (0, 0)
