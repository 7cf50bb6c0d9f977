"""The ten sets: kind, number of samples, sites and evenness of the classes. All of it follows from `SEED`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from shoal.core.streams import Streams
from shoal_research.unseen.kinds import (
    directions,
    displays,
    fashion,
    letters,
    mixed_scales,
    scenes,
    shapes,
    textures,
    waves,
    wine,
)
from shoal_research.unseen.samples import Samples, draw_each
from shoal_research.unseen.sites import deal_to_sites, labels_of_sizes

SEED = 4629
"""Of the sets that defaults are judged on."""
PREFIX = "unseen-"
"""What the names of the sets begin with in the store."""


@dataclass(frozen=True)
class UnseenSet:
    """A set that is drawn, or a part of one that exists.

    Attributes:
        make: (labels, random numbers) to samples: drawn ones for the labels, or as many that have labels of their own.
        classes: number of classes.
        samples: how many.
        sites: how many hold them.
        ratio: of the largest class to the smallest.
    """

    make: Callable[[np.ndarray, np.random.Generator], Samples]
    classes: int
    samples: int
    sites: int
    ratio: float = 1.0


SETS: dict[str, UnseenSet] = {
    "shapes": UnseenSet(partial(draw_each, shapes.shape, shapes.CLASSES), 6, samples=600, sites=6),
    "textures": UnseenSet(partial(draw_each, textures.texture, textures.CLASSES), 7, samples=560, sites=5),
    "letters": UnseenSet(partial(draw_each, letters.letter, letters.CLASSES), 10, samples=700, sites=6, ratio=12),
    "waves": UnseenSet(waves.make, 5, samples=500, sites=5),
    "mixed_scales": UnseenSet(mixed_scales.make, 6, samples=600, sites=6, ratio=15),
    "directions": UnseenSet(directions.make, 8, samples=800, sites=8),
    "scenes": UnseenSet(partial(draw_each, scenes.scene, scenes.CLASSES), 5, samples=450, sites=5, ratio=10),
    "fashion": UnseenSet(fashion.take, 10, samples=1000, sites=8),
    "wine": UnseenSet(wine.take, 3, samples=178, sites=4),
    "displays": UnseenSet(partial(draw_each, displays.display, displays.CLASSES), 10, samples=600, sites=6, ratio=12),
}
"""The sets by the key of their row."""


def set_name(key: str) -> str:
    """Return the name of a set in the store."""
    return PREFIX + key.replace("_", "-")


def samples_of(key: str, seed: int, samples: int | None = None) -> tuple[Samples, np.ndarray]:
    """Return the samples of a set and the site of each, int (n,).

    Args:
        key: of the set.
        seed: of all draws.
        samples: how many; by default those of the set.
    """
    about = SETS[key]
    wanted = samples or about.samples
    streams = Streams(seed)
    label = labels_of_sizes(wanted, about.classes, about.ratio, streams.numpy(f"unseen {key} labels"))
    drawn = about.make(label, streams.numpy(f"unseen {key} samples"))
    return drawn, deal_to_sites(drawn.label, about.sites, streams.numpy(f"unseen {key} sites"))
