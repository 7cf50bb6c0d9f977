"""Own images in planted kinds: a folder of clients whose files are named after what they show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from shoal.engine.settings import places
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run
from tests.added_sets import add_set

KINDS = ("dark", "left", "right")


def kind_of(file: str) -> str:
    """The kind that a file is named after: `north/deep/left-03.png` is of the kind left."""
    return Path(file).stem.split("-")[0]


def draw(kind: str, rng: np.random.Generator, side: int = 12) -> Image.Image:
    """A grey image of a kind: dark all over, or bright in its left or right half; no two are equal."""
    pixels = rng.integers(0, 40, (side, side))
    half = {"dark": slice(0, 0), "left": slice(0, side // 2), "right": slice(side // 2, side)}[kind]
    pixels[:, half] += 180
    return Image.fromarray(pixels.astype(np.uint8))


def write_clients(folder: Path, clients: tuple[str, ...] = ("north", "süd", "lab 3"), each: int = 6) -> None:
    """A sub-folder per client; the files' names do not sort by kind, and some files lie deeper."""
    rng = np.random.default_rng(0)
    for place, client in enumerate(clients):
        for number in range(each + place):  # no two clients are equally large
            for kind in KINDS:
                path = folder / client / ("deep" if number % 2 else "") / f"{kind}-{(7 * number) % 10}{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                draw(kind, rng).save(path)


def clustered(home: Path, small: Callable[..., Any], each: int) -> RunFolder:
    """A finished run of K-means on such images as the set `mine`, whose clusters are the kinds."""
    write_clients(home / "pictures", each=each)
    add_set(home / "pictures", "mine", places.store())
    settings = small(
        data={"name": "mine", "limit": None},
        method={"name": "kmeans"},
        partition={"kind": "by_column", "column": "client"},
        model={"clusters": 3},
        rounds=1,
    )
    run = new_run(settings)
    drive(run)
    return run


def write_new(folder: Path, each: int = 3) -> None:
    """New images of the same kinds, at two depths."""
    rng = np.random.default_rng(1)
    for number in range(each):
        for kind in KINDS:
            path = folder / ("below" if number % 2 else "") / f"{kind}-new{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            draw(kind, rng).save(path)
