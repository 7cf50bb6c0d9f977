"""Rounds that seek the number of clusters find what the search over all samples in one place does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shoal.data.sets.synthetic import gaussian
from shoal.methods.clustering.client_samples import Search
from shoal.methods.clustering.cluster_number import Candidate, choose_number, find_cluster_number
from shoal.methods.features.centre_clustering import has_offsets
from shoal.methods.features.number_steps import SAMPLES, SEEK, SMALLEST, TRIED
from tests.conftest import one_quick
from tests.methods.features.table_federation import Rows
from tests.methods.features.test_landmark_number import apart


@pytest.mark.parametrize(("least", "offset"), one_quick([(5, 2.0), (1, 0.0)]))
def test_rounds_find_the_number_of_one_place_without_offsets(
    least: int, offset: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = gaussian(4, 60, 10, 0)
    owner = np.arange(240) % 3
    shift = offset * np.random.default_rng(0).normal(size=(3, 10))
    rows = Rows(tmp_path, x + shift[owner], y, owner)
    method = rows.method("fedkmeans", min_points=least)
    begun = replace(rows.run(method, rounds=7), facts={SEEK: "halves", SMALLEST: 2}, finished=False)
    monkeypatch.setattr(method, "init_server", lambda _: begun)
    told = rows.run(method).facts
    search = Search(max_clusters=method.context.clusters, least_points=least)
    here = find_cluster_number(apart(x.astype(np.float32), owner), search, 0)
    tried = [Candidate(*criteria) for criteria in told[TRIED]]
    assert (choose_number(tried)[0], told[SAMPLES]) == (here.clusters, 240) == (4, 240)
    assert has_offsets(begun.model) == (offset > 0)
    assert [k.stability for k in tried] == pytest.approx([k.stability for k in here.tried], abs=0.2)
