"""Cluster the tuning sets in several spaces, and keep the figures that the rules of auto are judged by.

Symbols in shapes: n samples, d features.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.preprocessing import normalize
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

import shoal_research
from shoal.lifecycle.choosing import ENCODER_COMPONENTS, ENCODER_WHITENING
from shoal.methods.auto import COMPONENTS as LANDMARK_COMPONENTS
from shoal.methods.auto import LANDMARKS, LAYERS
from shoal.methods.clustering.client_samples import ClientSamples, Search, project
from shoal.methods.clustering.cluster_number import find_cluster_number
from shoal.methods.clustering.k_means import kmeans
from shoal.methods.features.landmark_number import landmark_half
from shoal.methods.features.spectral import (
    affinity_sums,
    in_spectral_space,
    landmark_count,
    set_count,
    spectral_projection,
)
from shoal.methods.scores.clustering import accuracy
from shoal.methods.scores.own_neighbours import space_agreement
from shoal.models.efficientnet_lite import FEATURES
from shoal.models.encoders import SmallConv
from shoal.models.frozen import frozen_encoder, layer_widths_of
from shoal_research.label_free.drawn_images import Set
from shoal_research.label_free.tuning_sets import IMAGES, TABLES

FILE = Path(shoal_research.__file__).resolve().parent / "results" / "label_free.json"
COMPONENTS = 100
"""Principal components of each space that are kept: K-means and neighbours hardly change by the others."""
STARTS = 5
STATES = 8
STATE_STARTS = 10
"""K-means by landmarks is compared over so many random states, with K-means of so many starts each."""
NUMBER_STATES = 3
"""The number of clusters is sought among so many draws."""
SAMPLES_PER_LANDMARK = 3
CLIENTS = 6
BETA = 0.1
MIN_CLUSTERS = 10
MAX_COMPARED = 1_000
DIGITS = 4


def even_variance(x: np.ndarray) -> np.ndarray:
    """Return vectors (n, d), centred, whose variances add up to 1."""
    centred = x - x.mean(0)
    found: np.ndarray = centred / np.sqrt((centred**2).sum() / len(x))
    return found


def components(x: np.ndarray, count: int = COMPONENTS, whitening: float = 0.0) -> np.ndarray:
    """Return the first principal components, of variance v^(1 - whitening)."""
    model = PCA(min(count, *x.shape), svd_solver="randomized", random_state=0).fit(x)
    scale = np.maximum(model.explained_variance_, 1e-12) ** (-whitening / 2)
    found: np.ndarray = model.transform(x) * scale
    return found


@torch.no_grad()
def encodings(images: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return pixels, features of the frozen encoder's layers and of an untrained network, float64 (n, d) each."""
    whole = images[..., None] if images.ndim == 3 else images
    x = torch.from_numpy(np.ascontiguousarray(whole.transpose(0, 3, 1, 2))).float() / 255
    frozen = frozen_encoder(LAYERS)
    features = torch.cat([frozen(part) for part in x.split(64)])
    torch.manual_seed(0)
    network = SmallConv(tuple(x.shape[1:]))
    network.train()(x)  # statistics of BatchNorm
    untrained = network.eval()(x)
    return x.flatten(1).double().numpy(), features.double().numpy(), untrained.double().numpy()


def shared_out(y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the client of each sample, int (n,): each class goes to clients in Dirichlet(`BETA`) proportions."""
    client = np.zeros(len(y), dtype=int)
    for label in np.unique(y):
        rows = rng.permutation(np.nonzero(y == label)[0])
        ends = np.cumsum(rng.dirichlet([BETA] * CLIENTS))[:-1] * len(rows)
        client[rows] = np.searchsorted(ends, np.arange(len(rows)), side="right")
    return client


def dealt(x: np.ndarray, y: np.ndarray, seed: int) -> ClientSamples:
    """Return at most `MAX_COMPARED` samples x (n, d) of classes y (n,), dealt to uneven clients."""
    rng = np.random.default_rng(seed)
    drawn = rng.permutation(len(x))[:MAX_COMPARED]
    client = shared_out(y[drawn], rng)
    order = np.argsort(client, kind="stable")
    return ClientSamples(torch.from_numpy(x[drawn[order]]), torch.from_numpy(client[order]), CLIENTS)


def federated_agreement(x: np.ndarray, y: np.ndarray) -> float:
    """Return what `method.name: auto` measures of a space where clients are uneven."""
    return round(space_agreement(dealt(x, y, 2), max(MIN_CLUSTERS, len(np.unique(y))), 0), DIGITS)


def accuracies(spaces: Mapping[str, np.ndarray], y: np.ndarray) -> dict[str, dict[str, float]]:
    """Return the ACC of K-means in each space (n, d), with the classes y (n,)."""
    return {name: {"acc": round(k_means_accuracy(x, y, 0, STARTS), DIGITS)} for name, x in spaces.items()}


def k_means_accuracy(x: np.ndarray, y: np.ndarray, state: int | np.random.Generator, starts: int) -> float:
    """Return the ACC of K-means with as many clusters as classes."""
    return accuracy(y, kmeans(x, len(np.unique(y)), np.random.default_rng(state), starts=starts).cluster)


def image_record(images: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Return the figures of one set of images."""
    pixels, layers, untrained = encodings(images)
    encoded = {"pixels": pixels, "encoder": layers[:, :FEATURES], "untrained": untrained}
    spaces = {name: components(x) for name, x in encoded.items()}
    return {
        "pixels": federated_agreement(spaces["pixels"], y),
        "features": federated_agreement(spaces["encoder"], y),
        "spaces": accuracies(spaces, y),
    }


def table_spaces(x: np.ndarray) -> dict[str, np.ndarray]:
    """Return the rows of a table as they are, and its columns that vary with mean 0 and deviation 1."""
    raw = np.asarray(x, dtype=float)
    varying = raw[:, raw.std(0) > 0]
    return {"raw": raw, "standardised": (varying - varying.mean(0)) / varying.std(0)}


def table_record(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Return the figures of one table."""
    spaces = table_spaces(x)
    deviation = spaces["raw"].std(0)
    spread = float(deviation.max() / np.median(deviation[deviation > 0]))
    return {"spread": round(spread, 2), "spaces": accuracies(spaces, y)}


def size_of(y: np.ndarray) -> dict[str, Any]:
    """Return number of samples and classes, and how many times larger the largest class is than the smallest."""
    sizes = np.bincount(y)
    return {"samples": len(y), "classes": len(sizes), "ratio": round(float(sizes.max() / sizes.min()), 1)}


def by_landmarks(x: np.ndarray, clusters: int, rng: np.random.Generator) -> np.ndarray:
    """Return the clusters of K-means by landmarks among pooled samples x (n, d), int (n,)."""
    count = min(landmark_count(LANDMARKS, clusters), len(x) // SAMPLES_PER_LANDMARK)
    sets = [torch.from_numpy(kmeans(x, count, rng, starts=1).centres) for _ in range(set_count(count))]
    landmarks = torch.stack(sets)
    z = torch.from_numpy(x)
    ties = affinity_sums(z, landmarks, min_points=1)
    projections = torch.stack([spectral_projection(each, clusters) for each in ties])
    return kmeans(in_spectral_space(z, landmarks, projections).numpy(), clusters, rng, starts=STATE_STARTS).cluster


def landmark_scores(samples: np.ndarray, space: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Return the mean ACC over random states of K-means, and of K-means by landmarks.

    Args:
        samples: samples (n, d) as K-means takes them.
        space: samples (n, k) among which landmarks are placed.
        y: classes (n,).
    """
    scores = []
    for state in range(STATES):
        rng = np.random.default_rng(state)
        plain = k_means_accuracy(samples, y, rng, STATE_STARTS)
        scores.append((plain, accuracy(y, by_landmarks(space, len(np.unique(y)), rng))))
    means = np.mean(scores, 0).round(DIGITS).tolist()
    return dict(zip(("kmeans", "landmarks"), means, strict=True))


def directions_of(layers: np.ndarray) -> np.ndarray:
    """Return features of the encoder's layers (n, d) in the space in which landmarks are placed, (n, k)."""
    groups = np.split(layers, np.cumsum(layer_widths_of(LAYERS))[:-1], 1)
    balanced = np.hstack([even_variance(group) for group in groups])
    directions: np.ndarray = normalize(components(balanced, LANDMARK_COMPONENTS, 0.5))
    return directions


def landmark_record(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Return what landmarks change, on images in pixels and among features, and on a table."""
    if x.ndim == 2:
        spaces = {name: (rows, rows) for name, rows in table_spaces(x).items()}
    else:
        pixels, layers, _ = encodings(x)
        pixels = components(pixels)
        encoded = (components(layers[:, :FEATURES]), directions_of(layers))
        spaces = {"pixels": (pixels, pixels), "encoder": encoded}
    return {"spaces": {name: landmark_scores(*both, y) for name, both in spaces.items()}}


def number_record(images: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Return the numbers of clusters that are found where clients are uneven, by landmarks and by K-means."""
    layers = encodings(images)[1]
    directions = [dealt(directions_of(layers), y, state) for state in range(NUMBER_STATES)]
    features = [dealt(layers[:, :FEATURES], y, state) for state in range(NUMBER_STATES)]
    return {
        "landmarks": [number_of(samples, state, by_landmarks=True) for state, samples in enumerate(directions)],
        "kmeans": [number_of(samples, state, by_landmarks=False) for state, samples in enumerate(features)],
    }


def number_of(samples: ClientSamples, seed: int, *, by_landmarks: bool) -> int:
    """Return the number of clusters that `model.clusters: auto` finds."""
    if by_landmarks:
        return find_cluster_number(samples, Search(), seed, collect=partial(landmark_half, LANDMARKS)).clusters
    space = project(samples, ENCODER_COMPONENTS, ENCODER_WHITENING, least_points=2)
    return find_cluster_number(space, Search(), seed).clusters


def measure_all(file: Path = FILE) -> None:
    """Measure every set that the file does not hold, and write the file after each."""
    kept: dict[str, Any] = {"images": {}, "tables": {}, "landmarks": {}, "numbers": {}}
    if file.exists():
        kept |= json.loads(file.read_text())
    kinds: tuple[tuple[str, Mapping[str, Callable[[], Set]], Callable[..., dict[str, Any]]], ...] = (
        ("images", IMAGES, image_record),
        ("tables", TABLES, table_record),
        ("landmarks", {**IMAGES, **TABLES}, landmark_record),
        ("numbers", IMAGES, number_record),
    )
    for kind, sets, record in kinds:
        for name in [name for name in sets if name not in kept[kind]]:
            x, y = sets[name]()
            with threadpool_limits(1):
                kept[kind][name] = size_of(y) | record(x, y)
            print(f"{kind}: {name}", file=sys.stderr, flush=True)
            file.write_text(json.dumps(kept, indent=1) + "\n")
