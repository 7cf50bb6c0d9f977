"""Images to vectors: each client's images are embedded on its own, and become a set like one that was added."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.core.errors import DataError
from shoal.core.records import record_to_json
from shoal.data.intake.own import check_name
from shoal.data.intake.own_store import VERSIONS, versions_of
from shoal.data.intake.own_writing import Part, write_by_client
from shoal.data.sets.by_client import is_by_client
from shoal.data.sets.intake_notes import Intake, record
from shoal.data.sets.lazy_array import SampleArray
from shoal.data.sets.prepare import own_folder, prepare, store_folder
from shoal.data.sets.prepared import PreparedSet, open_prepared, read_manifest, write_prepared
from shoal.data.sets.remedy import EMBEDDED
from shoal.data.sets.sample_files import sample_files
from shoal.data.sets.writing import writing
from shoal.engine.settings import places
from shoal.engine.store.embedded import COLUMN_PREFIX, EmbeddedFrom, embedded_set
from shoal.lifecycle.dvc_tracking import StoredSet, track
from shoal.lifecycle.progress import step_bar
from shoal.models.encoder_sources import slug
from shoal.models.frozen import BATCH, encode_images, encoder_version, frozen_encoder, layer_widths_of
from shoal.review.results.clusters import on_odd_of

Watch = Callable[[int, int], None]
"""A function that is called with the images done and the images in all."""


def embed(name: str, encoder: str, target: str | None = None, *, force: bool = False) -> StoredSet:
    """Make a set of vectors of a set of images; samples keep their order, clients, labels, files and part.

    Args:
        name: the set of images, built in or the user's own; it is prepared if necessary.
        encoder: a pretrained encoder, as in `model.encoder`.
        target: the name of the new set; None: NAME-ENCODER.
        force: replace a set of that name that was not made of these images by this encoder.

    Raises:
        DataError: the set holds no images, or the name is taken. EncoderError: the encoder is not installed.
    """
    store = places.store()
    images = open_prepared(prepare(name, store, mirror=places.mirror()).folder, verify=True)
    about = images.manifest
    if about.kind != "image":
        raise DataError(f"{name!r} holds {about.kind}s, and an encoder takes images: name a set of images")
    origin = EmbeddedFrom(
        images=about.name,
        digest=about.digest,
        shape=about.shape,
        on_odd=on_odd_of(images),
        encoder=encoder_version(encoder),
        device="cuda" if torch.cuda.is_available() else "cpu",
        layer_widths=layer_widths_of(encoder),
    )
    target = target or f"{about.name}-{slug(encoder)}"
    with writing(own_folder(store, target)):
        before = embedded_set(target)
        if before is None or (before.images, before.encoder) != (origin.images, origin.encoder):
            check_name(target, store, force, append=False)
            before = None
        elif before.digest == origin.digest and not force:
            prepared = open_prepared(store_folder(store, target))
            return StoredSet(prepared, f"{target!r} is up to date: nothing to embed", *track(prepared.folder))
        versions: list[dict[str, Any]] = []
        if before is not None and before.digest in [each["digest"] for each in about.extra.get(VERSIONS, [])]:
            # The images were only appended to since.
            versions = versions_of(read_manifest(store_folder(store, target)))
        with step_bar(f"images of {about.name}") as watch:
            vectors = embed_parts(images, origin, watch)
        prepared = _write(images, own_folder(store, target), origin, vectors, versions)
    message = f"{about.train + about.test:,} images of {name!r} are vectors in {target!r}"
    if before is not None and before.digest != origin.digest:
        message += f"; {origin.images!r} had changed since it was embedded"
    return StoredSet(prepared, message, *track(prepared.folder))


def embed_parts(images: PreparedSet, origin: EmbeddedFrom, watch: Watch) -> dict[str, np.ndarray]:
    """Return the vectors float32 (samples, width) of each part, embedded client by client.

    Args:
        images: the set of images.
        origin: names the encoder and the device.
        watch: called as images are done.
    """
    network = frozen_encoder(origin.encoder.name, origin.encoder.sha256).to(origin.device)
    counts = {"train": images.manifest.train, "test": images.manifest.test}
    vectors = {part: np.empty((count, network.features), np.float32) for part, count in counts.items()}
    done = 0
    for part, rows in groups_of(images):
        x = images.train_x if part == "train" else images.test_x
        assert x is not None
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            vectors[part][batch] = encode_images(network, x[batch])
            done += len(batch)
            watch(done, sum(counts.values()))
    return vectors


def groups_of(images: PreparedSet) -> Iterator[tuple[str, np.ndarray]]:
    """Yield part and rows of the images of each client, embedded without those of others; without clients of a part."""
    owners = {"train": np.zeros(images.manifest.train, int), "test": np.zeros(images.manifest.test, int)}
    if is_by_client(images.manifest.files):
        owners = {part: images.owners(part) for part in owners}
    elif "client" in images.columns():
        owners["train"] = images.column("client")
    for part, owner in owners.items():
        for client in np.unique(owner):
            yield part, np.flatnonzero(owner == client)


def _write(
    images: PreparedSet,
    folder: Path,
    origin: EmbeddedFrom,
    vectors: dict[str, np.ndarray],
    versions: list[dict[str, Any]],
) -> PreparedSet:
    """Write the set of vectors: as an added set where the images have clients, else as a built-in one."""
    about = images.manifest
    width = vectors["train"].shape[1]
    source = f"{origin.encoder.name} on {about.name} ({about.digest[:12]})"
    extra: dict[str, Any] = {
        EMBEDDED: record_to_json(origin),
        "features": [f"{COLUMN_PREFIX}{place}" for place in range(width)],
    }
    if versions:
        extra[VERSIONS] = versions
    if "clients" in about.extra:
        extra["clients"] = about.extra["clients"]
    manifest = replace(
        about, name=folder.name, kind="vector", shape=(width,), source=source, digest="", extra=extra, files={}
    )
    labels = {"train": images.train_y, "test": images.test_y}
    files = sample_files(images)
    if files is None:
        arrays: dict[str, SampleArray | None] = {f"{part}_x": x for part, x in vectors.items() if len(x)}
        arrays |= {f"{part}_y": y for part, y in labels.items()}
        write_prepared(folder, manifest, arrays, {name: images.column(name) for name in images.columns()})
    else:
        origins = files.groupby("part")["file"].agg(list)
        parts = {part: Part(x, labels[part], images.owners(part), origins.get(part, [])) for part, x in vectors.items()}
        write_by_client(folder, manifest, parts)
        record(folder, Intake())
    return open_prepared(folder)
