"""What offsets of sites change in federated K-means: on the tuning sets, with offsets and without.

    python -m shoal_research.label_free.sites        # an hour on a core; needs the packaged encoder

Each set is dealt to six sites, evenly and by Dirichlet(.1), tables over three seeds. Sites keep their samples as they
are, or columns of each are moved by .8 of their deviations; images also get another gain, tint and brightness at each
site. Tables are clustered by K-means, and images by landmarks among an encoder's layers, as `method.name: auto` does.

The rule, from before the runs. Without site effects: no set below `sites: ignore` by .03, the mean not by .005. With
them, where sites hold all kinds: at least .95 of the ACC without. The same for one start in place of thirty.

research/docs/representations.md has the results. By Dirichlet(.1) of two to five kinds nearly all sites hold one, and
nothing tells kinds from offsets.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from shoal.core.streams import Streams
from shoal.data.sets.prepared import Manifest, open_prepared, write_prepared
from shoal.data.sets.remedy import EMBEDDED
from shoal.data.views.view import DeviceData, Samples
from shoal.lifecycle.choosing import SAMPLE_COMPONENTS
from shoal.methods.auto import FEATURE_SPACE, LANDMARKS, LAYERS, UNEVEN_SPREAD
from shoal.methods.clustering.client_samples import ClientSamples, Search, project
from shoal.methods.clustering.cluster_number import find_cluster_number
from shoal.methods.contract.base import Client, Clients, Evaluation, Federation
from shoal.methods.contract.context import Context, MethodError, ModelSettings
from shoal.methods.contract.message import Tensors
from shoal.methods.features.fedkmeans import FedKMeans
from shoal.methods.features.landmark_number import landmark_half
from shoal.methods.features.sampled_space import less_offsets
from shoal.models.frozen import layer_widths_of
from shoal_research.label_free.directions import directions_of, layers_of
from shoal_research.label_free.tables import OFFSETS
from shoal_research.label_free.tuning_sets import IMAGES, TABLES

SEEDS = {"tables": 3, "images": 1}
ROUNDS = 60
OFFSET = 0.8
"""Of a site, in standard deviations of each column."""
MAX_SAMPLES = 600
"""Samples of a set, a seeded draw."""
DIGITS = 4
LARGEST = (15, 10, 6)
"""Numbers of clusters up to which a table is searched, the first for which clients find centres enough."""
CLIENTS = 6
BETA = 0.1


def shared_out(y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the client of each sample, int (n,): each class goes to clients in Dirichlet(`BETA`) proportions."""
    client = np.zeros(len(y), dtype=int)
    for label in np.unique(y):
        rows = rng.permutation(np.nonzero(y == label)[0])
        ends = np.cumsum(rng.dirichlet([BETA] * CLIENTS))[:-1] * len(rows)
        client[rows] = np.searchsorted(ends, np.arange(len(rows)), side="right")
    return client


Dealing = Callable[[np.ndarray, np.random.Generator], np.ndarray]
DEALINGS: dict[str, Dealing] = {
    "even": lambda y, rng: rng.integers(0, CLIENTS, len(y)),
    "dirichlet": shared_out,
}


CASES_OF_NUMBERS = {
    "even": ("even", 0.0),
    "Dirichlet(0.1)": ("dirichlet", 0.0),
    "even, offsets of 0.8 deviations": ("even", OFFSET),
}


@dataclass
class Sites(Clients):
    """Sites that hold rows x (n, d) of classes y (n,), with groups of columns of an encoder's layers."""

    x: np.ndarray
    y: np.ndarray
    site: np.ndarray
    seed: int
    folder: Path
    layer_widths: tuple[int, ...]
    memory: dict[int, Tensors] = field(default_factory=dict)
    round: int = 0

    def __post_init__(self) -> None:
        classes = int(self.y.max()) + 1
        extra = {EMBEDDED: {"layer_widths": self.layer_widths}}
        manifest = Manifest("rows", "vector", self.x.shape[1:], classes, len(self.x), 0, "made", "none", extra=extra)
        x, y = self.x.astype(np.float32), self.y.astype(np.int64)
        write_prepared(self.folder / "rows", manifest, {"train_x": x, "train_y": y})
        self.data = DeviceData(open_prepared(self.folder / "rows"))

    def __len__(self) -> int:
        return CLIENTS

    def samples(self, rows: np.ndarray) -> Samples:
        """Return the samples of some rows."""
        index = torch.from_numpy(rows)
        return Samples(self.data, index)

    def __getitem__(self, client: int) -> Client:
        train = self.samples(np.flatnonzero(self.site == client))
        streams = Streams(self.seed, self.round, client)
        return Client(client, train, self.samples(np.arange(0)), self.memory.get(client, {}), (), streams)

    def accuracy(self, **settings: Any) -> float:
        """Return the ACC of federated K-means with these settings of the method."""
        self.memory.clear()
        context = Context(self.data.spec, ModelSettings(), seed=self.seed, rounds=ROUNDS)
        method = FedKMeans(FedKMeans.Settings(**settings), context)
        sizes = tuple(np.bincount(self.site, minlength=CLIENTS).tolist())
        server = method.init_server(Federation(self.data.spec, sizes, Streams(self.seed)))
        while not server.finished and server.round < ROUNDS:
            self.round = server.round + 1
            updates = []
            for client in self:
                if len(client.train):
                    update = method.client_update(method.broadcast(server, client.id), client)
                    self.memory[client.id] = client.memory if update.memory is None else update.memory
                    updates.append(replace(update, client=client.id))
            server = method.aggregate(server, updates)
        evaluation = Evaluation(self.data, self.samples(np.arange(len(self.x))), Streams(self.seed, 1))
        return method.evaluate(server, self, evaluation)["acc"]


def moved(x: np.ndarray, site: np.ndarray, rng: np.random.Generator, deviations: float = OFFSET) -> np.ndarray:
    """Return rows x (n, d), those of each site moved by an offset of so many deviations."""
    offsets = deviations * rng.normal(size=(CLIENTS, x.shape[1])) * x.std(0)
    found: np.ndarray = x + offsets[site]
    return found


def lit(images: np.ndarray, site: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return images uint8 with another gain, tint and brightness at each site."""
    colours = images if images.ndim == 4 else np.repeat(images[..., None], 3, 3)
    gain = rng.uniform(0.6, 1.4, (CLIENTS, 1, 1, 1)) * rng.uniform(0.8, 1.2, (CLIENTS, 1, 1, 3))
    brightness = rng.uniform(-40, 40, (CLIENTS, 1, 1, 1))
    shown: np.ndarray = np.clip(colours * gain[site] + brightness[site], 0, 255).astype(np.uint8)
    return shown


def evened(x: np.ndarray) -> np.ndarray:
    """Return a table's columns that vary, standardised where `method: auto` would do so."""
    x = x[:, x.std(0) > 0]
    deviation = x.std(0)
    return x / deviation if deviation.max() >= UNEVEN_SPREAD * np.median(deviation) else x


def some_of(make: Callable[[], Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return at most `MAX_SAMPLES` samples of a set, and their classes int (n,)."""
    whole = [np.asarray(part) for part in make()]
    order = np.random.default_rng(0).permutation(len(whole[0]))[:MAX_SAMPLES]
    x, y = (part[order] for part in whole)
    return x, np.unique(y, return_inverse=True)[1]


def worlds(kind: str, make: Callable[[], Any]) -> Iterator[tuple[str, int, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield case, seed, rows x (n, d), classes and sites (n,) of a set."""
    x, y = some_of(make)
    images = x
    if kind == "images":
        x = layers_of(images)
    else:
        x = evened(np.asarray(x, dtype=float))
    for name, deal in DEALINGS.items():
        for seed in range(SEEDS[kind]):
            rng = np.random.default_rng(seed)
            site = deal(y, rng)
            yield name, seed, x, y, site
            yield f"{name}, offsets", seed, moved(x, site, rng), y, site
            if kind == "images" and name == "even":
                yield "even, light", seed, layers_of(lit(images, site, rng)), y, site


def measure() -> None:
    """Measure every set that the file does not hold, and write the file after each: ACC by case, for both settings."""
    kept: dict[str, Any] = json.loads(OFFSETS.read_text()) if OFFSETS.exists() else {"tables": {}, "images": {}}
    kinds: tuple[tuple[str, Mapping[str, Any], dict[str, Any], tuple[int, ...]], ...] = (
        ("tables", TABLES, {}, ()),
        ("images", IMAGES, FEATURE_SPACE["method"], layer_widths_of(LAYERS)),
    )
    for kind, sets, settings, widths in kinds:
        for name, make in sets.items():
            if name in kept[kind]:
                continue
            acc: dict[str, list[tuple[float, float]]] = {}
            for case, seed, x, y, site in worlds(kind, make):
                with tempfile.TemporaryDirectory() as folder:
                    sites = Sites(x, y, site, seed, Path(folder), widths)
                    pair = sites.accuracy(sites="ignore", **settings), sites.accuracy(**settings)
                    acc.setdefault(case, []).append(pair)
            kept[kind][name] = {case: np.mean(pairs, 0).round(DIGITS).tolist() for case, pairs in acc.items()}
            OFFSETS.write_text(dumped(kept))
            print(f"{kind}: {name} {kept[kind][name]}", file=sys.stderr, flush=True)


def numbers() -> None:
    """Measure the number of clusters of every set of images that the file does not hold: as is, less offsets."""
    kept: dict[str, Any] = json.loads(OFFSETS.read_text())
    by_landmarks = partial(landmark_half, LANDMARKS)
    for name, make in IMAGES.items():
        if name in kept.setdefault("numbers", {}):
            continue
        found: dict[str, Any] = {}
        for case, _, x, y, site in worlds("images", make):
            samples = at_sites(directions_of(x), site)
            less = less_offsets(samples, Search(), 0, LANDMARKS)
            found["classes"] = len(np.unique(y))
            found[case] = [
                find_cluster_number(part, Search(), 0, collect=by_landmarks).clusters for part in (samples, less)
            ]
        kept["numbers"][name] = found
        OFFSETS.write_text(dumped(kept))
        print(f"numbers: {name} {found}", file=sys.stderr, flush=True)


def table_numbers() -> None:
    """Measure every table that the file does not hold: the numbers as is and less offsets, where some are taken off."""
    kept: dict[str, Any] = json.loads(OFFSETS.read_text())
    for name, make in TABLES.items():
        if name in kept.setdefault("table numbers", {}):
            continue
        x, y = some_of(make)
        x = evened(np.asarray(x, dtype=float))
        found: dict[str, Any] = {"classes": len(np.unique(y))}
        for case, (dealing, deviations) in CASES_OF_NUMBERS.items():
            rng = np.random.default_rng(0)
            site = DEALINGS[dealing](y, rng)
            samples = at_sites(moved(x, site, rng, deviations), site)
            less = less_offsets(samples, Search(), 0)
            found[case] = []
            if less is not samples:
                found[case] = [number_by_k_means(part) for part in (samples, less)]
        kept["table numbers"][name] = found
        OFFSETS.write_text(dumped(kept))
        print(f"numbers: {name} {found}", file=sys.stderr, flush=True)


def number_by_k_means(samples: ClientSamples) -> int:
    """Return the number of clusters of rows by K-means, among fewer numbers where clients find too few centres."""
    space = project(samples, SAMPLE_COMPONENTS, 0.0, least_points=2)
    for most in LARGEST:
        with suppress(MethodError):
            return find_cluster_number(space, Search(max_clusters=most), 0).clusters
    return 1


def at_sites(x: np.ndarray, site: np.ndarray) -> ClientSamples:
    """Return samples x (n, d) in the order of their sites, int (n,)."""
    order = np.argsort(site, kind="stable")
    return ClientSamples(torch.from_numpy(x[order]), torch.from_numpy(site[order]), CLIENTS)


def dumped(kept: Mapping[str, Any]) -> str:
    """Return the figures as JSON with a line a set."""
    return json.dumps(kept).replace('}, "', '},\n"') + "\n"


if __name__ == "__main__":
    with threadpool_limits(1):
        measure()
        table_numbers()
        numbers()
