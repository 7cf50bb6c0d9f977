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
class DrawnSet:
    """A set with labels that are chosen first, and samples that are drawn for them.

    Attributes:
        make: (labels, random numbers) to samples.
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


@dataclass(frozen=True)
class TakenSet:
    """A part of a set that exists, with its own classes.

    Attributes:
        take: (number of samples, random numbers) to samples.
        classes, samples, sites: how many.
    """

    take: Callable[[int, np.random.Generator], Samples]
    classes: int
    samples: int
    sites: int


SETS: dict[str, DrawnSet | TakenSet] = {
    "shapes": DrawnSet(partial(draw_each, shapes.shape, shapes.CLASSES), 6, samples=600, sites=6),
    "textures": DrawnSet(partial(draw_each, textures.texture, textures.CLASSES), 7, samples=560, sites=5),
    "letters": DrawnSet(partial(draw_each, letters.letter, letters.CLASSES), 10, samples=700, sites=6, ratio=12),
    "waves": DrawnSet(waves.make, 5, samples=500, sites=5),
    "mixed_scales": DrawnSet(mixed_scales.make, 6, samples=600, sites=6, ratio=15),
    "directions": DrawnSet(directions.make, 8, samples=800, sites=8),
    "scenes": DrawnSet(partial(draw_each, scenes.scene, scenes.CLASSES), 5, samples=450, sites=5, ratio=10),
    "fashion": TakenSet(fashion.take, 10, samples=1000, sites=8),
    "wine": TakenSet(wine.take, 3, samples=178, sites=4),
    "displays": DrawnSet(partial(draw_each, displays.display, displays.CLASSES), 10, samples=600, sites=6, ratio=12),
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
    draws = streams.numpy(f"unseen {key} samples")
    if isinstance(about, DrawnSet):
        label = labels_of_sizes(wanted, about.classes, about.ratio, streams.numpy(f"unseen {key} labels"))
        drawn = about.make(label, draws)
    else:
        drawn = about.take(wanted, draws)
    return drawn, deal_to_sites(drawn.label, about.sites, streams.numpy(f"unseen {key} sites"))
