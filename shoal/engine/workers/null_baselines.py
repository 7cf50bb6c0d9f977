"""The null baselines with which a run's clusters are compared, on samples that all runs on a set share.

Features of the pretrained encoder are kept beside the prepared sets (`ENCODED`), named by the digest of samples and
encoder, so that they are computed once for all runs on a set.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.core.streams import Streams, stream_seed
from shoal.data.views.augment import normalise
from shoal.engine.store.codec import StoreError, load_tensors, save_tensors, tensors_digest
from shoal.engine.store.opened_run import OpenedRun
from shoal.methods.auto import ENCODER
from shoal.methods.contract.base import Evaluation, Method
from shoal.methods.contract.prediction import Assignment
from shoal.methods.features.space import group_variance
from shoal.methods.scores.baselines import (
    CENTRED,
    MAX_SAMPLES,
    MAX_SIDE,
    Comparison,
    compare_clusters,
    features_accuracy,
    side_by_side,
)
from shoal.methods.scores.client_scores import ClientScores, client_scores
from shoal.methods.scores.clustering import label_table
from shoal.methods.scores.evaluation import samples_at, true_labels
from shoal.methods.scores.probe import probe_of
from shoal.methods.scores.twins import twin_clusters
from shoal.methods.training.local import seeded_build
from shoal.models import frozen
from shoal.models.encoders import ENCODERS, build_encoder
from shoal.models.frozen import PRETRAINED, frozen_encoder, is_installed

ENCODED = "encoded"
"""The folder of encoded samples, beside the folders of sets in the store."""
ENCODED_VARIABLE = "SHOAL_ENCODED"
"""Environment variable with another path of that folder."""
MAX_KEPT = 20
"""Most files in that folder; the least recently used file is removed first."""
UNTRAINED = "untrained"
IMAGES_AT_ONCE = 32
"""Number of images in a batch of an encoder."""
PURPOSE = "null baselines"
MAX_SPREAD_RATIO = 5
"""Ratio of the largest to the median standard deviation of columns from which they are standardised."""


def null_comparison(opened: OpenedRun, evaluation: Evaluation, assignment: Assignment) -> Comparison | None:
    """Return a run's clusters beside null baselines.

    Args:
        opened: the run.
        evaluation: the samples.
        assignment: their clusters.

    Returns:
        The comparison; None for text, which has no such baselines, and for fewer than two samples.
    """
    count = len(assignment.cluster)
    if opened.prepared.spec.kind == "text" or count < 2:
        return None
    # The same samples for all runs on a set, whatever their seeds: baselines are encoded once, and can be compared.
    streams = Streams(0)
    order = streams.numpy(PURPOSE).permutation(count)
    rows = torch.from_numpy(np.sort(order[:MAX_SAMPLES]))
    spaces = null_spaces(opened, evaluation, rows)
    truth = true_labels(evaluation)
    labels = None
    if truth is not None:
        labels = truth[rows[rows < len(truth)].to(truth.device)].cpu().numpy()
    cluster = assignment.cluster[rows].numpy()
    features = assignment.feature_rows[rows.numpy()]
    site = site_of_rows(opened, rows.numpy())
    said = []
    for client in np.unique(site):
        here = np.flatnonzero(site == client)
        known = None if labels is None else labels[here[here < len(labels)]]
        parts = {name: x[here] for name, x in spaces.items()}
        said.append(said_of_client(opened, client, cluster[here], assignment.clusters, features[here], parts, known))
    judge = judging_space(spaces, site if assignment.less_sites else None)
    widths = opened.prepared.spec.column_widths
    comparison = compare_clusters(cluster, assignment.clusters, spaces, judge, labels, said, streams, widths)
    held = site < opened.partition.clients
    # A run's own features may hide what sites differ by, and the judging space may bend it.
    pairs = {
        p for x in (features, judge[1]) for p in twin_clusters(x[held], cluster[held], site[held], assignment.clusters)
    }
    comparison = replace(comparison, twins=tuple(sorted(pairs)))
    if labels is None or len(labels) < len(rows):
        return comparison
    if learns_features(opened.method):
        return with_probes(comparison, features, spaces, labels, int((rows < len(evaluation.train)).sum()))
    if opened.method.judges_features and assignment.centres is None:
        return replace(comparison, features_acc=features_accuracy(features, assignment.clusters, labels, streams))
    return comparison


def learns_features(method: Method) -> bool:
    """Return whether the purpose of a method is features and not clusters."""
    has_clusters = method.finds_clusters or type(method).assignment is not Method.assignment
    return method.judges_features and not has_clusters


def with_probes(
    comparison: Comparison, features: np.ndarray, spaces: dict[str, np.ndarray], labels: np.ndarray, trained: int
) -> Comparison:
    """Return a comparison with linear probes on a run's features and on those of the baselines.

    Args:
        comparison: without probes.
        features: features of the run, (n, d).
        spaces: features of the baselines, (n, d) each, by name.
        labels: int (n,).
        trained: number of training samples, which come first. If there are no others, a fifth of them tests the probes.
    """
    count = len(labels)
    seed = stream_seed(0, PURPOSE)
    order = np.arange(count)
    if trained in (0, count):
        order = np.random.default_rng(seed).permutation(count)
        trained = count * 4 // 5
    train_rows = np.sort(order[:trained])
    test_rows = np.sort(order[trained:])
    probes = {
        name: probe_of(x, train_rows, test_rows, labels, seed)
        for name, x in {"": features, **spaces}.items()
        if name not in PRETRAINED
    }
    baselines = {name: value for name, value in probes.items() if name and value is not None}
    return replace(comparison, probe=probes[""], baseline_probes=baselines)


def said_of_client(
    opened: OpenedRun,
    client: int,
    cluster: np.ndarray,
    clusters: int,
    features: np.ndarray,
    spaces: dict[str, np.ndarray],
    labels: np.ndarray | None,
) -> ClientScores:
    """Return what a client says of its samples; those of the test part, and of an only client, are counted alone.

    Args:
        opened: the run.
        client: its number; the number of clients for the test part.
        cluster: int (n,).
        clusters: how many there are.
        features: of the model, (n, d).
        spaces: features of the baselines, (n, e) each, by name.
        labels: int (m,), of the first m samples; None without labels.
    """
    spec = opened.prepared.spec
    table = label_table(cluster, labels, clusters, spec.classes or 0)
    if client == opened.partition.clients or opened.partition.clients < 2:
        return ClientScores(table)
    if "columns" in spaces:
        spaces = column_spaces(spaces["columns"], spec.column_widths)
    probed = labels if opened.method.judges_features else None
    return client_scores(table, cluster, probed, features, judging_space(spaces)[1], Streams(0, 0, client))


def site_of_rows(opened: OpenedRun, rows: np.ndarray) -> np.ndarray:
    """Return the site of some samples, which is their client, int (n,); test samples count as one more site.

    Args:
        opened: the run.
        rows: positions among training then test samples, int64 (n,).
    """
    data, partition = opened.judged_here
    clients = partition.client[np.argsort(partition.sample, kind="stable")]  # in the order of the set
    site: np.ndarray = np.append(clients, np.full(len(data.test_x), partition.clients))[rows]
    return site


def judging_space(spaces: dict[str, np.ndarray], site: np.ndarray | None = None) -> tuple[str, np.ndarray]:
    """Return the name and the features of the space in which neighbours are found.

    Of all spaces it most often ranks clusterings as labels do (docs/running.md). For images it is the pixels and the
    pretrained encoder's features side by side, for vectors the columns, standardised if some vary much more.

    Args:
        spaces: features of the baselines, by name.
        site: site of each sample, int (n,), whose mean is subtracted; None: nothing is subtracted.
    """
    if site is not None:
        name, features = judging_space({name: less_site_means(x, site) for name, x in spaces.items()})
        return f"{name}{CENTRED}", features
    if ENCODER in spaces:
        return "joint", side_by_side(spaces["pixels"], spaces[ENCODER])
    if "pixels" in spaces:
        return "pixels", spaces["pixels"]
    spread = spaces["columns"].std(0, dtype=np.float64)
    spread = spread[spread > 0]
    name = "columns"
    if len(spread) and spread.max() >= MAX_SPREAD_RATIO * np.median(spread):
        name = "standardised"
    return name, spaces[name]


def less_site_means(x: np.ndarray, site: np.ndarray) -> np.ndarray:
    """Return features less the mean of their site.

    Args:
        x: features (n, d).
        site: site of each sample, int (n,).
    """
    centred = np.array(x)
    for each in np.unique(site):
        own = site == each
        centred[own] -= x[own].mean(0)
    return centred


def null_spaces(opened: OpenedRun, evaluation: Evaluation, rows: Tensor) -> dict[str, np.ndarray]:
    """Return the features of some samples in which K-means is a baseline, float32 (n, d) each, by name.

    Args:
        opened: the run.
        evaluation: the samples.
        rows: positions among training then test samples, ascending, int64 (n,).
    """
    x = samples_at(evaluation, rows)
    if opened.prepared.spec.kind != "image":
        return column_spaces(x.flatten(1).float().cpu().numpy(), opened.prepared.spec.column_widths)
    spaces = {"pixels": pixels(x)}
    if opened.settings.model.encoder in ENCODERS:
        seed = stream_seed(opened.settings.seed, PURPOSE)
        encoder = seeded_build(lambda: build_encoder(opened.settings.model.encoder, x.shape[1:]), seed)
        encoder = encoder.to(opened.device).eval()
        spaces[UNTRAINED] = encoded(lambda part: encoder(normalise(part)), x)
    if is_installed(ENCODER):
        spaces[ENCODER] = pretrained_features(opened, x)
    return spaces


def column_spaces(columns: np.ndarray, widths: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return columns (n, d) as they are, and standardised, by name; `widths` as of `DataSpec.column_widths`."""
    variance = torch.from_numpy(columns.var(0, dtype=np.float64))
    spread = group_variance(variance, widths).sqrt().numpy()
    standardised = (columns - columns.mean(0, dtype=np.float64)) / np.where(spread > 0, spread, 1)
    return {"columns": columns, "standardised": standardised.astype(np.float32)}


def pixels(x: Tensor) -> np.ndarray:
    """Return images (n, channels, height, width) as rows, averaged to at most `MAX_SIDE` pixels a side."""
    sides = tuple(min(MAX_SIDE, length) for length in x.shape[2:])
    if sides != tuple(x.shape[2:]):
        x = F.adaptive_avg_pool2d(x, sides)  # type: ignore[arg-type]
    rows: np.ndarray = x.flatten(1).cpu().numpy()
    return rows


@torch.no_grad()
def encoded(encode: Callable[[Tensor], Tensor], x: Tensor) -> np.ndarray:
    """Return an encoder's features of images, float32 (n, d)."""
    features: np.ndarray = torch.cat([encode(part).float() for part in x.split(IMAGES_AT_ONCE)]).cpu().numpy()
    return features


def pretrained_features(opened: OpenedRun, x: Tensor) -> np.ndarray:
    """Return the pretrained encoder's features of samples x: kept ones, or new ones."""
    path = encoded_file(opened, x)
    try:
        tensors, digest = load_tensors(path)
        if digest != tensors_digest(tensors):
            raise StoreError(f"{path} is damaged")
        kept: np.ndarray = tensors["features"].numpy()
        path.touch()
    except (StoreError, KeyError, OSError):
        encoder = frozen_encoder(ENCODER).to(opened.device)
        kept = encoded(encoder, x)
        keep(path, kept)
    return kept


def encoded_file(opened: OpenedRun, x: Tensor) -> Path:
    """Return the file for the features of images x, named by the images, the encoder, its code and the device."""
    content = hashlib.sha256(np.ascontiguousarray(x.cpu().numpy()).tobytes())
    content.update(f"{tuple(x.shape)} {PRETRAINED[ENCODER].sha256} {opened.device.type}".encode())
    content.update(Path(frozen.__file__).read_bytes())
    folder = os.environ.get(ENCODED_VARIABLE) or opened.prepared.folder.parent.parent / ENCODED
    return Path(folder) / f"{content.hexdigest()[:32]}.safetensors"


def keep(path: Path, features: np.ndarray) -> None:
    """Write features to a file if possible; otherwise they are computed again next time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {"features": torch.from_numpy(features)}
        save_tensors(path, tensors, tensors_digest(tensors), sync=False)
        kept = sorted(path.parent.glob("*.safetensors"), key=lambda each: each.stat().st_mtime)
        for old in kept[:-MAX_KEPT]:
            old.unlink(missing_ok=True)
    except (StoreError, OSError):
        return
