"""Sets of representations: `rotnet-NAME` has the features of a RotNet that was trained centrally on set NAME.

The network predicts by how much an image was rotated, so that no label is used. Options are part of the name, as of the
built-in sets: `rotnet-mnist-images20000-epochs5`. If the images of a set are already rotated
(`rotnet-mnist-rotations4`), the network learns from the same images upright, since the rotation of an image of unknown
angle is not defined. The representations are its features of the rotated images.

It is trained on the CPU, even if there is a GPU: the bits identify a data set, and differ between devices.

    python -m shoal_research.uifca.rotnet_sets rotnet-mnist-rotations4
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.core.errors import DataError
from shoal.core.streams import Streams, stream_seed
from shoal.data.sets.lazy_array import SampleArray
from shoal.data.sets.prepare import prepare, prepared_folder
from shoal.data.sets.prepared import Manifest, Prepared, open_prepared, write_prepared
from shoal.data.sets.writing import writing
from shoal.engine.settings import places
from shoal.engine.settings.one_thread import one_thread
from shoal.methods.training.local import seeded_build
from shoal_research.uifca.rotnet import RotNet

PREFIX = "rotnet-"
OPTIONS = {"images": 10_000, "epochs": 3}
"""Default options: most images on which the RotNet is trained, and epochs of the training."""
BATCH_SIZE = 128
ROTATED_SET = re.compile(r"-(rotations|angles)\d+")
"""The part of a set's name that says that its images are rotated."""


def prepare_rotnet(name: str, store: Path, mirror: Path | None = None) -> Prepared:
    """Prepare `rotnet-NAME`, whose RotNet is trained once, or open it; another set is prepared as the product does.

    Args:
        name, store, mirror: as of `shoal.data.sets.prepare.prepare`.

    Raises:
        DataError: as `prepare`; or the images are missing, or not square.
    """
    if not name.startswith(PREFIX):
        return prepare(name, store, mirror=mirror)
    source_name, options = parse(name)
    folder = prepared_folder(store, name)
    if (folder / "manifest.json").exists():
        return open_prepared(folder)
    with writing(folder):
        if not (folder / "manifest.json").exists():  # else another process has made it meanwhile
            source = prepare(source_name, store, mirror=mirror)
            upright = source
            if ROTATED_SET.search(source.spec.name):
                upright = prepare(ROTATED_SET.sub("", source.spec.name), store, mirror=mirror)
            _write_representations(folder, source, upright, options)
    return open_prepared(folder)


def _write_representations(folder: Path, source: Prepared, upright: Prepared, options: dict[str, int]) -> None:
    """Train a RotNet on `upright`, and write its standardised features of the images of `source`."""
    name = folder.name
    if source.spec.kind != "image":
        raise DataError(
            f"{name!r}: a RotNet needs images, and {source.spec.name!r} is {source.spec.kind} data: choose another set"
        )
    if source.spec.shape[1] != source.spec.shape[2]:
        height, width = source.spec.shape[1:]
        raise DataError(
            f"{name!r}: a RotNet needs square images, and those of {source.spec.name!r} are {height} x {width}: choose "
            "another set"
        )
    with one_thread():  # the same bits on machines with other core counts
        network, accuracy = train_rotnet(upright, options["images"], options["epochs"])
        train = embeddings(network, np.asarray(source.train_x))
        mean = train.mean(0)
        deviation = train.std(0).clip(1e-6)
        arrays: dict[str, SampleArray | None] = {
            "train_x": ((train - mean) / deviation).astype(np.float32),
            "train_y": source.train_y,
        }
        if source.test_x is not None:
            test = embeddings(network, np.asarray(source.test_x))
            arrays |= {"test_x": ((test - mean) / deviation).astype(np.float32), "test_y": source.test_y}
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
        extra={"options": options, "rotation_accuracy": round(accuracy, 4)},
    )
    columns = {column: source.column(column) for column in source.columns()}
    write_prepared(folder, manifest, arrays, columns)


def parse(name: str) -> tuple[str, dict[str, int]]:
    """Return the name of the set behind `rotnet-NAME`, and the RotNet's options.

    Raises:
        DataError: an option is zero.

    >>> parse("rotnet-mnist-shrink2-epochs5")
    ('mnist-shrink2', {'images': 10000, 'epochs': 5})
    """
    options = dict(OPTIONS)
    parts = name.removeprefix(PREFIX).split("-")
    while parts and (match := re.fullmatch(r"(images|epochs)([0-9]{1,18})", parts[-1])):
        options[match[1]] = int(match[2])
        parts.pop()
    for option, value in options.items():
        if value < 1:
            raise DataError(f"option {option!r} of {name!r} is {value}, expected a whole number of at least 1")
    return "-".join(parts), options


def train_rotnet(source: Prepared, images: int, epochs: int) -> tuple[RotNet, float]:
    """Train a RotNet, with draws that depend only on the set; return it and its accuracy in the last epoch."""
    seed = stream_seed(0, f"rotnet {source.spec.name}")
    network = seeded_build(lambda: RotNet(source.spec.shape), seed)
    assert isinstance(network, RotNet)
    generator = Streams(seed).torch("rotnet batches")
    chosen = torch.randperm(source.manifest.train, generator=generator)[:images]
    x = torch.from_numpy(np.array(source.train_x[np.sort(chosen.numpy())]))
    optimiser = torch.optim.Adam(network.parameters(), 1e-3)
    network.train()
    correct = 0
    for _ in range(epochs):
        correct = 0
        batches = torch.randperm(len(x), generator=generator).split(BATCH_SIZE)
        for rows in batches:
            turns = torch.randint(4, (len(rows),), generator=generator)
            logits = network(rotate(x[rows].float() / 255, turns))
            loss = F.cross_entropy(logits, turns)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            correct += int((logits.argmax(1) == turns).sum())
    return network.eval(), correct / len(x)


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Return images (n, channels, side, side) rotated by their numbers of quarter turns, int64 (n,)."""
    out = x.clone()
    for turn in range(1, 4):
        out[turns == turn] = torch.rot90(x[turns == turn], turn, dims=(2, 3))
    return out


@torch.no_grad()
def embeddings(network: RotNet, images: np.ndarray) -> np.ndarray:
    """Return the representations of images uint8 (n, channels, side, side), float32 (n, 256)."""
    parts = [
        network.embed(torch.from_numpy(np.array(part)).float() / 255)
        for part in np.array_split(images, max(1, len(images) // 1000))
    ]
    return torch.cat(parts).numpy()


if __name__ == "__main__":
    print(prepare_rotnet(sys.argv[1], places.store(), places.mirror()).folder)
