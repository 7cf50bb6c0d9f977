"""Names of clusters from night to night, in the tables of real runs on planted images."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from shoal.engine.settings import places
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.workers.worker import Worker
from shoal.review.results.clusters import FACTS, TABLE, cluster_facts, keep_clusters
from shoal.review.results.stable_names import NIGHT, shared_samples
from shoal.review.served.predict import predict
from tests.added_sets import add_set
from tests.planted_images import kind_of, write_clients, write_new
from tests.runs import straight

Make = Callable[..., Any]
OWN = {"data": {"name": "mine", "limit": None}, "partition": {"kind": "by_column", "column": "client", "clients": 0}}


def night(settings: Any, champion: RunFolder | None = None) -> RunFolder:
    """A finished run of a night after a champion, with its table."""
    worker = Worker()
    run = straight(settings, worker.handle)
    run.event(NIGHT, **({} if champion is None else {"champion": champion.name}))
    assert keep_clusters(run, worker.handle)
    return run


def names_of_kinds(run: RunFolder) -> dict[str, list[int]]:
    table = pd.read_parquet(run.path / TABLE)
    return table.groupby(table["file"].map(kind_of))["cluster_id"].unique().map(list).to_dict()


@pytest.mark.long
def test_names_follow_the_samples_through_three_nights(home: Path, small: Make) -> None:
    write_clients(home / "pictures")
    add_set(home / "pictures", "mine", places.store(), test=0.25)
    kmeans = {"method": {"name": "kmeans"}, **OWN}
    first = night(small(**kmeans, model={"clusters": 3}))
    before = names_of_kinds(first)
    assert sorted(name for names in before.values() for name in names) == [0, 1, 2]

    rng = np.random.default_rng(5)
    for number in range(9):
        pixels = np.full((12, 12), 220) + rng.integers(0, 30, (12, 12))
        Image.fromarray(pixels.astype(np.uint8)).save(home / "pictures" / "north" / f"bright-{number}.png")
    add_set(home / "pictures", "mine", places.store(), append=True)
    second = night(small(**kmeans, model={"clusters": 4}, seed=1), first)
    assert names_of_kinds(second) == {**before, "bright": [3]}
    facts = cluster_facts(second)
    assert facts is not None
    assert facts.names is not None
    assert facts.names.before == first.name
    assert [change.sentence() for change in facts.names.changes] == ["cluster 3 is new, with 9 samples"]
    loser = night(small(**kmeans, model={"clusters": 5}, seed=2), second)
    assert cluster_facts(loser).names.next_name == 5

    # The challenger with five clusters lost: the next one does not reuse the name that its fifth cluster had.
    third = night(small(**kmeans, model={"clusters": 2}, seed=3), second)
    facts = cluster_facts(third)
    assert facts is not None
    assert facts.names is not None
    assert facts.names.next_name == 5
    assert {change.kind for change in facts.names.changes} == {"gone"}
    assert facts.names.changes

    write_new(home / "new")
    found = predict(second, home / "new").table
    assert found.groupby(found["file"].map(kind_of))["cluster_id"].unique().map(list).to_dict() == before

    # A damaged table is written again with the same names.
    table = (second.path / TABLE).read_bytes()
    (second.path / FACTS).unlink()
    assert keep_clusters(second, Worker().handle)
    assert (second.path / TABLE).read_bytes() == table


@pytest.mark.long
def test_a_champion_whose_table_is_lost_gives_no_names(home: Path, small: Make) -> None:
    write_clients(home / "pictures")
    add_set(home / "pictures", "mine", places.store(), test=0.25)
    kmeans = {"method": {"name": "kmeans"}, **OWN}
    first = night(small(**kmeans, model={"clusters": 3}))
    kept = night(small(**kmeans, model={"clusters": 3}, seed=1))
    shutil.rmtree(first.path)
    second = night(small(**kmeans, model={"clusters": 3}, seed=2), first)
    facts = cluster_facts(second)
    assert facts is not None
    assert facts.names is not None
    assert facts.names.names == (3, 4, 5)
    assert any("cannot be read, so that all clusters get new names" in event.message for event in second.events())
    assert cluster_facts(kept).names.names == (0, 1, 2)


def test_samples_are_known_by_their_file_or_by_their_row() -> None:
    def table(clusters: list[int], files: list[str | None], first: int = 0) -> pd.DataFrame:
        rows = range(first, first + len(clusters))
        return pd.DataFrame({"part": "train", "sample": list(rows), "file": files, "cluster": clusters})

    moved = shared_samples(table([0, 1], ["a", "b"]), table([1, 0, 0], ["c", "a", "b"]), 2, 2)
    assert moved.tolist() == [[1, 0], [1, 0]]
    by_row = shared_samples(table([0, 1], [None, None]), table([1, 0, 0], [None] * 3), 2, 2)
    assert by_row.tolist() == [[0, 1], [1, 0]]
