"""Clusters that are one kind at two groups of sites are told from kinds that live at different sites."""

import numpy as np
import pytest

from shoal.methods.scores.twins import twin_clusters

KINDS = 4
SITES = 6


def drawn(seed: int, *, moved: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, clusters and sites: kind 0 is in two clusters, by an offset of sites 3 to 5 or as two true kinds."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, KINDS, 600)
    site = rng.integers(0, SITES, 600)
    offset = np.where(site >= 3, 1.0, 0.0)[:, None] * rng.normal(size=8)
    alone = (kind == 0) & (site >= 3)
    x = 4 * rng.normal(size=(KINDS, 8))[kind] + 0.3 * rng.normal(size=(600, 8))
    x += offset if moved else offset * alone[:, None]
    return x, np.where(alone, KINDS, kind), site


@pytest.mark.parametrize("seed", range(5))
def test_one_kind_under_an_offset_is_a_pair(seed: int) -> None:
    x, cluster, site = drawn(seed, moved=True)
    assert twin_clusters(x, cluster, site, KINDS + 1) == ((0, KINDS),)


@pytest.mark.parametrize("seed", range(5))
def test_two_kinds_at_two_groups_of_sites_are_no_pair(seed: int) -> None:
    x, cluster, site = drawn(seed, moved=False)
    assert twin_clusters(x, cluster, site, KINDS + 1) == ()


def test_sites_of_one_kind_each_tell_nothing() -> None:
    x, _, site = drawn(0, moved=True)
    assert twin_clusters(x, site, site, SITES) == ()
