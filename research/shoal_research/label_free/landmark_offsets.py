"""Offsets of sites before landmarks are placed: a prototype on pooled samples of the tuning sets of images.

    python -m shoal_research.label_free.landmark_offsets        # an hour on a core; needs the packaged encoder

Landmarks are clustered by their place in the spectral space. A site's offset is the mean difference of its vectors from
the centre of the cluster of their nearest landmark; it is taken off, and landmarks are placed once more. In a
federation the server would send landmarks with these centres, and sites what they send now, twice. The rule and its
result are in docs/representations.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from shoal.methods.auto import LANDMARKS, LAYERS
from shoal.methods.clustering.federated_k_means import nearest
from shoal.methods.clustering.k_means import kmeans
from shoal.methods.features.offsets import enough_samples
from shoal.methods.features.spectral import (
    affinity_sums,
    in_spectral_space,
    landmark_count,
    set_count,
    spectral_projection,
)
from shoal.methods.scores.clustering import accuracy
from shoal.models.frozen import frozen_encoder
from shoal_research.label_free.calibrate import (
    CLIENTS,
    FILE,
    SAMPLES_PER_LANDMARK,
    STATE_STARTS,
    by_landmarks,
    directions_of,
    unit,
)
from shoal_research.label_free.sites import DEALINGS, lit, moved
from shoal_research.label_free.tuning_sets import IMAGES

RESULTS = FILE.with_name("label_free_landmark_offsets.json")
MAX_SAMPLES = 400
STATES = 4
DIGITS = 3


@torch.no_grad()
def layers_of(images: np.ndarray) -> np.ndarray:
    """Return what the encoder's layers make of images, (n, d)."""
    x = torch.from_numpy(images[..., None] if images.ndim == 3 else images).permute(0, 3, 1, 2).float() / 255
    network = frozen_encoder(LAYERS)
    features: np.ndarray = torch.cat([network(part) for part in x.split(64)]).double().numpy()
    return features


def offsets(x: np.ndarray, site: np.ndarray, clusters: int, rng: np.random.Generator) -> np.ndarray:
    """Return the offset of each site (s, d) among vectors (n, d) of length 1; 0 of one with few samples."""
    count = min(landmark_count(LANDMARKS, clusters), len(x) // SAMPLES_PER_LANDMARK)
    landmarks = torch.stack(
        [torch.from_numpy(kmeans(x, count, rng, starts=1).centres) for _ in range(set_count(count))]
    )
    z = torch.from_numpy(x)
    ties = affinity_sums(z, landmarks, min_points=1)
    projections = torch.stack([spectral_projection(of_set, clusters) for of_set in ties])
    whole = landmarks.flatten(0, 1)
    weights = ties.sum(2).flatten().clamp_min(1e-9).numpy()
    places = in_spectral_space(whole, landmarks, projections).numpy()
    group = kmeans(places, clusters, rng, starts=STATE_STARTS, weights=weights).cluster
    centres = np.array([np.average(whole.numpy()[group == k], 0, weights=weights[group == k]) for k in range(clusters)])
    residuals = x - centres[group[nearest(z, whole[None])[0][0].numpy()]]
    return np.array(
        [
            residuals[site == number].mean(0) * enough_samples((site == number).sum(), clusters)
            if (site == number).any()
            else np.zeros(x.shape[1])
            for number in range(CLIENTS)
        ]
    )


def scores(layers: np.ndarray, site: np.ndarray, y: np.ndarray) -> list[float]:
    """Return the ACC by landmarks, as it is and with offsets taken off before."""
    clusters = len(np.unique(y))
    x = directions_of(layers)
    pairs = []
    for state in range(STATES):
        less = unit(x - offsets(x, site, clusters, np.random.default_rng(100 + state))[site])
        both = [by_landmarks(space, clusters, np.random.default_rng(state)) for space in (x, less)]
        pairs.append([accuracy(y, cluster) for cluster in both])
    return [round(float(value), DIGITS) for value in np.mean(pairs, 0)]


def cases(name: str) -> dict[str, list[float]]:
    """Return `scores` of a set by dealing and what sites differ by."""
    x, y = (np.asarray(part) for part in IMAGES[name]())
    order = np.random.default_rng(0).permutation(len(y))[:MAX_SAMPLES]
    x = x[order]
    y = np.unique(y[order], return_inverse=True)[1]
    layers = layers_of(x)
    measured = {}
    for dealing, deal in DEALINGS.items():
        rng = np.random.default_rng(0)
        site = deal(y, rng)
        measured[dealing] = scores(layers, site, y)
        measured[f"{dealing}, offsets"] = scores(moved(layers, site, rng), site, y)
        if dealing == "even":
            measured["even, light"] = scores(layers_of(lit(x, site, rng)), site, y)
    return measured


def measure(names: Sequence[str]) -> None:
    """Measure the named sets that the file does not hold, and write the file after each."""
    kept: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in names:
        if name not in kept:
            kept[name] = cases(name)
            RESULTS.write_text(json.dumps(kept).replace("}, ", "},\n") + "\n")
            print(name, kept[name], file=sys.stderr, flush=True)


if __name__ == "__main__":
    with threadpool_limits(1):
        measure(sys.argv[1:] or list(IMAGES))
