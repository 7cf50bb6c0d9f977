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
from shoal.data.sets.sources import Layout, Raw, find
from shoal.data.sets.text import build_vocabulary, encode, tokenise

Arrays = dict[str, np.ndarray | None]


@dataclass(frozen=True)
class Request:
    """The input of a set's function: where raw files are, and every option with its value."""

    mirror: Path | None
    raw: Path
    checksums: Mapping[str, str]
    options: Mapping[str, int]


@dataclass(frozen=True)
class Loaded:
    """The result of a set's function: arrays in their prepared form (see data/sets/prepared.py), and their source."""

    arrays: Arrays
    source: str
    class_names: tuple[str, ...] = ()
    subset: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DataSet:
    """One built-in set. `options` are whole numbers with their defaults; `meanings` describes each."""

    name: str
    kind: Kind
    licence: str
    description: str
    load: Callable[[Request], Loaded]
    options: Mapping[str, int] = field(default_factory=dict)
    meanings: Mapping[str, str] = field(default_factory=dict)


def load_digits(request: Request) -> Loaded:
    """Load scikit-learn's digits (UCI, 1,797 images) with a fixed stratified split: 1,437 train and 360 test.

    Values v from 0 to 16 become round(v * 255 / 16).
    """
    from sklearn.datasets import load_digits as sklearn_digits
    from sklearn.model_selection import train_test_split

    bunch = sklearn_digits()
    images = np.round(bunch.images * 255 / 16).astype(np.uint8)[:, None]
    labels = bunch.target.astype(np.int64)
    seed = stream_seed(0, "digits split") % 2**32  # scikit-learn takes 32-bit seeds only
    parts = train_test_split(np.arange(len(labels)), test_size=360, stratify=labels, random_state=seed)
    arrays: Arrays = {}
    for part, rows in zip(("train", "test"), parts, strict=True):
        rows = np.sort(rows)
        arrays[f"{part}_x"] = images[rows]
        arrays[f"{part}_y"] = labels[rows]
    return Loaded(arrays, "scikit-learn, load_digits", tuple(map(str, range(10))))


def shrink(images: np.ndarray, factor: int) -> np.ndarray:
    """Shrink images (n, channels, height, width): uint8 rounded means of `factor` x `factor` pixels.

    Raises:
        DataError: the sides are not multiples of `factor`.
    """
    n, channels, height, width = images.shape
    if height % factor or width % factor:
        raise DataError(f"option 'shrink' is {factor}, which does not divide images of {height} x {width}")
    blocks = images.reshape(n, channels, height // factor, factor, width // factor, factor)
    result: np.ndarray = np.round(blocks.mean((3, 5))).astype(np.uint8)
    return result


def load_idx(
    request: Request, *, name: str, torchvision: str, layouts: tuple[Layout, ...], class_names: tuple[str, ...]
) -> Loaded:
    """Load MNIST or Fashion-MNIST from their four idx files.

    Raises:
        DataError: files that do not match, or a divisor that does not divide the sides.
    """
    raw = _find(request, name, layouts, partial(files.download_torchvision, torchvision))
    arrays: Arrays = {}
    contents = [(file.path, raw.read(file.path)) for file in raw.layout.files]
    train_x, train_y, test_x, test_y = (readers.read_idx(readers.unpack(c, path), path) for path, c in contents)
    for part, x, y in (("train", train_x, train_y), ("test", test_x, test_y)):
        if x.ndim != 3 or y.shape != x.shape[:1]:
            raise DataError(f"{part} images of {name!r} are {x.shape} and labels {y.shape}: the files do not match")
        x = x[:, None]
        if request.options["shrink"] > 1:
            x = shrink(x, request.options["shrink"])
        arrays[f"{part}_x"] = x
        arrays[f"{part}_y"] = y.astype(np.int64)
    return Loaded(arrays, _source(raw), class_names, extra=_extra(raw))


def load_cifar(
    request: Request,
    *,
    name: str,
    torchvision: str,
    layouts: tuple[Layout, ...],
    classes: int,
    class_names: tuple[str, ...] = (),
) -> Loaded:
    """Load CIFAR-10 or CIFAR-100 from the Python or the binary version: the arrays are the same."""
    raw = _find(request, name, layouts, partial(files.download_torchvision, torchvision))
    python = raw.layout.name == "python"
    parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {"train": [], "test": []}
    for file in raw.layout.files:
        content = raw.read(file.path)
        if python:
            batch = readers.cifar_batch(readers.read_cifar_pickle(content, file.path), file.path, classes=classes)
        else:
            batch = readers.read_cifar_records(content, file.path, classes=classes)
        parts["test" if "test" in Path(file.path).name else "train"].append(batch)
    arrays: Arrays = {}
    for part, batches in parts.items():
        arrays[f"{part}_x"] = np.concatenate([x for x, _ in batches])
        arrays[f"{part}_y"] = np.concatenate([y for _, y in batches])
    extra = _extra(raw)
    for file in raw.layout.optional:
        content = raw.read_optional(file.path) or b""
        if file.path.endswith("jpeg_indices.txt") and content:
            extra["test_from_jpeg"] = files.numbers_of_lines(content, file.path)
        elif file.path.endswith("meta") and content:
            class_names = tuple(map(str, readers.read_cifar_pickle(content, file.path).get("fine_label_names", ())))
        elif content:
            class_names = files.names_of_lines(content, file.path)
    return Loaded(arrays, _source(raw), class_names, extra=extra)


def load_ag_news(request: Request) -> Loaded:
    """Load AG News as token numbers; the vocabulary comes from the training part only."""
    raw = _find(request, "ag-news", files.AG_NEWS, files.download_ag_news)
    train_file, test_file = (file.path for file in raw.layout.files)
    options = request.options
    documents: dict[str, list[list[str]]] = {}
    arrays: Arrays = {}
    for part, path in (("train", train_file), ("test", test_file)):
        texts, labels = readers.read_ag_news(readers.unpack(raw.read(path), path), path)
        documents[part] = [tokenise(text) for text in texts]
        arrays[f"{part}_y"] = labels
    vocabulary = build_vocabulary(documents["train"], size=options["vocabulary"], frequency=options["frequency"])
    for part, tokens in documents.items():
        arrays[f"{part}_x"] = encode(tokens, vocabulary, options["length"])
    subset = ""
    if raw.layout.name == "subset":
        subset = f"{len(documents['train']):,} of {files.AG_NEWS_ROWS:,} training rows"
    extra = {**_extra(raw), "vocabulary": list(vocabulary)}
    return Loaded(arrays, _source(raw), ("World", "Sports", "Business", "Sci/Tech"), subset, extra)


def load_gaussian(request: Request) -> Loaded:
    """Draw blobs of unit variance around distinct corners of a cube of side 5."""
    o = request.options

    def draw(part: str, count: int) -> tuple[np.ndarray, np.ndarray]:
        return synthetic.gaussian(o["clusters"], count, o["dimension"], o["seed"], part=part)

    return _drawn(draw, o, "drawn: centres 5 * Bernoulli(0.5), unit variance")


def load_subspace(request: Request) -> Loaded:
    """Draw points of random linear subspaces."""
    o = request.options

    def draw(part: str, count: int) -> tuple[np.ndarray, np.ndarray]:
        return synthetic.subspace(o["clusters"], count, o["dimension"], o["rank"], o["seed"], part=part)

    return _drawn(draw, o, "drawn: random orthonormal bases, N(0, 1) coefficients")


def _drawn(
    draw: Callable[[str, int], tuple[np.ndarray, np.ndarray]], options: Mapping[str, int], source: str
) -> Loaded:
    """Draw the training part, and the test part if it has any points."""
    arrays: Arrays = {}
    for part, count in (("train", options["samples"]), ("test", options["test"])):
        if part == "train" or count:
            x, y = draw(part, count)
            arrays[f"{part}_x"] = x
            arrays[f"{part}_y"] = y
    return Loaded(arrays, source, tuple(f"cluster {k}" for k in range(options["clusters"])))


def _find(request: Request, name: str, layouts: tuple[Layout, ...], download: Callable[[Path], None]) -> Raw:
    return find(name, layouts, download, mirror=request.mirror, raw=request.raw, checksums=request.checksums)


def _source(raw: Raw) -> str:
    # No absolute path: the same bytes give the same manifest on every machine.
    return f"{Path(raw.layout.files[0].path).parent}, {raw.layout.name} layout, checksums verified"


def _extra(raw: Raw) -> dict[str, Any]:
    return {"files": {file.path: raw.digests[file.path] for file in raw.layout.files}}


_IMAGES = {"shrink": 1}
_IMAGES_MEANINGS = {"shrink": "divisor of the sides: each pixel is the mean of a square with this side"}
_SYNTHETIC = {"clusters": 4, "samples": 1000, "dimension": 32, "seed": 0, "test": 250}
_SYNTHETIC_MEANINGS = {
    "clusters": "number of clusters",
    "samples": "training points per cluster",
    "dimension": "dimensions of the space",
    "seed": "fixes clusters and points",
    "test": "test points per cluster",
}
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
                layouts=files.MNIST,
                class_names=tuple(map(str, range(10))),
            ),
            _IMAGES,
            _IMAGES_MEANINGS,
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
                layouts=files.FASHION_MNIST,
                class_names=_CLOTHES,
            ),
            _IMAGES,
            _IMAGES_MEANINGS,
        ),
        DataSet(
            "cifar10",
            "image",
            "none stated; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
            "32x32 colour photographs of 10 classes",
            partial(
                load_cifar,
                name="cifar10",
                torchvision="CIFAR10",
                layouts=files.CIFAR10,
                classes=10,
                class_names=_CIFAR10_NAMES,
            ),
        ),
        DataSet(
            "cifar100",
            "image",
            "none stated; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
            "32x32 colour photographs of 100 classes",
            partial(load_cifar, name="cifar100", torchvision="CIFAR100", layouts=files.CIFAR100, classes=100),
        ),
        DataSet(
            "ag-news",
            "text",
            "research and other non-commercial use (Zhang, Zhao, LeCun; Gulli's AG corpus)",
            "news of 4 topics as sequences of word numbers",
            load_ag_news,
            {"vocabulary": 10_000, "frequency": 2, "length": 64},
            {
                "vocabulary": "entries of the vocabulary, <pad>, <unk> and <eos> included",
                "frequency": "words seen less often in training become <unk>",
                "length": "tokens per text, <eos> included",
            },
        ),
        DataSet(
            "gaussian",
            "vector",
            "none needed: drawn",
            "blobs of unit variance around distinct corners of a cube of side 5",
            load_gaussian,
            _SYNTHETIC,
            _SYNTHETIC_MEANINGS,
        ),
        DataSet(
            "subspace",
            "vector",
            "none needed: drawn",
            "points of random linear subspaces",
            load_subspace,
            {**_SYNTHETIC, "rank": 16},
            {**_SYNTHETIC_MEANINGS, "rank": "dimension of each subspace"},
        ),
    )
}
