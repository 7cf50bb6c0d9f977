"""Labels that differ from group to group of clients, as sets of the store: the data of CFL's studies.

    swapped-mnist-images4000-clients20-groups4-seed0       each group swaps a pair of labels of its own
    permuted-cifar10-images10000-clients20-groups4-seed0   each group but the first has a permutation of its own

Clients are dealt their samples as by the partition `iid` with this seed. The manifest names the group of each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shoal.core.errors import DataError
from shoal.core.streams import Streams
from shoal.data.partition.make import GROUPS, make_partition
from shoal.data.partition.schemes import IID
from shoal.data.sets.prepare import own_folder, prepare
from shoal.data.sets.prepared import write_prepared
from shoal.data.sets.writing import writing
from shoal.engine.settings import places

SECTION = "planted"
"""The section of a study's settings that says how labels differ: `labels` (swapped, permuted or same) and `groups`."""
NAME = re.compile(
    r"(?P<labels>swapped|permuted)-(?P<source>.+)-images(?P<images>\d+|all)-clients(?P<clients>\d+)"
    r"-groups(?P<groups>\d+)-seed(?P<seed>\d+)"
)


def with_planted_set(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return the settings of a run, with a planted set in place of the section `planted`.

    Args:
        settings: of a cell.
        seed: of the run, which also deals the samples.
    """
    settings = dict(settings)
    asked = settings.pop(SECTION, {"labels": "same"})
    if asked["labels"] == "same":
        return settings
    data = settings["data"]
    partition = settings["partition"]
    images = data.get("limit") or "all"
    name = f"{asked['labels']}-{data['name']}-images{images}-clients{partition['clients']}"
    name += f"-groups{asked['groups']}-seed{seed}"
    of_clients = {"kind": "by_column", "validation": partition["validation"]}
    return {**settings, "data": {"name": name}, "partition": of_clients}


def add_missing(names: Sequence[str]) -> None:
    """Add planted sets to the store by their names, those that are not there; other names are left alone.

    Raises:
        DataError: groups cannot have labels of their own.
    """
    for name in names:
        folder = own_folder(places.store(), name)
        if asked := NAME.fullmatch(name):
            with writing(folder):
                if not (folder / "manifest.json").exists():
                    write_set(name, asked)


def write_set(name: str, asked: re.Match[str]) -> None:
    """Write one set."""
    source = prepare(asked["source"], places.store(), mirror=places.mirror())
    seed, clients, groups = (int(asked[key]) for key in ("seed", "clients", "groups"))
    limit = None if asked["images"] == "all" else int(asked["images"])
    dealt = make_partition(IID(clients=clients), source, limit=limit, seed=seed)
    order = np.argsort(dealt.sample)
    sample = dealt.sample[order]
    client = dealt.client[order]
    group = np.arange(clients) * groups // clients
    maps = label_maps(asked["labels"], groups, source.spec.classes or 0, seed)
    y = maps[group[client], np.asarray(source.train_y)[sample]]
    names = [f"client {number}" for number in range(clients)]
    about = {"clients": names, GROUPS: dict(zip(names, group.tolist(), strict=True))}
    manifest = replace(
        source.manifest,
        name=name,
        train=len(sample),
        source=f"{source.spec.name} ({source.manifest.digest[:12]}), labels {asked['labels']}",
        extra=about,
    )
    arrays = {
        "train_x": np.asarray(source.train_x[sample]),
        "train_y": y,
        "test_x": source.test_x,
        "test_y": source.test_y,
    }
    write_prepared(own_folder(places.store(), name), manifest, arrays, {"client": client})


def label_maps(kind: str, groups: int, classes: int, seed: int) -> np.ndarray:
    """Return the label that each group has in place of each, int64 (groups, classes).

    Raises:
        DataError: there are too few classes for maps that all differ.
    """
    maps = np.tile(np.arange(classes), (groups, 1))
    if kind == "swapped":
        for number, row in enumerate(maps):
            pair = [2 * number % classes, (2 * number + 1) % classes]
            row[pair] = row[pair[::-1]]
    else:
        draw = Streams(seed).numpy("partition transformations")
        maps[1:] = [draw.permutation(classes) for _ in range(groups - 1)]
    if len(np.unique(maps, axis=0)) < groups:
        raise DataError(f"{groups} groups cannot have labels of their own out of {classes} classes: plant fewer groups")
    return maps
