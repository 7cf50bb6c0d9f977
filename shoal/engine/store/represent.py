"""Representations as a data set: `rotnet-NAME` holds what a RotNet, trained centrally on set NAME, sees in its images.

The network predicts by how much an image was turned, so that no label is used. Options are written into the name as
those of the built-in sets are: `rotnet-mnist-images20000-epochs5`. For a set whose images are turned already
(`rotnet-mnist-rotations4`) the network learns from the same images upright, since nobody could say by how much an image
of unknown angle was turned; what it sees in the turned images are the representations.

It is trained on the CPU, also where there is a GPU: a data set is one by its bits, and two devices give two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.core.errors import DataError
from shoal.core.streams import Streams, stream_seed
from shoal.data.prepare import is_built_in, prepare, prepared_folder, store_folder
from shoal.data.prepared import Manifest, Prepared, open_prepared, write_prepared
from shoal.data.writing import writing
from shoal.engine.settings.one_thread import one_thread
from shoal.methods.training.local import seeded_build
from shoal.models.rotnet import RotNet

PREFIX = "rotnet-"
OPTIONS = {"images": 10_000, "epochs": 3}
"""How many images the RotNet is trained on, at most, and for how many epochs."""
BATCH = 128
TURNED = re.compile(r"-(rotations|angles)\d+")
Watch = Callable[[int, int], None]
"""Is called with the steps done and the steps in all."""


def prepare_set(
    name: str,
    store: Path,
    *,
    mirror: Path | None = None,
    force: bool = False,
    options: Mapping[str, int] | None = None,
    watch: Watch | None = None,
) -> Prepared:
    """Prepare a data set as `shoal.data.prepare.prepare` does, and also `rotnet-NAME`, whose RotNet is trained once.

    Args:
        name, store, mirror, force, options: as of `prepare`.
        watch: called while a RotNet trains.

    Raises:
        DataError: as `prepare`; a set without images, or of images that are not square.
    """
    if not name.startswith(PREFIX):
        return prepare(name, store, mirror=mirror, force=force, options=options)
    source_name, own, rest = parse(name, dict(options or {}))
    full_name = "-".join(
        [PREFIX + source_name, *(f"{key}{value}" for key, value in own.items() if value != OPTIONS[key])]
    )
    folder = prepared_folder(store, full_name)
    if not force and (folder / "manifest.json").exists():
        return open_prepared(folder)
    with writing(folder):
        if force or not (folder / "manifest.json").exists():  # else another process has made it meanwhile
            source = prepare(source_name, store, mirror=mirror, options=rest)
            upright = source
            if TURNED.search(source.spec.name):
                upright = prepare(TURNED.sub("", source.spec.name), store, mirror=mirror)
            _write_representations(folder, source, upright, own, watch)
    return open_prepared(folder)


def _write_representations(
    folder: Path, source: Prepared, upright: Prepared, own: dict[str, int], watch: Watch | None
) -> None:
    """Train a RotNet on `upright`, and write what it sees in the images of `source`."""
    name = folder.name
    if source.spec.kind != "image":
        raise DataError(f"{name!r}: a RotNet turns images, and {source.spec.name!r} is {source.spec.kind} data")
    if source.spec.shape[1] != source.spec.shape[2]:
        height, width = source.spec.shape[1:]
        raise DataError(
            f"{name!r}: a RotNet needs square images, and those of {source.spec.name!r} are {height} x {width}"
        )
    with one_thread():  # the same bits on machines with other core counts
        network, accuracy = train_rotnet(upright, own["images"], own["epochs"], watch)
        embed = [None if x is None else embeddings(network, np.asarray(x)) for x in (source.train_x, source.test_x)]
    assert embed[0] is not None
    mean = embed[0].mean(0)
    deviation = embed[0].std(0).clip(1e-6)
    train_x, test_x = (None if x is None else ((x - mean) / deviation).astype(np.float32) for x in embed)
    manifest = Manifest(
        name=name,
        kind="vector",
        shape=(RotNet.features,),
        classes=source.manifest.classes,
        train=source.manifest.train,
        test=source.manifest.test,
        source=f"RotNet on {source.spec.name} ({source.manifest.digest[:12]})",
        licence=source.manifest.licence,
        class_names=source.manifest.class_names,
        subset=source.manifest.subset,
        extra={"options": own, "rotation_accuracy": round(accuracy, 4)},
    )
    train_y, test_y = (None if y is None else np.asarray(y) for y in (source.train_y, source.test_y))
    arrays = {"train_x": train_x, "train_y": train_y, "test_x": test_x, "test_y": test_y}
    columns = {column: source.column(column) for column in source.columns()}
    write_prepared(folder, manifest, arrays, columns)


def has_clients(name: str, store: Path) -> bool:
    """Return whether a set of the user's own, or one made from it, names the clients of its samples.

    A set that is not in the store has none here: preparing it says what is missing.
    """
    if name.startswith(PREFIX):
        return has_clients(parse(name, {})[0], store)
    return not is_built_in(name) and (store_folder(store, name) / "column_client.npy").is_file()


def parse(name: str, options: dict[str, int]) -> tuple[str, dict[str, int], dict[str, int]]:
    """Return the set behind `rotnet-NAME`, the RotNet's options, and the other options (of the set).

    Raises:
        DataError: an option that is no whole number of at least 1.

    >>> parse("rotnet-mnist-shrink2-epochs5", {})
    ('mnist-shrink2', {'images': 10000, 'epochs': 5}, {})
    """
    own = dict(OPTIONS)
    parts = name.removeprefix(PREFIX).split("-")
    while parts and (found := re.fullmatch(r"(images|epochs)([0-9]{1,18})", parts[-1])):
        own[found[1]] = int(found[2])
        parts.pop()
    own |= {key: options[key] for key in own if key in options}
    for key, value in own.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise DataError(f"option {key!r} of {name!r} is {value!r}, expected a whole number >= 1")
    return "-".join(parts), own, {key: value for key, value in options.items() if key not in own}


def train_rotnet(source: Prepared, images: int, epochs: int, watch: Watch | None = None) -> tuple[RotNet, float]:
    """Train a RotNet; return it and its accuracy on the rotations of the last epoch. Draws are the set's own."""
    seed = stream_seed(0, f"rotnet {source.spec.name}")
    network = seeded_build(lambda: RotNet(source.spec.shape), seed)
    assert isinstance(network, RotNet)
    generator = Streams(seed).torch("rotnet batches")
    chosen = torch.randperm(source.manifest.train, generator=generator)[:images]
    x = torch.from_numpy(np.array(source.train_x[np.sort(chosen.numpy())]))
    optimiser = torch.optim.Adam(network.parameters(), 1e-3)
    network.train()
    correct = judged = 0
    for epoch in range(epochs):
        correct = judged = 0
        batches = torch.randperm(len(x), generator=generator).split(BATCH)
        for number, rows in enumerate(batches, 1):
            turns = torch.randint(4, (len(rows),), generator=generator)
            logits = network(turned(x[rows].float() / 255, turns))
            loss = F.cross_entropy(logits, turns)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            correct += int((logits.argmax(1) == turns).sum())
            judged += len(rows)
            if watch is not None:
                watch(epoch * len(batches) + number, epochs * len(batches))
    return network.eval(), correct / judged


def turned(x: Tensor, turns: Tensor) -> Tensor:
    """Return each image (n, channels, side, side) turned by its number of quarter turns, int64 (n,)."""
    out = x.clone()
    for turn in range(1, 4):
        out[turns == turn] = torch.rot90(x[turns == turn], turn, dims=(2, 3))
    return out


@torch.no_grad()
def embeddings(network: RotNet, images: np.ndarray) -> np.ndarray:
    """Return the representations of images as they are, float32 (n, 256)."""
    parts = [
        network.embed(torch.from_numpy(np.array(part)).float() / 255)
        for part in np.array_split(images, max(1, len(images) // 1000))
    ]
    return torch.cat(parts).numpy()
