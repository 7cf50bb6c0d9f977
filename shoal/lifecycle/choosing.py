"""The number of clusters of a run that asks for `model.clusters: auto`: chosen before the run, kept in its lineage.

Clusters are sought in the space in which the method clusters, if it clusters features; else in that of `fedkmeans`.
`shoal.methods.clustering.cluster_number` finds the number: what clients would send for it is added up client by client,
and the server's part sees nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import DataError, ShoalError
from shoal.core.streams import Streams
from shoal.data.partition.table import Partition
from shoal.data.sets.prepare import is_built_in, resolve, store_folder
from shoal.data.sets.prepared import PreparedSet, read_manifest
from shoal.data.views.view import DeviceData, client_samples
from shoal.engine.settings import places
from shoal.engine.settings.hardware import device_here, resolve_device
from shoal.engine.settings.one_thread import one_thread
from shoal.engine.settings.run_settings import Settings, make_settings
from shoal.engine.store.choice import MIN_STABILITY, Choice
from shoal.engine.store.method_choice import MethodChoice
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.run_order import in_order
from shoal.lifecycle.progress import step_bar
from shoal.methods.auto import ENCODER
from shoal.methods.clustering.client_samples import ClientSamples, Search, project
from shoal.methods.clustering.cluster_number import (
    ClusterNumber,
    CollectHalf,
    TooFewCentres,
    choose_number,
    find_cluster_number,
)
from shoal.methods.contract.context import Context, MethodError
from shoal.methods.features.feature_clustering import FeatureClustering
from shoal.methods.features.landmark_number import landmark_half
from shoal.methods.features.sampled_space import less_offsets, method_space
from shoal.methods.features.spectral import PLACING_SAMPLES
from shoal.methods.features.vectors import ENCODED_ROWS
from shoal.methods.registry import METHODS
from shoal.methods.scores.no_groups import GROUPS_GAIN, gain_over_no_groups
from shoal.models.encoders import PIXELS
from shoal.models.frozen import is_installed

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
LESS_OFFSETS = "; offsets of sites were taken off before"


def known_number(settings: Settings) -> Choice | None:
    """Return the choice that was made for these settings before, or None where today's rule would choose another."""
    chosen = known_choice(Choice, settings)
    if chosen is None:
        return None
    clusters, rule = choose_number(chosen.curve)
    return chosen if chosen.clusters == clusters and chosen.rule.startswith(rule) else None


Found = tuple[ClusterNumber, int, str]
"""The number of clusters, how many samples were clustered, and how, as the end of a sentence."""
Find = Callable[[Settings, Settings, PreparedSet, Partition], Found]
"""Finds the number of clusters: see `find_here`."""


def find_here(settings: Settings, sought: Settings, prepared: PreparedSet, table: Partition) -> Found:
    """Return the number of clusters of samples that are here.

    Args:
        settings, prepared, table: see `choose_clusters`.
        sought: in whose space clusters are sought.

    Raises:
        MethodError: too few samples for any number, features that are all the same, or no clusters.
    """
    search = Search(settings.choose.min_clusters, settings.choose.max_clusters)
    more = ""
    with one_thread(), step_bar("number of clusters") as watch:
        sample_space, samples, collect, less = features_to_cluster(sought, prepared, table, search)
        while True:
            try:
                chosen = find_cluster_number(samples, search, settings.seed, watch, collect)
                break
            except TooFewCentres as error:
                if error.local <= search.min_clusters:
                    raise
                search = replace(search, max_clusters=error.local)
                more = f"; for more than {error.local} clusters halves have too few samples"
        unclear = collect is None or (sought is settings and chosen.stability < MIN_STABILITY)
        if unclear and prepared.manifest.kind != "image":
            check_groups(sample_space, chosen.clusters, prepared.spec.column_widths, settings.seed)
    return chosen, len(samples.x), less + more


def choose_clusters(settings: Settings, prepared: PreparedSet, table: Partition, find: Find = find_here) -> Choice:
    """Return the number of clusters for settings that leave it open, and how it was chosen.

    Args:
        settings: with `model.clusters` auto, and a scheme of partitions.
        prepared, table: the data set and its partition.
        find: finds the number where none was chosen before; its errors pass.
    """
    earlier = known_number(settings)
    if earlier is not None and earlier.partition_digest == table.digest:
        return earlier
    choose = settings.choose
    sought = settings_of_space(settings, prepared)
    chosen, samples, less = find(settings, sought, prepared, table)
    encoded = prepared.manifest.kind == "image" and sought.model.encoder != PIXELS
    return Choice(
        clusters=chosen.clusters,
        rule=chosen.rule + less,
        min_clusters=choose.min_clusters,
        max_clusters=chosen.tried[-1].clusters,
        repeats=Search.repeats,
        seed=settings.seed,
        features=str(sought.model.encoder) if encoded else "samples",
        samples=samples,
        curve=chosen.tried,
        data_digest=prepared.manifest.digest,
        partition_digest=table.digest,
        settings_sha256=settings.digest(),
    )


def check_groups(samples: ClientSamples, clusters: int, widths: tuple[int, ...], seed: int) -> None:
    """Refuse samples in which K-means finds no more than in random ones without groups.

    By landmarks there may be groups that K-means does not see: then the agreement of halves is asked before. Images are
    never refused: their groups may not show in this space, and the verdict says so. Nor are skewed samples, which may
    hold a small group beside a large one.

    Args:
        samples: of all clients, whose sums and products the random ones need.
        clusters: the number that was chosen.
        widths: see `gain_over_no_groups`.
        seed: of the random samples.

    Raises:
        MethodError: no clusters.
    """
    groups = gain_over_no_groups(
        samples.x.numpy(), clusters, Streams(seed).numpy("samples without groups"), widths=widths
    )
    if groups.symmetric and not groups.clear:
        gain = "clusters too small to tell" if groups.gain is None else f"{groups.gain:.1f} standard deviations more"
        raise MethodError(
            f"no clusters: K-means finds in these samples {gain} than in random ones without groups, expected "
            f"{GROUPS_GAIN:g} or more; nothing was trained. Add samples or other columns, or set model.clusters to a "
            "number, which is trained and judged"
        )


def settings_of_space(settings: Settings, prepared: PreparedSet) -> Settings:
    """Return the settings in whose space the number is sought: those of `fedkmeans`, unless the method has features.

    The space of images is the frozen encoder's, or that of pixels where it is not installed.
    """
    if issubclass(METHODS[settings.method.name], FeatureClustering):
        return settings
    raw = settings.to_json()
    model = {"clusters": raw["model"]["clusters"]}
    if prepared.manifest.kind == "image":
        model["encoder"] = ENCODER if is_installed(ENCODER) else PIXELS
    same = ("data", "partition", "workers", "seed", "choose")
    return make_settings({**{key: raw[key] for key in same}, "method": {"name": "fedkmeans"}, "model": model})


def features_to_cluster(
    settings: Settings, prepared: PreparedSet, table: Partition, search: Search
) -> tuple[ClientSamples, ClientSamples, CollectHalf | None, str]:
    """Return features in the method's space, what is clustered of them, and how clusters are sought in a half of it.

    That is by landmarks, where the method has them and most samples are of clients with enough to place some; else by
    K-means, for images among the features of the encoder's last layer. Where sites differ, features are less their
    offsets, as they are in the run, and what is returned last says so.
    """
    device = torch.device(device_here(resolve_device(settings.workers)))
    seed = settings.seed
    context = Context(prepared.spec, settings.largest_model, seed=seed, device=device)
    method = METHODS[settings.method.name](settings.method, context)
    assert isinstance(method, FeatureClustering)
    draw = partial(draw_samples, DeviceData(prepared), table, seed, method.source.of)
    landmarks = method.settings.landmarks
    encoded = method.source.encoder is not None
    features = draw(some_clients(table, seed), MAX_FEATURES) if landmarks or encoded else draw()
    counts = torch.bincount(features.client, minlength=features.clients)
    placing = counts[counts >= 2 * PLACING_SAMPLES].sum()
    if 2 * placing <= len(features.x):
        landmarks = 0
    if encoded and not landmarks:
        space = features._replace(x=features.x[:, : method.source.first_layers])
    else:
        space = method_space(method, features)
    rule = ""
    if method.settings.sites == "estimate":
        less = less_offsets(space, search, seed, landmarks)
        rule = LESS_OFFSETS * (less is not space)
        space = less
    projected = partial(project, space, least_points=method.settings.min_points)
    if landmarks:
        return space, space, partial(landmark_half, landmarks), rule
    if encoded:
        return space, projected(ENCODER_COMPONENTS, ENCODER_WHITENING), None, rule
    return space, projected(SAMPLE_COMPONENTS, 0.0), None, rule


def some_clients(table: Partition, seed: int) -> Sequence[int]:
    """Return at most `MAX_CLIENTS` clients, drawn at random."""
    order = Streams(seed).numpy("clients for the method").permutation(table.clients)
    return sorted(order[:MAX_CLIENTS].tolist())


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
        embed: samples as `Samples.x` gives them, `ENCODED_ROWS` at a time, to vectors.
        clients: whose samples; None: all clients'.
        limit: number of samples.
    """
    parts = []
    owners = []
    if clients is None:
        clients = range(table.clients)
    count = int(table.counts()[list(clients)].sum())
    share = min(1.0, limit / max(1, count))
    for number, client in enumerate(clients):
        own = client_samples(data, table, client)
        rng = Streams(seed, client=client).numpy("samples for the number of clusters")
        kept = np.sort(rng.permutation(len(own))[: int(np.ceil(len(own) * share))])
        for rows in torch.from_numpy(kept).to(data.device).split(ENCODED_ROWS):
            parts.append(embed(own.x(rows)).double().cpu())
        owners.append(torch.full((len(kept),), number))
    return ClientSamples(torch.cat(parts), torch.cat(owners), len(clients))


Kind = TypeVar("Kind", Choice, MethodChoice)


def known_choice(kind: type[Kind], settings: Settings) -> Kind | None:
    """Return the choice that a run made for these settings on the data set as it is now; None where none has."""
    name = settings.data.name
    try:
        if is_built_in(name):
            name = resolve(name, settings.data.options)[2]
        wanted = (read_manifest(store_folder(places.store(), name)).digest, settings.digest())
    except DataError:
        return None
    for path in reversed(in_order(places.runs(), f"*_{settings.data.name}_*")):
        with contextlib.suppress(ShoalError):  # another run may be damaged
            lineage = RunFolder(path.parent).lineage()
            for choice in (lineage.method_chosen, lineage.clusters_chosen):
                if isinstance(choice, kind) and (choice.data_digest, choice.settings_sha256) == wanted:
                    return choice
    return None
