"""What evens out light, counts and phases: ACC with and without, and the figures that the rules of auto decide by.

    python -m shoal_research.label_free.representations    # twenty minutes on a core; needs the packaged encoder

Tuning images are taken as they are, and under a tint and brightness of each client's own; cells under stains.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from shoal.methods.auto import LAYERS
from shoal.methods.clustering.client_samples import ClientSamples
from shoal.methods.clustering.k_means import kmeans
from shoal.methods.clustering.own_neighbours import dependence_on_clients, space_agreement
from shoal.methods.features.representation import even_light, log_spectrum
from shoal.methods.scores.clustering import accuracy
from shoal.methods.scores.no_groups import gain_over_no_groups
from shoal.models.efficientnet_lite import FEATURES
from shoal.models.frozen import frozen_encoder
from shoal_research.label_free.calibrate import (
    CLIENTS,
    FILE,
    MIN_CLUSTERS,
    by_landmarks,
    directions_of,
    shared_out,
    unit,
)
from shoal_research.label_free.drawn_images import Set, classes_of
from shoal_research.label_free.tuning_sets import IMAGES

RESULTS = FILE.with_name("label_free_representations.json")
NAMES = ("shapes, colours", "colours", "strokes", "blobs", "CIFAR-10", "patterns 1")
SAMPLES = 160
STATES = 3
SEEDS = range(3)
STAINS = np.array([[0.55, 0.25, 0.55], [0.35, 0.3, 0.65], [0.7, 0.45, 0.4], [0.3, 0.5, 0.45], [0.5, 0.2, 0.35]])


def cells(seed: int, count: int = 200, side: int = 48) -> Set:
    """Draw cells of six kinds of nucleus: how much stain each pixel takes (n, side, side), and kinds."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 6, count)
    grid = np.mgrid[:side, :side] - side / 2
    rows = grid[0]
    columns = grid[1]
    taken = rng.normal(0, 0.03, (count, side, side))
    for cell, kind in zip(taken, kinds, strict=True):
        turn = rng.uniform(0, 2 * np.pi)
        right, down = rng.normal(0, 2, 2)
        u = (columns - right) * np.cos(turn) + (rows - down) * np.sin(turn)
        v = (rows - down) * np.cos(turn) - (columns - right) * np.sin(turn)
        radius = np.hypot(u, v)
        nucleus = {
            0: radius < 5,
            1: np.minimum(np.hypot(u - 5, v), np.hypot(u + 5, v)) < 3.5,
            2: radius < 11,
            3: np.hypot(u / 8, v / 3) < 1,
            4: np.min([np.hypot(u - x, v - y) for x, y in rng.normal(0, 5.5, (14, 2))], 0) < 1.5,
            5: (radius > 6) & (radius < 10),
        }[int(kind)]
        cell += 0.35 * (np.hypot(u / 15, v / (8 if kind == 3 else 15)) < 1) + 0.6 * nucleus
    return taken, kinds


def stained(taken: np.ndarray, client: np.ndarray) -> np.ndarray:
    """Return colour images, uint8, of cells in the stain of their client."""
    light = 1 - taken[..., None] * STAINS[client % len(STAINS)][:, None, None]
    images: np.ndarray = (255 * light.clip(0, 1)).astype(np.uint8)
    return images


def tinted(images: np.ndarray, client: np.ndarray, seed: int) -> np.ndarray:
    """Return images, uint8, times a tint and plus a brightness of their client's own."""
    rng = np.random.default_rng(seed)
    shape = (CLIENTS, 1, 1) if images.ndim == 3 else (CLIENTS, 1, 1, 3)
    tint, brightness = rng.uniform(0.55, 1, shape), rng.uniform(0, 0.25, shape)
    shifted: np.ndarray = (255 * (images / 255 * tint[client] + brightness[client]).clip(0, 1)).astype(np.uint8)
    return shifted


@torch.no_grad()
def features(images: np.ndarray, *, light: bool) -> np.ndarray:
    """Return what the encoder's layers make of images, as they are or in even light."""
    x = torch.from_numpy(images[..., None] if images.ndim == 3 else images).permute(0, 3, 1, 2).float() / 255
    network = frozen_encoder(LAYERS)
    parts = (even_light(x) if light else x).split(64)
    return torch.cat([network(part) for part in parts]).double().numpy()


def scored(layers: np.ndarray, y: np.ndarray, client: np.ndarray) -> dict[str, float | None]:
    """Return ACC by landmarks, and what auto measures of the last layer."""
    order = np.argsort(client, kind="stable")
    last = layers[:, :FEATURES]
    held = ClientSamples(torch.from_numpy(last[order]), torch.from_numpy(client[order]), CLIENTS)
    clusters = len(np.unique(y))
    looked_for = max(MIN_CLUSTERS, clusters)
    space = directions_of(layers)
    found = [accuracy(y, by_landmarks(space, clusters, np.random.default_rng(state))) for state in range(STATES)]
    return {
        "acc": round(float(np.mean(found)), 4),
        "agreement": round(space_agreement(held, looked_for, 0), 4),
        "by_client": round(dependence_on_clients(held, looked_for, 0), 4),
        "groups": gain_over_no_groups(last, looked_for, np.random.default_rng(0)).gain,
    }


def light_record(draw: Callable[[np.ndarray, bool], np.ndarray], y: np.ndarray) -> dict[str, Any]:
    """Return the scores of images that a function draws for clients, with and without shifts, by dealing."""
    rng = np.random.default_rng(3)
    dealt = {"iid": rng.integers(0, CLIENTS, len(y)), "uneven": shared_out(y, rng)}
    record = {}
    for dealing, shift in (("iid", False), ("iid", True), ("uneven", False)):
        images = draw(dealt[dealing], shift)
        for light in (False, True):
            name = f"{dealing}, {'other' if shift else 'one'} light, {'evened' if light else 'as is'}"
            record[name] = scored(features(images, light=light), y, dealt[dealing])
    return record


def words(seed: int, classes: int = 5, columns: int = 300, count: int = 600) -> Set:
    """Draw counts of words in texts of very different lengths about some topics."""
    rng = np.random.default_rng(seed)
    y = classes_of(rng, count, classes, 1)
    share = 0.6 * rng.dirichlet(np.full(columns, 0.3)) + 0.4 * rng.dirichlet(np.full(columns, 0.1), classes)
    length = np.maximum(5, np.round(60 * np.exp(rng.normal(0, 0.8, count)))).astype(int)
    return np.stack([rng.multinomial(length[k], share[y[k]]) for k in range(count)]).astype(float), y


def windows(seed: int, *, in_phase: bool, classes: int = 4, count: int = 600, length: int = 96) -> Set:
    """Draw windows of two channels of waves (n, 2, length), by class of one frequency, from any phase or from one."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, count)
    frequency, size = rng.uniform(2, 14, (classes, 2)), rng.uniform(0.6, 1.6, (classes, 2))
    begin = np.zeros(count) if in_phase else rng.uniform(0, length, count)
    angle = 2 * np.pi * frequency[y][..., None] * (np.arange(length) - begin[:, None, None]) / length
    return size[y][..., None] * np.sin(angle) + rng.normal(0, 0.5, angle.shape), y


def of_spaces(spaces: Mapping[str, np.ndarray], y: np.ndarray) -> dict[str, Any]:
    """Return ACC and gain over samples without groups of K-means in some spaces."""
    clusters = len(np.unique(y))
    record = {}
    for name, x in spaces.items():
        acc = accuracy(y, kmeans(x, clusters, np.random.default_rng(0), starts=5).cluster)
        groups = gain_over_no_groups(x, clusters, np.random.default_rng(0))
        record[name] = {"acc": round(acc, 4), "groups": groups.gain}
    return record


def even_columns(x: np.ndarray) -> np.ndarray:
    """Return rows (n, ...) as vectors whose columns have mean 0 and deviation 1."""
    flat = x.reshape(len(x), -1)
    even: np.ndarray = (flat - flat.mean(0)) / np.maximum(flat.std(0), 1e-12)
    return even


def measure() -> dict[str, Any]:
    """Return all figures, by kind and set."""
    taken, kinds = cells(0)
    found: dict[str, Any] = {
        "light": {"cells": light_record(lambda client, shift: stained(taken, client * shift), kinds)}
    }
    for name in NAMES:
        x, y = (part[:SAMPLES] for part in IMAGES[name]())

        def draw(client: np.ndarray, shift: bool, x: np.ndarray = x, seed: int = len(name)) -> np.ndarray:
            return tinted(x, client, seed) if shift else x

        found["light"][name] = light_record(draw, np.unique(y, return_inverse=True)[1])
    for seed in SEEDS:
        x, y = words(seed)
        spaces = {"as is": x, "standardised": even_columns(x), "counts": unit(np.log1p(x))}
        found.setdefault("words", {})[str(seed)] = of_spaces(spaces, y)
        for in_phase in (False, True):
            x, y = windows(seed, in_phase=in_phase)
            spectra = log_spectrum(torch.from_numpy(x)).flatten(1).double().numpy()
            name = "windows in phase" if in_phase else "windows out of phase"
            found.setdefault(name, {})[str(seed)] = of_spaces({"values": even_columns(x), "spectra": spectra}, y)
    return found


if __name__ == "__main__":
    with threadpool_limits(1):
        RESULTS.write_text(json.dumps(measure(), indent=1) + "\n")
