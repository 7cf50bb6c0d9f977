"""The ten sets: kind, number of samples, sites and evenness of the classes. All of it follows from `SEED`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
from shoal_research.unseen.samples import Samples
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
    "shapes": DrawnSet(shapes.make, len(shapes.CLASSES), samples=600, sites=6),
    "textures": DrawnSet(textures.make, len(textures.CLASSES), samples=560, sites=5),
    "letters": DrawnSet(letters.make, len(letters.CLASSES), samples=700, sites=6, ratio=12),
    "waves": DrawnSet(waves.make, len(waves.CLASSES), samples=500, sites=5),
    "mixed_scales": DrawnSet(mixed_scales.make, len(mixed_scales.CLASSES), samples=600, sites=6, ratio=15),
    "directions": DrawnSet(directions.make, len(directions.CLASSES), samples=800, sites=8),
    "scenes": DrawnSet(scenes.make, len(scenes.CLASSES), samples=450, sites=5, ratio=10),
    "fashion": TakenSet(fashion.take, 10, samples=1000, sites=8),
    "wine": TakenSet(wine.take, 3, samples=178, sites=4),
    "displays": DrawnSet(displays.make, len(displays.CLASSES), samples=600, sites=6, ratio=12),
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
    if isinstance(about, DrawnSet):
        label = labels_of_sizes(wanted, about.classes, about.ratio, streams.numpy(f"unseen {key} labels"))
        found = about.make(label, streams.numpy(f"unseen {key} samples"))
    else:
        found = about.take(wanted, streams.numpy(f"unseen {key} samples"))
    return found, deal_to_sites(found.label, about.sites, streams.numpy(f"unseen {key} sites"))
