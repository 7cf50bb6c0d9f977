"""Null baselines of a set, pooled and with scikit-learn: what a default must at least reach.

K-means has 10 starts. A baseline is computed once for a set, and kept beside the study's result.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from shoal.core.streams import Streams, stream_seed
from shoal.data.augment import normalise
from shoal.data.prepared import Prepared
from shoal.engine.store.codec import read_json, write_json
from shoal.methods.contract.context import ModelSettings
from shoal.methods.scores.clustering import accuracy
from shoal.methods.training.local import seeded_build
from shoal.models.encoders import build_encoder
from shoal.models.frozen import frozen_encoder

SEED = 0
STARTS = 10
RANDOM_LABELLINGS = 20
BATCH = 64
FROZEN = "efficientnet-lite0"
RAW = "null_raw"
STANDARDISED = "null_standardised"
UNTRAINED = "null_untrained"
PRETRAINED = "null_frozen"
RANDOM = "null_random"
"""Names of the baselines; the two encoders are for images only."""


def kept_nulls(prepared: Prepared, clusters: int, folder: Path) -> dict[str, float]:
    """Return the ACC of each null baseline by name, computed where the folder has no file of it.

    Args:
        prepared: the set, with labels.
        clusters: of K-means.
        folder: of files with baselines, named after the digest of the set.

    Raises:
        EncoderError: the frozen encoder is not installed.
    """
    file = folder / f"{prepared.manifest.name}-{prepared.manifest.digest[:16]}-{clusters}.json"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(file, nulls(prepared, clusters))
    found: dict[str, float] = read_json(file)
    return found


def nulls(prepared: Prepared, clusters: int) -> dict[str, float]:
    """Return the ACC of each null baseline by name; arguments as of `kept_nulls`."""
    assert prepared.train_y is not None, "the sets of this study have labels"
    truth = np.asarray(prepared.train_y)
    samples = np.asarray(prepared.train_x)
    raw = samples.reshape(len(samples), -1).astype(np.float64)
    features = {RAW: raw, STANDARDISED: StandardScaler().fit_transform(raw)}
    if prepared.spec.kind == "image":
        images = torch.from_numpy(samples.astype(np.float32)) / 255
        features[UNTRAINED] = encoded(untrained_encoder(prepared.spec.shape), normalise(images))
        features[PRETRAINED] = encoded(frozen_encoder(FROZEN), images)
    found = {name: accuracy(truth, k_means(x, clusters)) for name, x in features.items()}
    return found | {RANDOM: random_accuracy(truth)}


def k_means(x: np.ndarray, clusters: int) -> np.ndarray:
    """Return the cluster of each row of x (n, d), int (n,)."""
    state = stream_seed(SEED, "unseen null baselines") % 2**32
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than clusters: still a baseline
        found: np.ndarray = KMeans(clusters, n_init=STARTS, random_state=state).fit_predict(x)
    return found


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
