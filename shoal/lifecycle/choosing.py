"""The number of clusters of a run that asks for `model.clusters: auto`: chosen before the run, kept with the data.

Clusters are sought among the features of a FedSimCLR encoder that the clients train, in a run like any other that can
be resumed and is used again; or among the samples as they are. `shoal.methods.clustering.cluster_number` finds the
number: what clients would send for it is added up client by client, and the server's part sees nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.core.streams import Streams
from shoal.data.partition.table import Partition
from shoal.data.sets.prepared import Prepared
from shoal.data.views.view import DeviceData, client_samples
from shoal.engine.settings.hardware import device_here, resolve_device
from shoal.engine.settings.one_thread import one_thread
from shoal.engine.settings.run_settings import Settings, make_settings
from shoal.engine.store.choice import Choice
from shoal.engine.store.kept_state import read_state_if_any
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.lifecycle.kept_choices import known_choice, write_choice
from shoal.lifecycle.progress import step_bar
from shoal.methods.clustering.client_samples import ClientSamples, Search, project
from shoal.methods.clustering.cluster_number import CollectHalf, choose_number, find_cluster_number
from shoal.methods.contract.context import Context
from shoal.methods.features.feature_clustering import FeatureClustering
from shoal.methods.features.landmark_number import landmark_half
from shoal.methods.features.sampled_space import method_space
from shoal.methods.features.spectral import PLACING_SAMPLES
from shoal.methods.features.vectors import ENCODED_ROWS
from shoal.methods.registry import METHODS
from shoal.methods.ssd.fedsimclr import FedSimCLR, FedSimCLRSettings
from shoal.methods.ssd.fedsimclr_kmeans import FedSimCLRKMeans
from shoal.models.encoders import PIXELS

MAX_SAMPLES = 20_000
"""The largest number of samples that are clustered, about: each client draws its share."""
MAX_FEATURES = 2_000
MAX_CLIENTS = 50
"""The largest number of samples that are encoded or clustered by landmarks, about, and of clients that hold them."""
ENCODER_COMPONENTS = 32
ENCODER_WHITENING = 0.5
"""Principal components of a frozen encoder's features, in which clusters are sought, and how far they are whitened."""
SAMPLE_COMPONENTS = 16
"""Principal components of samples as they are, among which clusters are sought."""
FEATURE_COMPONENTS = 16
"""Principal components of a trained encoder's features, among which clusters are sought."""
FEATURE_WHITENING = 1.0
"""How far these are whitened, from 0 to 1 (docs/number-of-clusters.md)."""
ROWS = 512
"""Samples in one pass of the encoder."""
Train = Callable[[Settings, Path], RunFolder]
"""Returns a finished run of some settings on the partition in a folder."""


def trains_encoder(settings: Settings, prepared: Prepared) -> bool:
    """Return whether clusters are sought among the features of an encoder that is trained for that."""
    return prepared.manifest.kind in ("image", "series") and METHODS[settings.method.name].trains


def known_number(settings: Settings) -> Choice | None:
    """Return the choice that was made for these settings before, or None where today's rule would choose another."""
    found = known_choice(Choice, settings)
    if found is None:
        return None
    return found if (found.clusters, found.rule) == choose_number(found.curve) else None


def choose_clusters(settings: Settings, prepared: Prepared, partition: Path, table: Partition, train: Train) -> Choice:
    """Return the number of clusters for settings that leave it open, and how it was chosen.

    Args:
        settings: with `model.clusters` auto, and a scheme of partitions.
        prepared, partition, table: the data set, the folder of its partition, and that partition.
        train: gives the run that trains the encoder, if clusters are sought among its features.

    Raises:
        MethodError: too few samples for `choose.max_clusters`, or features that are all the same.
        ShoalError: the encoder could not be trained.
    """
    earlier = known_number(settings)
    if earlier is not None and earlier.partition_digest == table.digest:
        return earlier
    choose = settings.choose
    run = None
    if trains_encoder(settings, prepared):
        run = train(encoder_settings(settings), partition)
    search = Search(choose.min_clusters, choose.max_clusters)
    with one_thread(), step_bar("number of clusters") as watch:
        collect: CollectHalf | None = None
        projected = partial(project, least_points=search.least_points)
        if run is not None:
            samples = projected(encoder_features(run, table, settings.seed), *components_of(settings), unit=True)
        elif clusters_features(settings):
            samples, collect = features_to_cluster(settings, prepared, table)
        else:
            samples = projected(raw_samples(prepared, table, settings.seed), SAMPLE_COMPONENTS, 0.0, unit=False)
        found = find_cluster_number(samples, search, settings.seed, watch, collect)
    choice = Choice(
        clusters=found.clusters,
        rule=found.rule,
        min_clusters=choose.min_clusters,
        max_clusters=choose.max_clusters,
        repeats=search.repeats,
        seed=settings.seed,
        features=name_of_features(settings, prepared, run),
        features_run=None if run is None else run.name,
        samples=len(samples.x),
        curve=found.tried,
        data_digest=prepared.manifest.digest,
        partition_digest=table.digest,
        settings_sha256=settings.digest(),
    )
    write_choice(settings, choice)
    return choice


def clusters_features(settings: Settings) -> bool:
    """Return whether the number is sought where the method itself clusters: it clusters features and trains nothing."""
    return issubclass(METHODS[settings.method.name], FeatureClustering)


def is_encoded(settings: Settings, prepared: Prepared) -> bool:
    """Return whether samples are images that a method makes features of."""
    return prepared.manifest.kind == "image" and settings.model.encoder != PIXELS


def name_of_features(settings: Settings, prepared: Prepared, run: RunFolder | None) -> str:
    """Return what was clustered, in a word."""
    if run is not None:
        return FedSimCLR.name
    if clusters_features(settings) and is_encoded(settings, prepared):
        return str(settings.model.encoder)
    return "samples"


def features_to_cluster(
    settings: Settings, prepared: Prepared, table: Partition
) -> tuple[ClientSamples, CollectHalf | None]:
    """Return features in the space in which the method clusters them, and how clusters are sought in a half of them.

    That is by landmarks, where the method has them and most samples are of clients with enough to place some; else by
    K-means, for images among the features of the encoder's last layer.
    """
    device = torch.device(device_here(resolve_device(settings.workers)))
    seed = settings.seed
    context = Context(prepared.spec, settings.largest_model, seed=seed, device=device)
    method = METHODS[settings.method.name](settings.method, context)
    assert isinstance(method, FeatureClustering)
    draw = partial(draw_samples, DeviceData(prepared), table, seed, partial(encoded_in_parts, method))
    landmarks = method.settings.landmarks
    encoded = method.source.encoder is not None
    features = draw(some_clients(table, seed), MAX_FEATURES) if landmarks or encoded else draw()
    counts = torch.bincount(features.client, minlength=features.clients)
    placing = counts[counts >= 2 * PLACING_SAMPLES].sum()
    if landmarks and 2 * placing > len(features.x):
        return method_space(method, features), partial(landmark_half, landmarks)
    projected = partial(project, unit=False, least_points=method.settings.min_points)
    if encoded:
        last = features._replace(x=features.x[:, : method.source.first_layers])
        return projected(last, ENCODER_COMPONENTS, ENCODER_WHITENING), None
    return projected(method_space(method, features), SAMPLE_COMPONENTS, 0.0), None


def some_clients(table: Partition, seed: int) -> Sequence[int]:
    """Return at most `MAX_CLIENTS` clients, drawn at random."""
    order = Streams(seed).numpy("clients for the method").permutation(table.clients)
    return sorted(int(client) for client in order[:MAX_CLIENTS])


def encoded_in_parts(method: FeatureClustering, x: Tensor) -> Tensor:
    """Return what the method clusters, made of samples some at a time."""
    return torch.cat([method.source.of(part).cpu() for part in x.split(ENCODED_ROWS)])


def encoder_settings(settings: Settings) -> Settings:
    """Return the settings of the encoder's run: FedSimCLR with the run's data, clients, network and budget.

    Of a method that is FedSimCLR itself all its settings are kept; of others the epochs, the steps and the batch size.
    """
    kind = METHODS[settings.method.name]
    raw = settings.to_json()
    method: dict[str, Any] = {"name": FedSimCLR.name}
    local = {name: raw["local"][name] for name in ("epochs", "steps", "batch")}
    rounds = settings.rounds
    if issubclass(kind, FedSimCLR):
        method |= {item.name: raw["method"][item.name] for item in fields(FedSimCLRSettings)}
        local = raw["local"]
    if issubclass(kind, FedSimCLRKMeans):
        rounds = max(1, rounds - settings.method.kmeans_rounds)
    same = ("data", "partition", "augment", "participation", "aggregation", "workers", "seed")
    own = {
        "method": method,
        "local": local,
        "rounds": rounds,
        "model": {"encoder": raw["model"]["encoder"]},
        "evaluate": {**raw["evaluate"], "every": rounds},
        "tracking": {**raw["tracking"], "register_as": "none", "model": False},
    }
    return make_settings({**{key: raw[key] for key in same}, **own})


def components_of(settings: Settings) -> tuple[int, float]:
    """Return how many components of features are clustered, and how far they are whitened."""
    own = settings.method
    if issubclass(METHODS[own.name], FedSimCLRKMeans):
        return int(own.components), float(own.whitening)
    return FEATURE_COMPONENTS, FEATURE_WHITENING


def encoder_features(run: RunFolder, table: Partition, seed: int) -> ClientSamples:
    """Return the features that a finished run's encoder finds in the clients' training samples.

    Raises:
        RunError: the run left no readable state.
    """
    opened = OpenedRun(run, device_here(run.lineage().resolved.device))
    checkpoint = read_state_if_any(run)
    if checkpoint is None or not isinstance(opened.method, FedSimCLR):
        raise RunError(
            f"run {run.name} left no encoder to choose the number of clusters with: remove it, then start again"
        )
    return draw_samples(opened.data, table, seed, opened.method.embedder(checkpoint.judged))


def raw_samples(prepared: Prepared, table: Partition, seed: int) -> ClientSamples:
    """Return the clients' training samples as they are, flattened."""
    return draw_samples(DeviceData(prepared), table, seed, lambda x: x.flatten(1))


def draw_samples(
    data: DeviceData,
    table: Partition,
    seed: int,
    embed: Callable[[Tensor], Tensor],
    clients: Sequence[int] | None = None,
    limit: int = MAX_SAMPLES,
) -> ClientSamples:
    """Apply `embed` to training samples of clients, of at most about `limit` in all.

    Args:
        data, table: the set and its partition.
        seed: of the draw.
        embed: samples as `Samples.x` gives them, to vectors.
        clients: whose samples; None: all clients'.
        limit: number of samples.
    """
    parts = []
    owners = []
    count = len(table.sample)
    if clients is None:
        clients = range(table.clients)
    else:
        count = int(table.counts()[list(clients)].sum())
    share = min(1.0, limit / max(1, count))
    for number, client in enumerate(clients):
        own = client_samples(data, table, client)
        rng = Streams(seed, client=client).numpy("samples for the number of clusters")
        kept = np.sort(rng.permutation(len(own))[: int(np.ceil(len(own) * share))])
        for rows in torch.from_numpy(kept).to(data.device).split(ROWS):
            parts.append(embed(own.x(rows)).double().cpu())
        owners.append(torch.full((len(kept),), number))
    return ClientSamples(torch.cat(parts), torch.cat(owners), len(clients))
