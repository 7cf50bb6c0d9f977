"""Labels that differ by group as sets of the store, for CFL's studies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.core.errors import DataError
from shoal.data.partition.make import make_partition
from shoal.data.partition.schemes import IID, ByColumn
from shoal.data.sets.prepare import prepare
from shoal.engine.settings import places
from shoal_research.cells import cells
from shoal_research.cfl.planted import add_missing, label_maps, with_planted_set
from shoal_research.definition import load_study


def test_clients_have_the_samples_that_iid_deals_them_and_the_labels_of_their_group(home: Path) -> None:
    name = "swapped-digits-images200-clients8-groups4-seed3"
    add_missing([name, "digits"])
    digits, planted = (prepare(each, places.store()) for each in ("digits", name))
    dealt = make_partition(IID(clients=8), digits, limit=200, seed=3)
    partition = make_partition(ByColumn(), planted)
    assert partition.truth == (0, 0, 1, 1, 2, 2, 3, 3)
    maps = label_maps("swapped", 4, 10, 3)
    for client, group in enumerate(partition.truth):
        before, after = dealt.samples_of(client), partition.samples_of(client)
        np.testing.assert_array_equal(digits.train_x[before], planted.train_x[after])
        np.testing.assert_array_equal(maps[group][digits.train_y[before]], planted.train_y[after])
    np.testing.assert_array_equal(digits.test_y, planted.test_y)


def test_maps_of_labels() -> None:
    swapped = label_maps("swapped", 4, 10, 0)
    assert [np.flatnonzero(row != np.arange(10)).tolist() for row in swapped] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    permuted = label_maps("permuted", 4, 10, 1)
    assert permuted[0].tolist() == list(range(10))
    assert all(sorted(row) == list(range(10)) for row in permuted)
    assert (label_maps("permuted", 4, 10, 2) != permuted).any()
    with pytest.raises(DataError, match="4 groups cannot have labels of their own out of 2 classes"):
        label_maps("swapped", 4, 2, 0)


def test_each_seed_of_a_study_has_a_set_of_its_own() -> None:
    planned = cells(load_study("cfl-baselines"), "cpu")
    names = {(cell.column.key, cell.seed): cell.settings["data"]["name"] for cell in planned}
    assert names["label_swap", 1] == "swapped-mnist-images4000-clients20-groups4-seed1"
    assert names["no_groups", 1] == "mnist"
    alone = {"data": {"name": "mnist"}, "partition": {"kind": "iid"}}
    assert with_planted_set(alone, 0) == alone
