"""Clusters that are sites are found as such, and clusters that are not are not."""

import numpy as np
import pytest

from shoal.methods.scores.sites import MAX_CELLS, SiteDependence, site_dependence


def drawn(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 4, 400), rng.integers(0, 3, 400), rng


def dependence(cluster: np.ndarray, site: np.ndarray, clusters: int, seed: int = 0) -> SiteDependence:
    found = site_dependence(cluster, site, clusters, int(site.max()) + 1, np.random.default_rng(seed))
    assert found is not None
    return found


def test_clusters_by_site_are_called_sites() -> None:
    _, site, _ = drawn()
    found = dependence(site, site, 3)
    assert (found.nmi, found.site_clusters, found.sites) == (pytest.approx(1), (0, 1, 2), (0, 1, 2))
    assert found.closed_sites == (0, 1, 2)
    assert found.nmi > found.by_chance


def test_random_clusters_are_related_to_sites_as_often_as_the_level_says() -> None:
    alarms = 0
    for seed in range(100):
        cluster, site, _ = drawn(seed)
        found = dependence(cluster, site, 4, seed)
        assert not found.site_clusters
        alarms += found.nmi > found.by_chance
    assert 1 <= alarms <= 12


def test_a_site_that_holds_nearly_everything_makes_no_cluster_a_site() -> None:
    rng = np.random.default_rng(0)
    site = (rng.random(1000) < 0.05).astype(int)
    assert not dependence(rng.integers(0, 3, 1000), site, 3).site_clusters


def test_a_tiny_cluster_within_one_site_by_chance_is_no_site() -> None:
    cluster, site, _ = drawn()
    cluster[np.flatnonzero(site == 0)[:1]] = 4
    found = dependence(cluster, site, 5)
    assert not found.site_clusters


def test_a_site_with_one_kind_of_its_own_beside_common_kinds_is_not_closed() -> None:
    cluster, site, _ = drawn()
    cluster[np.flatnonzero(site == 2)[:60]] = 4
    found = dependence(cluster, site, 5)
    assert found.site_clusters == (4,)
    assert not found.closed_sites


def test_an_empty_cluster_is_no_site_and_a_site_without_samples_none_of_its_own() -> None:
    cluster, site, _ = drawn()
    found = dependence(cluster, site + 1, 6)
    assert not found.site_clusters
    assert not found.closed_sites


def test_all_samples_in_one_cluster_say_nothing() -> None:
    _, site, _ = drawn()
    found = dependence(np.zeros(400, dtype=int), site, 3)
    assert found.nmi == 0
    assert not found.site_clusters


def test_more_clusters_than_samples() -> None:
    found = dependence(np.array([5, 9, 0]), np.array([0, 1, 1]), 12)
    assert not found.site_clusters


@pytest.mark.parametrize("sites", [1, MAX_CELLS])
def test_one_site_or_too_many_to_count(sites: int) -> None:
    cluster, _, rng = drawn()
    site = np.arange(400) % sites
    assert site_dependence(cluster, site, 4, sites, rng) is None
