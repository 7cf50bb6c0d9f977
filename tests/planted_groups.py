"""Digits of clients in planted groups: each group swaps a pair of labels of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shoal.data.partition.make import GROUPS, make_partition
from shoal.data.partition.schemes import IID
from shoal.data.sets.prepare import prepare, store_folder
from shoal.data.sets.prepared import write_prepared
from shoal.engine.settings import places


def write_swapped(name: str, *, clients: int, groups: int = 2, limit: int | None = None, seed: int = 0) -> None:
    """Write the set to the store of the home folder; its clients have the samples that `iid` deals them."""
    source = prepare("digits", places.store())
    dealt = make_partition(IID(clients=clients), source, limit=limit, seed=seed)
    order = np.argsort(dealt.sample)
    sample = dealt.sample[order]
    client = dealt.client[order]
    group = np.arange(clients) * groups // clients
    y = np.array(source.train_y)[sample]
    # Of the labels 2g and 2g + 1 of group g each becomes the other.
    y = np.where(y // 2 == group[client], y ^ 1, y)
    names = [f"client {number}" for number in range(clients)]
    about = {"clients": names, GROUPS: dict(zip(names, group.tolist(), strict=True))}
    manifest = replace(source.manifest, name=name, train=len(sample), extra=about)
    arrays = {"train_x": source.train_x[sample], "train_y": y, "test_x": source.test_x, "test_y": source.test_y}
    write_prepared(store_folder(places.store(), name), manifest, arrays, {"client": client})
