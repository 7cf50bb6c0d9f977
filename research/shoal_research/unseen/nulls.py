"""Null baselines of a set, pooled and with scikit-learn: what a default must at least reach.

K-means has 10 starts. One draw of it is the baseline of the rule that was fixed first; how far such a draw scatters is
measured by repeats with other random states.
"""

from __future__ import annotations

import functools
import statistics
import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from shoal.core.streams import Streams, stream_seed
from shoal.data.sets.prepared import PreparedSet, open_prepared
from shoal.data.views.augment import normalise
from shoal.methods.contract.context import ModelSettings
from shoal.methods.scores.clustering import accuracy
from shoal.methods.training.local import seeded_build
from shoal.models.encoders import build_encoder
from shoal.models.frozen import frozen_encoder

SEED = 0
STARTS = 10
REPEATS = 15
"""Further draws of each K-means baseline, each with its own random state."""
RANDOM_LABELLINGS = 20
BATCH = 64
FROZEN = "efficientnet-lite0"
RAW = "null_raw"
STANDARDISED = "null_standardised"
UNTRAINED = "null_untrained"
PRETRAINED = "null_frozen"
RANDOM = "null_random"
"""Names of the baselines; the two encoders are for images only."""
MEAN = "_mean"
"""The end of the name of the mean over the repeats of a K-means baseline."""


@functools.cache
def nulls_of(folder: Path, clusters: int) -> dict[str, float]:
    """Return the null baselines of a prepared set, computed once in a process."""
    return nulls(open_prepared(folder), clusters)


def nulls(prepared: PreparedSet, clusters: int) -> dict[str, float]:
    """Return the ACC of each null baseline by name, and the mean over repeats of those by K-means.

    `best_null` is the highest one, with single draws of K-means, and `best_null_mean` the highest mean.

    Args:
        prepared: the set, with labels.
        clusters: of K-means.

    Raises:
        EncoderError: the frozen encoder is not installed.
    """
    assert prepared.train_y is not None, "the sets of this study have labels"
    truth = np.asarray(prepared.train_y)
    draws = {RANDOM: random_accuracy(truth)}
    means = {}
    for name, x in feature_spaces(prepared).items():
        first, *repeats = (accuracy(truth, k_means(x, clusters, repeat)) for repeat in range(REPEATS + 1))
        draws[name] = first
        means[name + MEAN] = statistics.fmean(repeats)
    best = {"best_null": max(draws.values()), "best_null_mean": max(draws[RANDOM], *means.values())}
    return draws | means | best


def feature_spaces(prepared: PreparedSet) -> dict[str, np.ndarray]:
    """Return what K-means clusters, float64 (n, d), by the name of the baseline."""
    samples = np.asarray(prepared.train_x)
    raw = samples.reshape(len(samples), -1).astype(np.float64)
    spaces = {RAW: raw, STANDARDISED: StandardScaler().fit_transform(raw)}
    if prepared.spec.kind == "image":
        images = torch.from_numpy(samples.astype(np.float32)) / 255
        spaces[UNTRAINED] = encoded(untrained_encoder(prepared.spec.shape), normalise(images))
        spaces[PRETRAINED] = encoded(frozen_encoder(FROZEN), images)
    return spaces


def k_means(x: np.ndarray, clusters: int, repeat: int = 0) -> np.ndarray:
    """Return the cluster of each row of x (n, d), int (n,); each repeat has its own random state."""
    state = stream_seed(SEED, "unseen null baselines", round=repeat) % 2**32
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than clusters: still a baseline
        cluster: np.ndarray = KMeans(clusters, n_init=STARTS, random_state=state).fit_predict(x)
    return cluster


def random_accuracy(truth: np.ndarray) -> float:
    """Return the mean ACC of random labels with the same sizes as the classes: chance."""
    generator = Streams(SEED).numpy("unseen random labels")
    return float(np.mean([accuracy(truth, generator.permutation(truth)) for _ in range(RANDOM_LABELLINGS)]))


def untrained_encoder(shape: tuple[int, ...]) -> nn.Module:
    """Return the default encoder with its initial weights."""
    seed = stream_seed(SEED, "unseen untrained encoder")
    encoder: nn.Module = seeded_build(lambda: build_encoder(ModelSettings().encoder, shape), seed)
    return encoder.eval()


@torch.no_grad()
def encoded(encoder: nn.Module, images: Tensor) -> np.ndarray:
    """Return the features of images (n, channels, height, width), float64 (n, features)."""
    return np.concatenate([encoder(part).numpy() for part in images.split(BATCH)]).astype(np.float64)
