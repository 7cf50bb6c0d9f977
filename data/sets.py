"""The built-in data sets: what each is, its options, and the function that yields its arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.errors import DataError
from shoal.core.streams import stream_seed
from shoal.data import files, readers, synthetic
from shoal.data.prepared import Kind
from shoal.data.sources import Layout, Raw, find
from shoal.data.text import build_vocabulary, encode, tokenise

Arrays = dict[str, np.ndarray | None]


@dataclass(frozen=True)
class Request:
    """What a set's function is given: where raw files are, and every option with its value."""

    mirror: Path | None
    raw: Path
    checksums: Mapping[str, str]
    options: Mapping[str, int]


@dataclass(frozen=True)
class Loaded:
    """What a set's function yields: arrays in their prepared form (see data/prepared.py), and where they come from."""

    arrays: Arrays
    source: str
    class_names: tuple[str, ...] = ()
    subset: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DataSet:
    """One built-in set. `options` are whole numbers with their defaults; `meanings` says what each does."""

    name: str
    kind: Kind
    licence: str
    description: str
    load: Callable[[Request], Loaded]
    options: Mapping[str, int] = field(default_factory=dict)
    meanings: Mapping[str, str] = field(default_factory=dict)


def load_digits(request: Request) -> Loaded:
    """scikit-learn's digits (UCI, 1,797 images): 1,437 train and 360 test, stratified, the same for everybody.

    Values v from 0 to 16 become round(v * 255 / 16).
    """
    from sklearn.datasets import load_digits as sklearn_digits
    from sklearn.model_selection import train_test_split

    bunch = sklearn_digits()
    images = np.round(bunch.images * 255 / 16).astype(np.uint8)[:, None]
    labels = bunch.target.astype(np.int64)
    # scikit-learn takes 32-bit seeds only.
    train, test = train_test_split(
        np.arange(len(labels)), test_size=360, stratify=labels, random_state=stream_seed(0, "digits split") % 2**32
    )
    train, test = np.sort(train), np.sort(test)
    arrays: Arrays = {
        "train_x": images[train],
        "train_y": labels[train],
        "test_x": images[test],
        "test_y": labels[test],
    }
    return Loaded(arrays, "scikit-learn, load_digits", tuple(map(str, range(10))))


def shrink(images: np.ndarray, factor: int) -> np.ndarray:
    """Images (n, channels, height, width) made smaller: the rounded mean of `factor` x `factor` pixels, uint8.

    Raises:
        DataError: the sides are no multiples of `factor`.
    """
    n, channels, height, width = images.shape
    if height % factor or width % factor:
        raise DataError(f"option 'shrink' is {factor}, which does not divide images of {height} x {width}")
    blocks = images.reshape(n, channels, height // factor, factor, width // factor, factor)
    result: np.ndarray = np.round(blocks.mean((3, 5))).astype(np.uint8)
    return result


def rotate(images: np.ndarray, rotations: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Each image turned by a random one of 2 or 4 equal angles, and by which, int64 (n,)."""
    turns = np.random.default_rng(seed).integers(rotations, size=len(images))
    out = images.copy()
    for turn in range(1, rotations):
        out[turns == turn] = np.rot90(images[turns == turn], turn * 4 // rotations, axes=(2, 3))
    return out, turns.astype(np.int64)


def every_angle(images: np.ndarray, angles: int) -> tuple[np.ndarray, np.ndarray]:
    """All images turned by each of 2 or 4 equal angles, angle after angle, and by which, int64 (angles * n,)."""
    turned = [np.rot90(images, turn * 4 // angles, axes=(2, 3)) for turn in range(angles)]
    return np.concatenate(turned), np.repeat(np.arange(angles), len(images))


def load_idx(
    request: Request, *, name: str, torchvision: str, layouts: tuple[Layout, ...], class_names: tuple[str, ...]
) -> Loaded:
    """MNIST or Fashion-MNIST from their four idx files."""
    raw = _find(request, name, layouts, partial(files.download_torchvision, torchvision))
    arrays: Arrays = {}
    contents = [(file.path, raw.read(file.path)) for file in raw.layout.files]
    train_x, train_y, test_x, test_y = (readers.read_idx(readers.unpack(c, path), path) for path, c in contents)
    for part, x, y in (("train", train_x, train_y), ("test", test_x, test_y)):
        if x.ndim != 3 or y.shape != x.shape[:1]:
            raise DataError(f"{part} images of {name!r} are {x.shape} and labels {y.shape}: the files do not match")
        x, y = x[:, None], y.astype(np.int64)
        if (only := request.options["only"]) < 10:
            x, y = x[y == only], y[y == only]
            if not len(x):
                raise DataError(f"option 'only' of {name!r} is {only}: there is no {part} image of that class")
        elif only > 10:
            raise DataError(f"option 'only' of {name!r} is {only}: expected a class from 0 to 9, or 10 for all")
        if request.options["shrink"] > 1:
            x = shrink(x, request.options["shrink"])
        rotations, angles = request.options["rotations"], request.options["angles"]
        for option, value in (("rotations", rotations), ("angles", angles)):
            if value not in (1, 2, 4):
                raise DataError(f"option {option!r} of {name!r} is {value}: expected 1 (none), 2 or 4")
        if rotations > 1 and angles > 1:
            raise DataError(f"options 'rotations' and 'angles' of {name!r}: an image is turned by one of them")
        if rotations > 1:
            x, y = rotate(x, rotations, stream_seed(0, f"rotations of {name} {part}"))
        elif angles > 1:
            x, y = every_angle(x, angles)
        if (turns := max(rotations, angles)) > 1:
            class_names = tuple(f"{turn * 360 // turns} degrees" for turn in range(turns))
        arrays[f"{part}_x"], arrays[f"{part}_y"] = x, y
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
    """CIFAR-10 or CIFAR-100, from the Python or the binary version: the same arrays in the same order."""
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
    """AG News as token numbers; the vocabulary comes from the training part only."""
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
    """Blobs of unit variance around distinct corners of a cube of side 5."""
    o = request.options
    arrays: Arrays = {}
    for part, count in (("train", o["samples"]), ("test", o["test"])):
        if part == "test" and not count:
            continue
        x, y = synthetic.gaussian(o["clusters"], count, o["dimension"], o["seed"], part=part)
        arrays[f"{part}_x"], arrays[f"{part}_y"] = x, y
    return Loaded(arrays, "drawn: centres 5 * Bernoulli(0.5), unit variance", _cluster_names(o["clusters"]))


def load_subspace(request: Request) -> Loaded:
    """Points of random linear subspaces."""
    o = request.options
    arrays: Arrays = {}
    for part, count in (("train", o["samples"]), ("test", o["test"])):
        if part == "test" and not count:
            continue
        x, y = synthetic.subspace(o["clusters"], count, o["dimension"], o["rank"], o["seed"], part=part)
        arrays[f"{part}_x"], arrays[f"{part}_y"] = x, y
    return Loaded(arrays, "drawn: random orthonormal bases, N(0, 1) coefficients", _cluster_names(o["clusters"]))


def _find(request: Request, name: str, layouts: tuple[Layout, ...], download: Callable[[Path], None]) -> Raw:
    return find(name, layouts, download, mirror=request.mirror, raw=request.raw, checksums=request.checksums)


def _source(raw: Raw) -> str:
    # No absolute path: the same bytes give the same manifest on every machine.
    return f"{Path(raw.layout.files[0].path).parent}, {raw.layout.name} layout, checksums verified"


def _extra(raw: Raw) -> dict[str, Any]:
    return {"files": {file.path: raw.digests[file.path] for file in raw.layout.files}}


def _cluster_names(clusters: int) -> tuple[str, ...]:
    return tuple(f"cluster {k}" for k in range(clusters))


_IMAGES = {"shrink": 1, "only": 10, "rotations": 1, "angles": 1}
_IMAGES_MEANINGS = {
    "shrink": "sides are divided by it: means of so many pixels squared",
    "rotations": "2 or 4: each image is turned by a random one of so many angles, which becomes its label",
    "only": "0 to 9: images of this class alone; 10: all",
    "angles": "2 or 4: each image is there in each of so many angles, which is its label",
}
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
