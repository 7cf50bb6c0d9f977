"""In which space K-means clusters counts: on kinds for the choice, and on kinds that chose nothing.

    python -m shoal_research.label_free.counts        # half an hour on a core

Each kind is drawn three times and dealt to six sites, evenly and by Dirichlet(0.1). Counts are clustered as log(1 + x),
as unit vectors: with columns as they are, divided by the root of their deviation, standardised, and standardised and
projected onto 16 or 64 components.

Texts are the news of AG News, and two kinds that every installation has: what functions of packages say of themselves,
and the source files of these packages, by package.
"""

from __future__ import annotations

import ast
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.feature_extraction.text import CountVectorizer

from shoal.engine.settings import places
from shoal_research.label_free.drawn_images import labels_of
from shoal_research.label_free.sites import DEALINGS, Sites, evened
from shoal_research.label_free.tables import COUNTS
from shoal_research.label_free.tuning_sets import IMAGES

SEEDS = 3
TEXTS = 1_000
WORDS = 500
PACKAGES = ("matplotlib", "networkx", "scipy", "sqlalchemy", "torch")
LOGARITHMS = {"representation": "counts", "space": "directions"}
SPACES: Mapping[str, dict[str, Any]] = {
    "no counts": {},
    "columns as they are": {**LOGARITHMS, "standardise": False},
    "by the root of their deviation": {**LOGARITHMS, "standardise": True},
    "standardised": {"space": "directions", "standardise": True},
    "16 components": {"space": "directions", "standardise": True, "components": 16},
    "64 components": {"space": "directions", "standardise": True, "components": 64},
}
"""Settings of K-means; the first is that of columns that are not taken for counts."""
Counts = tuple[np.ndarray, np.ndarray]
"""Whole numbers float64 (n, columns), and classes int (n,)."""


def words(seed: int, own: int, ratio: int = 1) -> Counts:
    """Draw texts of four kinds, each of which says `own` of 500 words eight times as often; the rest is Zipf's law."""
    rng, y = labels_of(seed, TEXTS, 4, ratio)
    share = np.tile(1 / np.arange(1, WORDS + 1), (4, 1))
    for kind in share:
        kind[rng.choice(WORDS, own, replace=False)] *= 8
    share /= share.sum(1, keepdims=True)
    return rng.poisson(rng.lognormal(3, 0.5, (TEXTS, 1)) * share[y]).astype(float), y


def events(seed: int) -> Counts:
    """Draw how often each of thirty events happens, rarely, in five kinds; a third of the rates are a kind's own."""
    rng, y = labels_of(seed, 600, 5, 2)
    rates = np.tile(rng.gamma(0.7, 0.5, 30), (5, 1))
    for kind in rates:
        kind[rng.choice(30, 10, replace=False)] = rng.gamma(0.7, 0.8, 10)
    return rng.poisson(rates[y]).astype(float), y


def digits(seed: int) -> Counts:
    """Take the pixels of 300 images of MNIST; the seed says nothing."""
    made = IMAGES["MNIST, 300"]()
    x = np.asarray(made[0], dtype=float)
    return x.reshape(len(x), -1), np.asarray(made[1])


def news(seed: int) -> Counts:
    """Count the most frequent words of texts of AG News, of four kinds."""
    mirror = places.mirror()
    assert mirror is not None, "set SHOAL_DATA_MIRROR to a folder with ag_news_csv"
    rows = pd.read_csv(mirror / "ag_news_csv" / "train_subset.csv.gz", names=["kind", "title", "text"])
    rows = rows.sample(TEXTS, random_state=seed)
    return counted(list(rows["title"] + " " + rows["text"])), rows["kind"].to_numpy() - 1


def baskets(seed: int) -> Counts:
    """Draw what four kinds of customers buy of eighty products."""
    rng, y = labels_of(seed, 600, 4, 1)
    taste = rng.gamma(0.5, size=80) * np.exp(1.2 * rng.normal(size=(4, 80)))
    taste /= taste.sum(1, keepdims=True)
    return rng.poisson(rng.lognormal(3.2, 0.6, (600, 1)) * taste[y]).astype(float), y


def docstrings(seed: int) -> Counts:
    """Count the words that functions of five packages say of themselves."""
    return sampled([list(said_in(package)) for package in PACKAGES], 200, seed)


def sources(seed: int) -> Counts:
    """Count the words of source files of five packages."""
    return sampled([[file.read_text(errors="ignore") for file in files_of(name)] for name in PACKAGES], 100, seed)


def files_of(package: str) -> list[Path]:
    """Return the source files of an installed package, in order."""
    found = find_spec(package)
    assert found is not None
    assert found.origin is not None
    return sorted(file for file in Path(found.origin).parent.rglob("*.py") if file.stat().st_size > 2_000)


def said_in(package: str) -> Iterator[str]:
    """Yield the docstrings of more than 200 characters in a package."""
    for file in files_of(package):
        for node in ast.walk(ast.parse(file.read_text(errors="ignore"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                text = ast.get_docstring(node) or ""
                if len(text) > 200:
                    yield text


def sampled(texts: list[list[str]], number: int, seed: int) -> Counts:
    """Count the words of at most so many texts of each kind, without the names of packages."""
    rng = np.random.default_rng(seed)
    some = [[each[i] for i in rng.permutation(len(each))[:number]] for each in texts]
    named = re.compile("|".join((*PACKAGES, "plt", "nx", "sqla")))
    kinds = np.repeat(np.arange(len(some)), [len(each) for each in some])
    return counted([named.sub(" ", text.lower()) for each in some for text in each]), kinds


def counted(texts: list[str]) -> np.ndarray:
    """Return how often each of the most frequent words stands in each text, float64 (n, words)."""
    found = CountVectorizer(max_features=WORDS, stop_words="english").fit_transform(texts)
    return np.asarray(found.toarray(), dtype=float)


KINDS: Mapping[str, Callable[[int], Counts]] = {
    "words": lambda seed: words(seed, 40),
    "few own words": lambda seed: words(seed, 10),
    "words, 10:1": lambda seed: words(seed, 40, 10),
    "events": events,
    "pixels of MNIST": digits,
    "news": news,
    "baskets": baskets,
    "what functions say": docstrings,
    "source files": sources,
}
"""The first six choose the space; the others choose nothing."""


def rows_for(space: str, x: np.ndarray) -> np.ndarray:
    """Return the table (n, columns) of counts that K-means gets in a space."""
    if not SPACES[space]:
        return evened(x)
    return x if "representation" in SPACES[space] else np.log1p(x)


def measure() -> None:
    """Measure every draw that the file does not hold: ACC by kind, dealing, seed and space."""
    kept: dict[str, dict[str, float]] = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    for kind, draw in KINDS.items():
        for seed in range(SEEDS):
            x, y = draw(seed)
            for dealing, deal in DEALINGS.items():
                acc = kept.setdefault(f"{kind}, {dealing}, {seed}", {})
                site = deal(y, np.random.default_rng(seed))
                for name in SPACES.keys() - acc.keys():
                    with tempfile.TemporaryDirectory() as folder:
                        rows = rows_for(name, x)
                        world = Sites(rows, y, site, seed, Path(folder), ())
                        acc[name] = round(world.accuracy(**SPACES[name]), 4)
                COUNTS.write_text(json.dumps(kept, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    measure()
