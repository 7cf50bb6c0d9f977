"""The built-in data sets: description, options, and the function that loads the arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.errors import DataError
from shoal.core.streams import stream_seed
from shoal.data.sets import files, readers, synthetic
from shoal.data.sets.prepared import Kind
from shoal.data.sets.sources import DOWNLOAD_ERRORS, Layout, Raw, find, missing, not_found
from shoal.data.sets.text import build_vocabulary, encode, tokenise

Parts = dict[str, tuple[np.ndarray, np.ndarray]]
"""Samples and their labels, by part (train and test)."""


@dataclass(frozen=True)
class Request:
    """The input of a set's function: where raw files are, and every option with its value."""

    mirror: Path | None
    raw: Path
    options: Mapping[str, int]


@dataclass(frozen=True)
class LoadedSet:
    """The result of a set's function: parts in their prepared form (see data/sets/prepared.py), and their source."""

    parts: Parts
    source: str
    class_names: tuple[str, ...] = ()
    subset: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DataSet:
    """One built-in set. `options` are whole numbers with their defaults."""

    name: str
    kind: Kind
    licence: str
    description: str
    load: Callable[[Request], LoadedSet]
    options: Mapping[str, int] = field(default_factory=dict)


def load_digits(request: Request) -> LoadedSet:
    """Load scikit-learn's digits (UCI, 1,797 images) with a fixed stratified split: 1,437 train and 360 test.

    Values v from 0 to 16 become round(v * 255 / 16).
    """
    from sklearn.datasets import load_digits as sklearn_digits
    from sklearn.model_selection import train_test_split

    bunch = sklearn_digits()
    images = np.round(bunch.images * 255 / 16).astype(np.uint8)[:, None]
    labels = bunch.target.astype(np.int64)
    seed = stream_seed(0, "digits split") % 2**32  # scikit-learn takes 32-bit seeds only
    split = train_test_split(np.arange(len(labels)), test_size=360, stratify=labels, random_state=seed)
    train, test = map(np.sort, split)
    parts = {"train": (images[train], labels[train]), "test": (images[test], labels[test])}
    return LoadedSet(parts, "scikit-learn, load_digits", tuple(map(str, range(10))))


def shrink(images: np.ndarray, factor: int) -> np.ndarray:
    """Shrink images (n, channels, height, width): uint8 rounded means of `factor` x `factor` pixels.

    Raises:
        DataError: the sides are not multiples of `factor`.
    """
    n, channels, height, width = images.shape
    if height % factor or width % factor:
        raise DataError(f"option 'shrink' is {factor}, which does not divide images of {height} x {width}")
    blocks = images.reshape(n, channels, height // factor, factor, width // factor, factor)
    return np.asarray(np.round(blocks.mean((3, 5))), np.uint8)


def load_idx(
    request: Request, *, name: str, torchvision: str, layout: Layout, class_names: tuple[str, ...]
) -> LoadedSet:
    """Load MNIST or Fashion-MNIST from their four idx files.

    Raises:
        DataError: the files are missing or others than the published, or a divisor does not divide the sides.
    """
    raw = find(name, (layout,), partial(files.download_torchvision, torchvision), request.mirror, request.raw)
    parts = {}
    train_x, train_y, test_x, test_y = (readers.read_idx(readers.unpack(raw.read(path), path)) for path in layout)
    for part, x, y in (("train", train_x, train_y), ("test", test_x, test_y)):
        x = x[:, None]
        if request.options["shrink"] > 1:
            x = shrink(x, request.options["shrink"])
        parts[part] = (x, y.astype(np.int64))
    return LoadedSet(parts, _source(layout), class_names)


def load_cifar10(request: Request) -> LoadedSet:
    """Load CIFAR-10 from the binary version in the mirror, else with torchvision: the arrays are the same."""
    mirror = request.mirror
    if mirror is None or missing(mirror, files.CIFAR10):
        return load_with_torchvision(request, "CIFAR10")
    raw = Raw(mirror, files.CIFAR10)
    batches = [readers.read_cifar_records(raw.read(path)) for path in files.CIFAR10]
    x, y = map(np.concatenate, zip(*batches[:-1], strict=True))
    return LoadedSet({"train": (x, y), "test": batches[-1]}, _source(files.CIFAR10), _CIFAR10_NAMES)


def load_with_torchvision(request: Request, name: str) -> LoadedSet:
    """Load CIFAR10 or CIFAR100 with torchvision, which checks the md5 of each file before it reads it.

    Raises:
        DataError: the files are not here, or other ones than the published, and the download failed.
    """
    from torchvision import datasets

    kind = getattr(datasets, name)
    root = request.raw
    if request.mirror is not None and (request.mirror / kind.base_folder).is_dir():
        root = request.mirror
    parts = {}
    try:
        for part in ("train", "test"):
            loaded = kind(root, train=part == "train", download=root == request.raw)
            x = np.ascontiguousarray(loaded.data.transpose(0, 3, 1, 2))
            parts[part] = (x, np.asarray(loaded.targets, dtype=np.int64))
    except DOWNLOAD_ERRORS as error:
        raise not_found(name, [str(root)], error, Path(kind.base_folder)) from error
    return LoadedSet(parts, f"{kind.base_folder}, checksums verified", tuple(loaded.classes))


def load_ag_news(request: Request) -> LoadedSet:
    """Load AG News as token numbers; the vocabulary comes from the training part only."""
    layouts = (files.AG_NEWS, files.AG_NEWS_SUBSET)
    raw = find("ag-news", layouts, files.download_ag_news, request.mirror, request.raw)
    options = request.options
    read = {}
    for part, path in zip(("train", "test"), raw.layout, strict=True):
        texts, labels = readers.read_ag_news(readers.unpack(raw.read(path), path))
        read[part] = ([tokenise(text) for text in texts], labels)
    documents = read["train"][0]
    vocabulary = build_vocabulary(documents, size=options["vocabulary"], frequency=options["frequency"])
    parts = {part: (encode(tokens, vocabulary, options["length"]), y) for part, (tokens, y) in read.items()}
    subset = ""
    if raw.layout == files.AG_NEWS_SUBSET:
        subset = f"{len(documents):,} of {files.AG_NEWS_ROWS:,} training rows"
    extra = {"vocabulary": list(vocabulary)}
    return LoadedSet(parts, _source(raw.layout), ("World", "Sports", "Business", "Sci/Tech"), subset, extra)


def load_drawn(request: Request, *, draw: Callable[..., tuple[np.ndarray, np.ndarray]], source: str) -> LoadedSet:
    """Draw the training part, and the test part if it has any points."""
    options = request.options
    counts = {"train": options["samples"], "test": options["test"]}
    about = {name: value for name, value in options.items() if name not in ("samples", "test")}
    parts = {part: draw(samples=count, part=part, **about) for part, count in counts.items() if count}
    return LoadedSet(parts, source, tuple(f"cluster {k}" for k in range(options["clusters"])))


def _source(layout: Layout) -> str:
    # No absolute path: the same bytes give the same manifest on every machine.
    return f"{Path(layout[0]).parent}, checksums verified"


_IMAGES = {"shrink": 1}
"""The divisor of the sides: each pixel is the mean of a square with this side."""
_SYNTHETIC = {"clusters": 4, "samples": 1000, "dimension": 32, "seed": 0, "test": 250}
"""Number of clusters, training points a cluster, dimensions, seed of clusters and points, test points a cluster."""
_CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

SETS: dict[str, DataSet] = {
    each.name: each
    for each in (
        DataSet(
            "digits",
            "image",
            "CC BY 4.0 (UCI Optical Recognition of Handwritten Digits)",
            "8x8 grey digits that come with scikit-learn: no download",
            load_digits,
        ),
        DataSet(
            "mnist",
            "image",
            "CC BY-SA 3.0 (LeCun, Cortes, Burges)",
            "28x28 grey handwritten digits",
            partial(
                load_idx,
                name="mnist",
                torchvision="MNIST",
                layout=files.MNIST,
                class_names=tuple(map(str, range(10))),
            ),
            _IMAGES,
        ),
        DataSet(
            "fashion-mnist",
            "image",
            "MIT (Zalando Research)",
            "28x28 grey clothes",
            partial(
                load_idx,
                name="fashion-mnist",
                torchvision="FashionMNIST",
                layout=files.FASHION_MNIST,
                class_names=_CLOTHES,
            ),
            _IMAGES,
        ),
        DataSet(
            "cifar10",
            "image",
            "none stated; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
            "32x32 colour photographs of 10 classes",
            load_cifar10,
        ),
        DataSet(
            "cifar100",
            "image",
            "none stated; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
            "32x32 colour photographs of 100 classes",
            partial(load_with_torchvision, name="CIFAR100"),
        ),
        DataSet(
            "ag-news",
            "text",
            "research and other non-commercial use (Zhang, Zhao, LeCun; Gulli's AG corpus)",
            "news of 4 topics as sequences of word numbers",
            load_ag_news,
            {"vocabulary": 10_000, "frequency": 2, "length": 64},
        ),
        DataSet(
            "gaussian",
            "vector",
            "none needed: drawn",
            "blobs of unit variance around distinct corners of a cube of side 5",
            partial(load_drawn, draw=synthetic.gaussian, source="drawn: centres 5 * Bernoulli(0.5), unit variance"),
            _SYNTHETIC,
        ),
        DataSet(
            "subspace",
            "vector",
            "none needed: drawn",
            "points of random linear subspaces",
            partial(
                load_drawn, draw=synthetic.subspace, source="drawn: random orthonormal bases, N(0, 1) coefficients"
            ),
            {**_SYNTHETIC, "rank": 16},
        ),
    )
}
