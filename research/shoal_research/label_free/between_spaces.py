"""Whether the space in which images are clustered can be chosen without labels, among those that are computed anyway.

    python -m shoal_research.label_free.between_spaces FILE        # a quarter of an hour; needs the packaged encoder

Images of the tuning sets, evenly at six sites, and of two kinds that chose nothing (letters over photos, three draws;
bright letters on their own, three draws) are clustered by landmarks among middle layers (the default), among features
of the last layer and among pixels, and by K-means of the last layer's features. Lines of the file are records as JSON:
ACC and the neighbours' agreement, by which a run judges without labels, of each.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from shoal.methods.auto import FEATURE_SPACE, LAYERS, PIXEL_SPACE
from shoal.methods.scores.clustering import accuracy
from shoal.methods.scores.neighbours import nearest_samples, neighbour_agreement
from shoal.models.efficientnet_lite import FEATURES
from shoal.models.frozen import layer_widths_of
from shoal_research.label_free.directions import layers_of
from shoal_research.label_free.drawn_images import Set, labels_of
from shoal_research.label_free.groups import joint_space
from shoal_research.label_free.sites import DEALINGS, Sites, some_of
from shoal_research.label_free.tuning_sets import IMAGES, built_in
from shoal_research.unseen.kinds.letters import CLASSES, FONTS, font

SEEDS = 3
SIDE = 32
Case = tuple[str, np.ndarray, np.ndarray, int]


def letters(seed: int, *, photos: bool) -> Set:
    """Draw ten letters in twelve fonts, each over a photo of CIFAR-10 or on a plain ground."""
    rng, y = labels_of(seed, 600, len(CLASSES), 1)
    ground = built_in("cifar10", 2_000)[0][rng.permutation(2_000)[: len(y)]]
    images = []
    for label, photo in zip(y, ground, strict=True):
        below = photo if photos else np.full_like(photo, rng.integers(0, 80))
        image = Image.fromarray(below).resize((4 * SIDE, 4 * SIDE), Image.Resampling.BICUBIC)
        face = font(FONTS[rng.integers(len(FONTS))], int(rng.integers(80, 104)))
        place = tuple((2 * SIDE + rng.uniform(-8, 8, 2)).tolist())
        colour = tuple(rng.integers(190, 256, 3).tolist())
        ImageDraw.Draw(image).text(place, CLASSES[label], font=face, fill=colour, anchor="mm")
        images.append(np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BOX)))
    return np.stack(images), y


def cases() -> Iterator[Case]:
    """Yield the name, images, classes and seed of each set."""
    for seed in range(SEEDS):
        for name, photos in (("letters over photos", True), ("bright letters", False)):
            yield (name, *letters(seed, photos=photos), seed)
    for name, make in IMAGES.items():
        yield (name, *some_of(make), 0)


def record(name: str, images: np.ndarray, y: np.ndarray, seed: int) -> dict[str, Any]:
    """Return ACC and agreement of the clusters in each space."""
    layers = layers_of(images)
    plain = images.reshape(len(images), -1) / 255.0
    landmarks = FEATURE_SPACE["method"]
    near = nearest_samples(joint_space(images))
    site = DEALINGS["even"](y, np.random.default_rng(seed))
    found: dict[str, Any] = {"set": name, "seed": seed}
    for space, x, widths, settings in (
        ("layers", layers, layer_widths_of(LAYERS), landmarks),
        ("last layer", layers[:, :FEATURES], (), landmarks),
        ("pixels", plain, (), PIXEL_SPACE["method"]),
        ("K-means, last layer", layers[:, :FEATURES], (), {}),
    ):
        with tempfile.TemporaryDirectory() as folder:
            cluster = Sites(x, y, site, seed, Path(folder), widths).clusters(**settings)
        found[space] = [round(accuracy(y, cluster), 4), round(neighbour_agreement(cluster, near), 4)]
    return found


if __name__ == "__main__":
    with threadpool_limits(1), open(sys.argv[1], "a", encoding="utf-8") as file:
        for case in cases():
            print(json.dumps(record(*case)), file=file, flush=True)
