import numpy as np
import pytest

from shoal.core.errors import DataError
from shoal.data.sets.synthetic import gaussian, gaussian_centres, subspace, subspace_bases


@pytest.mark.parametrize("seed", range(5))
def test_centres_are_distinct_corners(seed):
    centres = gaussian_centres(8, 3, seed)
    assert set(np.unique(centres)) == {0.0, 5.0}
    assert len(np.unique(centres, axis=0)) == 8


def test_too_many_centres():
    with pytest.raises(DataError, match="raise `dimension`"):
        gaussian_centres(9, 3, 0)


def test_gaussian_clusters_have_their_centre_and_unit_variance():
    x, y = gaussian(4, 1000, 32, 0)
    assert x.dtype == np.float32
    assert np.bincount(y).tolist() == [1000] * 4
    centres = gaussian_centres(4, 32, 0)
    for k in range(4):
        assert np.abs(x[y == k].mean(0) - centres[k]).max() < 0.2
        assert np.abs(x[y == k].std(0) - 1).max() < 0.15
    nearest = np.linalg.norm(x[:, None] - centres, axis=2).argmin(1)
    assert (nearest == y).mean() > 0.99


def test_parts_and_seeds_differ():
    train, test, other = gaussian(2, 50, 8, 0)[0], gaussian(2, 50, 8, 0, part="test")[0], gaussian(2, 50, 8, 1)[0]
    assert not np.array_equal(train, test)
    assert not np.array_equal(train, other)
    assert np.array_equal(train, gaussian(2, 50, 8, 0)[0])


def test_subspaces_have_their_rank_and_differ():
    x, y = subspace(3, 200, 32, 16, 0)
    bases = subspace_bases(3, 16, 32, 0)
    for k in range(3):
        assert np.allclose(bases[k] @ bases[k].T, np.eye(16))
        assert np.linalg.matrix_rank(x[y == k], tol=1e-3) == 16
        residue = x[y == k] - x[y == k] @ bases[k].T @ bases[k]
        assert np.abs(residue).max() < 1e-4
    assert np.linalg.matrix_rank(np.concatenate(bases[:2])) == 32
    with pytest.raises(DataError, match="lower `rank`"):
        subspace(2, 10, 8, 9, 0)
