"""What the rules for sites that differ, counts and windows change on six kinds of samples that chose nothing.

    python -m shoal_research.label_free.own_kinds FILE        # half an hour on a core; needs the packaged encoder

Two kinds of images, two tables, counts, words of news, and windows out of phase, each drawn with three seeds and dealt
to six sites, evenly and by Dirichlet(0.1); images and tables without effects of sites and with them (another stain or
light, offsets of .8 deviations). Before: `method.sites=ignore` and samples as they are; after: every default. The
number of clusters is that of the classes. Lines of the file are records as JSON.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image, ImageDraw
from sklearn.feature_extraction.text import CountVectorizer

import shoal
from shoal.engine.settings import places
from shoal.methods.auto import KMEANS_ROUNDS, UNEVEN_SPREAD
from shoal_research.label_free.drawn_images import FINE, Set, as_image, drawn, labels_of, reduced
from shoal_research.label_free.sites import CLIENTS, DEALINGS, lit, moved
from shoal_research.own_sets import add_images, add_table

SEEDS = 3
SIDE = 48
MOMENTS = 96
PERIODS = (8, 12, 19, 31)
STAIN = np.array([0.5, 1.2, 0.7])
"""Absorbance of red, green and blue where all sites stain alike."""
Effect = Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]


def pollen(seed: int) -> Set:
    """Draw the absorbance of smooth, spiny, pored, furrowed and netted grains, float64 (n, side, side)."""
    rng, y = labels_of(seed, 500, 5, 1)
    return drawn(y, partial(_grain, rng))


def _grain(rng: np.random.Generator, label: int) -> np.ndarray:
    side = FINE * SIDE
    image = Image.new("L", (side, side))
    pen = ImageDraw.Draw(image)
    radius = rng.uniform(0.22, 0.34) * side
    centre = rng.uniform(1.3 * radius, side - 1.3 * radius, 2)
    turn = rng.uniform(0, 2 * np.pi)
    around = radius * np.array([direction(turn + math.pi / 6 * number) for number in range(12)])
    if label == 1:
        lines(pen, [(centre + 0.9 * way, centre + 1.28 * way) for way in around], 150, 8)
    pen.circle(centre.tolist(), radius, fill=110)
    if label == 2:
        for way in around[::2]:
            pen.circle((centre + 0.6 * way).tolist(), 0.13 * radius, fill=30)
    elif label == 3:
        lines(pen, [(centre, centre + way) for way in around[::4]], 220, 12)
    elif label == 4:
        both = ((around[0], around[3]), (around[3], around[0]))
        net = [(p * b - 0.8 * a, p * b + 0.8 * a) for a, b in both for p in (-0.5, 0.0, 0.5)]
        lines(pen, [(centre + begin, centre + end) for begin, end in net], 200, 7)
    grey = np.asarray(reduced(image, SIDE)) / 255
    absorbance: np.ndarray = grey * rng.uniform(0.8, 1.3) + rng.normal(0.05, 0.03, grey.shape)
    return absorbance


def direction(angle: float) -> np.ndarray:
    """Return a vector of length 1."""
    return np.array([math.cos(angle), math.sin(angle)])


def lines(pen: ImageDraw.ImageDraw, ends: Sequence[tuple[np.ndarray, np.ndarray]], fill: int, width: int) -> None:
    """Draw lines."""
    for begin, end in ends:
        pen.line([*begin.tolist(), *end.tolist()], fill=fill, width=width)


def stained(absorbance: np.ndarray, stain: np.ndarray) -> np.ndarray:
    """Return images uint8 (n, side, side, 3) of absorbances (n, side, side), by a stain (3,) or one each (n, 3)."""
    return as_image(
        250 * np.exp(-1.6 * absorbance[..., None] * np.broadcast_to(stain, (len(absorbance), 3))[:, None, None])
    )


def stains(absorbance: np.ndarray, site: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return images of which each site has another stain."""
    return stained(absorbance, rng.uniform(0.3, 1.5, (CLIENTS, 3))[site])


def leaves(seed: int) -> Set:
    """Draw oval, lobed, narrow, toothed and heart-shaped leaves of several greens and browns on paper."""
    rng, y = labels_of(seed, 500, 5, 1)
    angle = np.linspace(0, 2 * np.pi, 160, endpoint=False)
    outlines = (
        np.stack([np.cos(angle), 0.5 * np.sin(angle)]),
        (0.7 + 0.3 * np.cos(5 * angle)) * np.stack([np.cos(angle), np.sin(angle)]),
        np.stack([np.cos(angle), 0.14 * np.sin(angle)]),
        (0.8 + 0.12 * np.sign(np.cos(14 * angle))) * np.stack([np.cos(angle), 0.8 * np.sin(angle)]),
        0.55 * (1 - np.cos(angle)) * np.stack([np.cos(angle), np.sin(angle)]) + 0.35,
    )

    def image_of(label: int) -> np.ndarray:
        side = FINE * SIDE
        turn = rng.uniform(0, 2 * np.pi)
        turned = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]]) @ outlines[label]
        points = side / 2 + rng.uniform(0.28, 0.4) * side * turned + rng.uniform(-0.08, 0.08, (2, 1)) * side
        image = Image.new("RGB", (side, side), tuple(rng.integers(200, 240, 3).tolist()))
        colour = (int(rng.integers(60, 150)), int(rng.integers(90, 150)), int(rng.integers(30, 70)))
        ImageDraw.Draw(image).polygon(points.T.ravel().tolist(), fill=colour)
        return as_image(np.array(reduced(image, SIDE)) + rng.normal(0, 8, (SIDE, SIDE, 3)))

    return drawn(y, image_of)


def clinic(seed: int) -> Set:
    """Draw four kinds of patients, 3:1, in twelve correlated measurements of several units, a third of them skewed."""
    rng, y = labels_of(seed, 700, 4, 3)
    latent = 2.2 * rng.normal(size=(4, 8))[y] + rng.normal(size=(700, 8))
    x = latent @ rng.normal(size=(8, 12)) / math.sqrt(8) + 0.3 * rng.normal(size=(700, 12))
    x[:, :4] = np.exp(0.5 * x[:, :4])
    return x * 10 ** rng.uniform(-1, 3, 12), y


def voices(seed: int) -> Set:
    """Draw six kinds in 24 columns that follow from six factors, with heavy tails."""
    rng, y = labels_of(seed, 900, 6, 1)
    factors = 3 * rng.normal(size=(6, 6))[y] + rng.standard_t(5, size=(900, 6))
    return factors @ rng.normal(size=(6, 24)) + rng.standard_t(5, size=(900, 24)), y


def baskets(seed: int) -> Set:
    """Draw what four kinds of customers buy of eighty products: counts, most of them 0."""
    rng, y = labels_of(seed, 600, 4, 1)
    taste = rng.gamma(0.5, size=80) * np.exp(1.2 * rng.normal(size=(4, 80)))
    taste /= taste.sum(1, keepdims=True)
    return rng.poisson(rng.lognormal(3.2, 0.6, (600, 1)) * taste[y]).astype(float), y


def news(seed: int) -> Set:
    """Count the 500 most frequent words of 1,000 texts of AG News, of four kinds."""
    mirror = places.mirror()
    assert mirror is not None, "set SHOAL_DATA_MIRROR to a folder with ag_news_csv"
    rows = pd.read_csv(mirror / "ag_news_csv" / "train_subset.csv.gz", names=["kind", "title", "text"])
    rows = rows.sample(1_000, random_state=seed)
    counted = CountVectorizer(max_features=500, stop_words="english").fit_transform(rows["title"] + " " + rows["text"])
    return counted.toarray().astype(float), rows["kind"].to_numpy() - 1


def pulses(seed: int) -> Set:
    """Draw windows of pulses that come again after 8, 12, 19 or 31 moments, from any moment on."""
    rng, y = labels_of(seed, 500, 4, 1)
    time = np.arange(MOMENTS)
    period = np.array(PERIODS)[y][:, None]
    phase = (time + rng.uniform(0, 31, (500, 1))) % period
    height = rng.uniform(0.7, 1.4, (500, 1))
    return height * np.exp(-(((phase - 3) / 1.5) ** 2)) + 0.25 * rng.normal(size=(500, MOMENTS)), y


@dataclass(frozen=True)
class Kind:
    """A kind of samples: how they are drawn, the effect of sites on them (none: only without), and what was before."""

    draw: Callable[[int], Set]
    effect: Effect | None
    before: Mapping[str, Any]
    form: str


IGNORED = {"method.sites": "ignore"}
AS_IS = {"method.representation": "as-is"}
KINDS: Mapping[str, Kind] = {
    "clinic": Kind(clinic, moved, IGNORED, "table"),
    "voices": Kind(voices, moved, IGNORED, "table"),
    "baskets": Kind(baskets, None, IGNORED, "columns"),
    "news": Kind(news, None, IGNORED, "columns"),
    "pulses": Kind(pulses, None, IGNORED, "windows"),
    "pollen": Kind(pollen, stains, IGNORED | AS_IS, "images"),
    "leaves": Kind(leaves, lit, IGNORED | AS_IS, "images"),
}


def add(name: str, form: str, x: np.ndarray, y: np.ndarray, site: np.ndarray) -> None:
    """Add samples to the store as a person's files."""
    sites = [f"site-{number + 1}" for number in site]
    labels = [f"kind-{label + 1}" for label in y]
    if form == "images":
        add_images(name, x, labels, sites)
    elif form == "windows":
        who = np.repeat(np.arange(len(x)), MOMENTS)
        rows = {"client": np.array(sites)[who], "series": who, "time": np.tile(np.arange(MOMENTS), len(x))}
        table = pd.DataFrame({**rows, "value": x.ravel(), "label": np.array(labels)[who]})
        add_table(name, table, label_column="label", window=str(MOMENTS), series_column="series")
    else:
        columns = [f"c{number}" for number in range(x.shape[1])]
        add_table(name, pd.DataFrame(x, columns=columns).assign(client=sites, label=labels), label_column="label")


def named_before(x: np.ndarray) -> dict[str, Any]:
    """Return the settings that counts and windows had before: K-means of columns, standardised where they differ."""
    deviation = x[:, x.std(0) > 0].std(0)
    uneven = bool(deviation.max() >= UNEVEN_SPREAD * np.median(deviation))
    return {"method.name": "fedkmeans", "method.standardise": uneven, "rounds": KMEANS_ROUNDS}


def record(name: str, dealing: str, seed: int, *, differ: bool) -> dict[str, Any]:
    """Return the scores of a draw before and after."""
    kind = KINDS[name]
    x, y = kind.draw(seed)
    rng = np.random.default_rng(seed)
    site = DEALINGS[dealing](y, rng)
    before: dict[str, Any] = dict(kind.before)
    if kind.form in ("columns", "windows"):
        before |= named_before(x)
    if differ and kind.effect:
        x = kind.effect(x, site, rng)
    elif name == "pollen":
        x = stained(x, STAIN)
    with tempfile.TemporaryDirectory() as home:
        os.environ["SHOAL_HOME"] = home
        add("mine", kind.form, x, y, site)
        settings = {
            "data.name": "mine",
            "model.clusters": len(np.unique(y)),
            "partition.kind": "by_column",
            "method.name": "auto",
            "seed": seed,
            "tracking.mlflow": False,
            "tracking.prefect": "off",
        }
        return {
            "kind": name,
            "dealing": dealing,
            "differ": differ,
            "seed": seed,
            "before": scores(settings | before),
            "after": scores(settings),
        }


def scores(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return ACC, ARI and the representation of a run."""
    run = shoal.run(dict(settings))
    metrics = run.result.metrics
    used = run.settings.to_json()["method"].get("representation", "as-is")
    return {"acc": round(metrics["acc"], 4), "ari": round(metrics["ari"], 4), "representation": used}


if __name__ == "__main__":
    with open(sys.argv[1], "a", encoding="utf-8") as lines:
        for which, about in KINDS.items():
            for one in range(SEEDS):
                for dealt in DEALINGS:
                    for other in (False, True)[: 1 + bool(about.effect)]:
                        print(json.dumps(record(which, dealt, one, differ=other)), file=lines, flush=True)
