"""Synthetic vectors with known clusters, as in the experiments of UIFCA: Gaussian blobs and linear subspaces."""

from __future__ import annotations

import numpy as np

from shoal.core.errors import DataError
from shoal.core.streams import Streams

_MAX_REDRAWS = 1000


def gaussian_centres(clusters: int, dimension: int, seed: int) -> np.ndarray:
    """Draw `clusters` distinct centres 5 * Bernoulli(0.5)^dimension, float64 (clusters, dimension).

    A repeated centre is drawn again, at most 1,000 times in all.

    Raises:
        DataError: there are more clusters than corners of the cube, or no distinct ones were found.
    """
    if dimension < 63 and clusters > 2**dimension:
        raise DataError(f"{clusters} distinct centres do not fit in {{0, 5}}^{dimension}: raise `dimension`")
    draw = Streams(seed).numpy("gaussian centres")
    centres: dict[bytes, np.ndarray] = {}
    for _ in range(clusters + _MAX_REDRAWS):
        if len(centres) == clusters:
            break
        corner = draw.integers(0, 2, dimension, dtype=np.uint8)
        centres.setdefault(corner.tobytes(), corner)
    if len(centres) < clusters:
        raise DataError(
            f"only {len(centres)} of {clusters} distinct centres were found in {{0, 5}}^{dimension}: raise `dimension`"
        )
    return 5.0 * np.stack(list(centres.values())).astype(np.float64)


def gaussian(
    clusters: int, samples: int, dimension: int, seed: int, *, part: str = "train"
) -> tuple[np.ndarray, np.ndarray]:
    """Draw points around the centres with unit variance.

    Args:
        clusters: number of clusters.
        samples: points per cluster.
        dimension: of the space.
        seed: fixes centres and points.
        part: `train` or `test`; the parts share centres and nothing else.

    Returns:
        points float32 (clusters * samples, dimension), in random order; clusters int64.
    """
    centres = gaussian_centres(clusters, dimension, seed)
    draw = Streams(seed).numpy(f"gaussian {part}")
    y = draw.permutation(np.repeat(np.arange(clusters, dtype=np.int64), samples))
    return (centres[y] + draw.standard_normal((len(y), dimension))).astype(np.float32), y


def subspace_bases(clusters: int, rank: int, dimension: int, seed: int) -> np.ndarray:
    """Draw `clusters` random bases with orthonormal rows, float64 (clusters, rank, dimension).

    Raises:
        DataError: the rank is larger than the dimension.
    """
    if rank > dimension:
        raise DataError(f"a subspace of rank {rank} does not fit in {dimension} dimensions: lower `rank`")
    draw = Streams(seed).numpy("subspace bases")
    # QR of a Gaussian matrix: with continuous draws, two clusters share a subspace with probability zero.
    bases = [np.linalg.qr(draw.standard_normal((dimension, rank)))[0].T for _ in range(clusters)]
    return np.stack(bases)


def subspace(
    clusters: int, samples: int, dimension: int, rank: int, seed: int, *, part: str = "train"
) -> tuple[np.ndarray, np.ndarray]:
    """Draw points of linear subspaces through the origin, with N(0, 1) coefficients.

    Arguments and results are those of `gaussian`; `rank` is the dimension of each subspace.
    """
    bases = subspace_bases(clusters, rank, dimension, seed)
    draw = Streams(seed).numpy(f"subspace {part}")
    y = draw.permutation(np.repeat(np.arange(clusters, dtype=np.int64), samples))
    x = np.empty((len(y), dimension), dtype=np.float32)
    for k, basis in enumerate(bases):
        rows = y == k
        x[rows] = draw.standard_normal((int(rows.sum()), rank)) @ basis
    return x, y
