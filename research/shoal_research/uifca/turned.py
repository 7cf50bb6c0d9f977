"""Turned images, and what a RotNet makes of them, as sets of the store: the data of UIFCA's table 3.

    turned-mnist                 each image in one of four angles, drawn at random; the angle is its label
    turned-mnist-shrink2-only3   every image of class 3 in each of the four angles
    rotnet-mnist                 features of `turned-mnist`, from a RotNet that learned on the upright images
    rotnet-mnist-only3-images60000-epochs30   of at most so many images, for so many epochs

The RotNet is trained on the CPU, even if there is a GPU: the bits identify a set, and differ between devices.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from shoal.core.errors import DataError
from shoal.core.streams import Streams, stream_seed
from shoal.data.sets.prepare import own_folder, prepare
from shoal.data.sets.prepared import Manifest, PreparedSet, write_prepared
from shoal.data.sets.writing import writing
from shoal.engine.settings import places
from shoal.engine.settings.one_thread import one_thread
from shoal.methods.training.local import seeded_build
from shoal.methods.training.steps import descend
from shoal_research.uifca.rotnet import RotNet

NAME = re.compile(
    r"(?P<kind>turned|rotnet)-(?P<source>.+?)(-only(?P<only>\d))?(-images(?P<images>\d+))?(-epochs(?P<epochs>\d+))?"
)
IMAGES = 10_000
EPOCHS = 3
"""Defaults of the training of a RotNet."""
BATCH_SIZE = 128
ANGLES = tuple(range(0, 360, 90))


def add_missing(names: Sequence[str]) -> None:
    """Add sets to the store by their names, those that are not there.

    Raises:
        DataError: a name is none of these sets, or its source has no square images.
    """
    for name in names:
        folder = own_folder(places.store(), name)
        with writing(folder):
            if not (folder / "manifest.json").exists():
                write_set(name)


def write_set(name: str) -> None:
    """Write one set."""
    asked = NAME.fullmatch(name)
    if asked is None:
        raise DataError(f"{name!r} is no set of turned images: expected turned-NAME or rotnet-NAME")
    source = prepare(asked["source"], places.store(), mirror=places.mirror())
    shape = source.spec.shape
    if source.spec.kind != "image" or shape[1] != shape[2]:
        raise DataError(f"{name!r} needs square images, and {source.spec.name!r} holds {source.spec.kind}s of {shape}")
    arrays = {}
    upright = {}
    for part in ("train", "test"):
        upright[part], arrays[f"{part}_x"], arrays[f"{part}_y"] = images_of(source, part, asked["only"])
    if asked["kind"] == "rotnet":
        learned = f"rotnet {source.spec.name}" + (f"-only{asked['only']}" if asked["only"] else "")
        with one_thread():  # the same bits on machines with other core counts
            count = int(asked["images"] or IMAGES)
            network = trained(upright["train"], count, int(asked["epochs"] or EPOCHS), learned)
            arrays |= standardised({key: features(network, arrays[key]) for key in ("train_x", "test_x")})
    manifest = Manifest(
        name=name,
        kind="vector" if asked["kind"] == "rotnet" else "image",
        shape=arrays["train_x"].shape[1:],
        classes=len(ANGLES),
        train=len(arrays["train_x"]),
        test=len(arrays["test_x"]),
        source=f"{source.spec.name} ({source.manifest.digest[:12]}), turned",
        licence=source.manifest.licence,
        class_names=tuple(f"{angle} degrees" for angle in ANGLES),
    )
    write_prepared(own_folder(places.store(), name), manifest, arrays)


def images_of(source: PreparedSet, part: str, only: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the images of a part of a set upright, the same turned, and the angles of these as labels.

    Each image is turned to one angle at random; with `only` those of this class to every angle.
    """
    upright = np.asarray(getattr(source, f"{part}_x"))
    if only is None:
        seed = stream_seed(0, f"rotations of {source.spec.name} {part}")
        angle = np.random.default_rng(seed).integers(len(ANGLES), size=len(upright))
        return upright, quarter_turns(upright, angle), angle
    upright = upright[np.asarray(getattr(source, f"{part}_y")) == int(only)]
    angle = np.repeat(np.arange(len(ANGLES)), len(upright))
    return upright, quarter_turns(np.tile(upright, (len(ANGLES), 1, 1, 1)), angle), angle


def quarter_turns(x: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """Return images (n, channels, side, side) turned by their numbers of quarter turns (n,)."""
    turned = x.copy()
    for turn in range(1, len(ANGLES)):
        turned[turns == turn] = np.rot90(x[turns == turn], turn, axes=(2, 3))
    return turned


def trained(images: np.ndarray, count: int, epochs: int, name: str) -> RotNet:
    """Train a RotNet on upright images, with draws that depend on `name` alone."""
    seed = stream_seed(0, name)
    network = seeded_build(lambda: RotNet(images.shape[1:]), seed)
    assert isinstance(network, RotNet)
    generator = Streams(seed).torch("rotnet batches")
    chosen = torch.randperm(len(images), generator=generator)[:count]
    x = images[np.sort(chosen.numpy())]
    optimiser = torch.optim.Adam(network.parameters(), 1e-3)
    network.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(BATCH_SIZE):
            turns = torch.randint(len(ANGLES), (len(rows),), generator=generator)
            batch = torch.from_numpy(quarter_turns(x[rows.numpy()], turns.numpy())).float() / 255
            loss = F.cross_entropy(network(batch), turns)
            descend(loss, network.parameters(), optimiser)
    return network.eval()


@torch.no_grad()
def features(network: RotNet, images: np.ndarray) -> np.ndarray:
    """Return the features of images uint8 (n, channels, side, side), float32 (n, 256)."""
    parts = np.array_split(images, max(1, len(images) // 1000))
    return torch.cat([network.embed(torch.from_numpy(part.copy()).float() / 255) for part in parts]).numpy()


def standardised(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return features less the mean of the training part's, over their deviation there."""
    train = arrays["train_x"]
    mean = train.mean(0)
    deviation = train.std(0).clip(1e-6)
    return {key: ((x - mean) / deviation).astype(np.float32) for key, x in arrays.items()}
