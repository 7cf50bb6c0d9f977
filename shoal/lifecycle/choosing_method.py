"""The method of a run that asks for `method.name: auto`: chosen before the run by `shoal.methods.auto`.

What the rules want to know is measured on a draw of samples, client by client, and added up as a server would.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.core.streams import Streams
from shoal.data.partition.table import Partition
from shoal.data.sets.elsewhere import MEASURED
from shoal.data.sets.prepared import Manifest, PreparedSet
from shoal.data.sets.remedy import EMBEDDED, SITES
from shoal.data.views.view import DeviceData
from shoal.engine.settings.hardware import device_here, resolve_device
from shoal.engine.settings.one_thread import one_thread
from shoal.engine.settings.run_settings import Settings, drop_unset
from shoal.engine.store.method_choice import MethodChoice
from shoal.engine.workers.null_baselines import pixels
from shoal.lifecycle.choosing import draw_samples, known_choice, some_clients
from shoal.methods.auto import CLIENT_BOUND, CLIENT_IMAGES, ENCODER, Facts, budget, rule_for, sentence
from shoal.methods.clustering.client_samples import ClientSamples
from shoal.methods.contract.context import MethodError
from shoal.methods.features.column_facts import are_counts, column_spread
from shoal.methods.features.representation import Representation, even_light, represented
from shoal.methods.registry import METHODS
from shoal.methods.scores.no_groups import GROUPS_GAIN, gain_over_no_groups
from shoal.methods.scores.own_neighbours import dependence_on_clients, space_agreement
from shoal.models.encoders import ENCODERS
from shoal.models.frozen import frozen_encoder, is_installed

Draw = Callable[..., ClientSamples]
"""`draw_samples` of a run's set and partition: takes what to make of samples, and how many."""
MAX_IMAGES = 1_000
"""Images that are encoded and clustered to compare spaces."""
MAX_ROWS = 20_000
"""Rows from which the spread of columns is measured."""
MAX_WINDOWS = 400
"""Windows whose values and spectra are compared."""
WINDOW_CLUSTERS = 4
"""Clusters that are sought among them where their number is not known."""
MIN_CLUSTERS = 10
"""Clusters with which spaces are compared at least: few clusters say little where a client holds few kinds."""


def known_method(settings: Settings) -> MethodChoice | None:
    """Return the choice that was made for these settings before, or None where today's would be another one.

    It is, where other encoders are installed now, or the rules have changed since.
    """
    choice = known_choice(MethodChoice, settings)
    if choice is None or choice.facts.installed != is_installed(ENCODER):
        return None
    return choice if (choice.reason, choice.settings) == decided(choice.facts) else None


def choose_method(settings: Settings, prepared: PreparedSet, table: Partition) -> MethodChoice:
    """Return the method for settings that leave it open, and how it was chosen.

    Args:
        settings: with `method.name` auto, and a scheme of partitions.
        prepared, table: the data set and its partition.
    """
    earlier = known_method(settings)
    if earlier is not None and earlier.partition_digest == table.digest:
        return earlier
    facts = facts_of(settings, prepared, table)
    reason, chosen = decided(facts)
    method = METHODS[chosen["method"]["name"]]
    unused = ""
    if not method.trains and (local := sorted(drop_unset(settings.to_json()["local"]))):
        unused = (
            f"{', '.join(f'local.{key}' for key in local)} without effect: method auto chose {method.name}, which "
            "trains nothing; set method.name to a method that trains"
        )
    return MethodChoice(
        method=method.name,
        reason=reason,
        settings=chosen,
        facts=facts,
        unused=unused,
        data_digest=prepared.manifest.digest,
        partition_digest=table.digest,
        settings_sha256=settings.digest(),
    )


def decided(facts: Facts) -> tuple[str, dict[str, Any]]:
    """Return the reason and the settings that the rules give for a data set."""
    rule = rule_for(facts)
    chosen = dict(rule.settings)
    if METHODS[chosen["method"]["name"]].trains:
        chosen["local"] = budget(facts.samples)
    return sentence(rule, facts), chosen


def facts_of(settings: Settings, prepared: PreparedSet, table: Partition) -> Facts:
    """Return what the rules want to know of a data set; on images two spaces are compared, which encodes some."""
    spec = prepared.spec
    encoder = settings.model.encoder
    clusters = spec.classes or 0
    if isinstance(settings.model.clusters, int):
        clusters = settings.model.clusters or clusters
    known = partial(
        Facts,
        kind=spec.kind,
        samples=int(np.median(table.counts())),
        total=int(table.counts().sum()),
        clusters=clusters,
        encoder=encoder,
        trainable=encoder in ENCODERS or settings.model.start == "pretrained",
        installed=is_installed(ENCODER),
    )
    if spec.kind == "text":
        return known()
    if SITES in prepared.manifest.extra:
        return facts_of_sites(known, prepared.manifest, compares_images=encoder is None and is_installed(ENCODER))
    if EMBEDDED in prepared.manifest.extra:
        return known(embedded=True)  # whatever their spread, an encoder's features are not standardised
    draw = partial(draw_samples, DeviceData(prepared), table, settings.seed)
    with one_thread():
        if spec.kind != "image":
            rows = draw(lambda x: x.flatten(1), limit=MAX_ROWS)
            parts = [rows.samples_of(client) for client in range(rows.clients)]
            known = partial(known, spread=column_spread(parts, spec.column_widths))
            if spec.kind == "vector":
                return known(counts=not spec.column_widths and are_counts(rows.x))
            groups, spectrum = gains_of_windows(draw, clusters or WINDOW_CLUSTERS, settings.seed)
            return known(groups=groups, spectrum=spectrum)
        if encoder is not None or not is_installed(ENCODER):
            return known()
        draw = partial(draw, clients=some_clients(table, settings.seed), limit=MAX_IMAGES)
        return facts_of_images(known, settings, draw, clusters)


def facts_of_images(known: Callable[..., Facts], settings: Settings, draw: Draw, clusters: int) -> Facts:
    """Return the facts about images, whose pixels and features are compared.

    Args:
        known: takes further facts.
        settings: of the run.
        draw: draws some of them.
        clusters: how many there are; 0 where it is not known.
    """
    seed = settings.seed
    clusters = max(MIN_CLUSTERS, clusters)
    network = frozen_encoder(ENCODER).to(device_here(resolve_device(settings.workers)))
    raw = draw(lambda x: torch.from_numpy(pixels(x)))
    features = draw(partial(encode, network))
    by_client = dependence_on_clients(features, clusters, seed)
    known = partial(
        known,
        pixels=space_agreement(raw, clusters, seed),
        features=space_agreement(features, clusters, seed),
        by_client=by_client,
    )
    if by_client < CLIENT_BOUND * max(1, CLIENT_IMAGES / len(features.x)):
        return known()
    evened = draw(lambda x: encode(network, even_light(x)))
    return known(
        light_by_client=dependence_on_clients(evened, clusters, seed),
        light_groups=gain_over_no_groups(evened.x.numpy(), clusters, Streams(seed).numpy("groups in even light")).gain,
    )


def facts_of_sites(known: Callable[..., Facts], manifest: Manifest, *, compares_images: bool) -> Facts:
    """Return the facts about a set at sites: what these told of their columns beside their sets.

    Raises:
        MethodError: the rules look at samples of all sites, or policies do not name `auto`.
    """
    kind = manifest.kind
    if kind == "series":
        raise MethodError(
            f"windows of {manifest.name!r} lie at its sites, and method.name: auto looks at all: set method.name"
        )
    if kind == "image":
        return known(apart=compares_images)
    if EMBEDDED in manifest.extra:
        return known(embedded=True)
    if kind == "vector" and MEASURED not in manifest.extra:
        raise MethodError(
            f"method.name: auto asks the sites of {manifest.name!r} how far their columns differ, and not all policies "
            "name `auto` among their methods: set method.name, or ask the sites for it"
        )
    return known(**manifest.extra.get(MEASURED, {}))


@torch.no_grad()
def encode(network: nn.Module, x: Tensor) -> Tensor:
    """Return the vectors of images in [0, 1] by a frozen encoder, (n, d)."""
    device = next(network.parameters()).device
    vectors: Tensor = network(x.to(device))
    return vectors


def gains_of_windows(draw: Draw, clusters: int, seed: int) -> tuple[float, float | None]:
    """Return the gain of K-means over samples without groups among windows, and where it shows none among spectra.

    Args:
        draw: draws some of them.
        clusters: how many are sought.
        seed: of the samples without groups.
    """

    def gain(representation: Representation) -> float:
        made = draw(lambda x: represented(x, representation).flatten(1), limit=MAX_WINDOWS).x.numpy()
        if representation == "as-is":
            made = made / np.maximum(made.std(0), 1e-12)
        groups = gain_over_no_groups(made, clusters, Streams(seed).numpy("gains of windows"))
        return groups.gain or 0.0

    values = gain("as-is")
    return values, None if values >= GROUPS_GAIN else gain("spectrum")
