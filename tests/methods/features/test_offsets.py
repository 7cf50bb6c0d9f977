"""Offsets of sites beside clusters: planted ones are recovered, and where there are none none are used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from table_federation import Rows, uneven_owners

from shoal.methods.clustering.client_samples import ClientSamples, Search
from shoal.methods.features import feature_clustering, start_steps
from shoal.methods.features.centre_clustering import BEGINNINGS, has_offsets
from shoal.methods.features.offsets import SAMPLES_PER_CLUSTER, beginnings, race, site_fit
from shoal.methods.features.sampled_space import less_offsets
from shoal.methods.features.space import OFFSET_MEAN
from shoal.methods.features.vectors import SITE_OFFSET
from tests.conftest import one_quick

SITES = 5


def groups(shift: float, seed: int = 0, beta: float = 100.0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows of six groups in eight columns, their groups, the owner of each, and the offsets of the sites."""
    rng = np.random.default_rng(seed)
    y = np.arange(600) % 6
    x = rng.normal(0, 5, (6, 8))[y] + rng.normal(size=(600, 8))
    owner = uneven_owners(y, SITES, seed, beta)
    offsets = shift * x.std(0) * rng.normal(size=(SITES, 8))
    return x + offsets[owner], y, owner, offsets


@pytest.mark.parametrize(("name", "settings"), [("fedkmeans", {}), ("fedgmm", {"covariance": "tied"})])
def test_planted_offsets_are_recovered(tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    x, y, owner, offsets = groups(0.8)
    rows = Rows(tmp_path, x, y, owner)
    ignorant = rows.method(name, sites="ignore", **settings)
    assert rows.accuracy(ignorant, rows.run(ignorant)) < 0.9
    rows.memory = {}
    method = rows.method(name, **settings)
    server = rows.run(method)
    assert server.finished
    assert rows.accuracy(method, server) == 1
    kept = np.stack([rows.memory[site][SITE_OFFSET].numpy() for site in range(SITES)])
    # One offset for all sites is no difference between them.
    np.testing.assert_allclose(kept - kept.mean(0), offsets - offsets.mean(0), atol=0.5)
    assert method.assignment(server, rows, rows.evaluation()).less_sites
    assert not any("offset" in key for key in server.tensors), "offsets stay at their sites"


@pytest.mark.parametrize(("shift", "settings"), [(0.8, {}), (0.5, {"space": "directions"})])
def test_landmarks_lie_among_vectors_less_half_of_planted_offsets(
    tmp_path: Path, shift: float, settings: dict[str, Any]
) -> None:
    x, y, owner, _ = groups(shift)
    rows = Rows(tmp_path, x, y, owner)
    settings = {**settings, "landmarks": 60}
    ignorant = rows.method("fedkmeans", sites="ignore", **settings)
    assert rows.accuracy(ignorant, rows.run(ignorant)) < 0.9
    rows.memory = {}
    method = rows.method("fedkmeans", **settings)
    server = rows.run(method)
    assert server.finished
    assert rows.accuracy(method, server) > 0.97
    assert [key for key in server.tensors if "offset" in key] == [OFFSET_MEAN], "offsets stay at their sites"

    table = method.assignment(server, rows, rows.evaluation())
    assert table.less_sites
    here = torch.from_numpy(x[owner == 1])
    known, told = (method.site_predictor(server, here, memory)(here).cluster for memory in (rows.memory[1], {}))
    assert torch.equal(known, table.cluster[owner == 1])
    assert torch.equal(told, known), "the same rows tell the same offset"

    late = replace(rows[1], memory={})
    again, before = (method.client_update(method.broadcast(server, 1), client) for client in (late, rows[1]))
    torch.testing.assert_close(again.memory[SITE_OFFSET], rows.memory[1][SITE_OFFSET])
    torch.testing.assert_close(again.message.tensors, before.message.tensors)


@pytest.mark.parametrize("beta", [100.0, 0.1])
def test_landmarks_of_sites_that_are_alike_are_those_without_offsets(tmp_path: Path, beta: float) -> None:
    rows = Rows(tmp_path, *groups(0.0, beta=beta)[:3])
    ignorant = rows.run(rows.method("fedkmeans", landmarks=60, sites="ignore"))
    server = rows.run(rows.method("fedkmeans", landmarks=60))
    assert server.model.keys() == ignorant.model.keys()
    assert all(torch.equal(server.model[name], ignorant.model[name]) for name in server.model)


def test_sites_that_are_alike_have_no_offsets(tmp_path: Path) -> None:
    check_none(tmp_path, *groups(0.0)[:3])


@pytest.mark.parametrize("seed", one_quick([0, 1]))
def test_sites_that_hold_other_kinds_have_no_offsets(tmp_path: Path, seed: int) -> None:
    """These could be explained by offsets as well, at a cost that is a little lower."""
    x, y = load_iris(return_X_y=True)
    check_none(tmp_path, x, y, uneven_owners(y, SITES, seed))


def test_where_sites_hold_other_kinds_nothing_is_taken_off_before_a_number_is_sought() -> None:
    x, _, owner, _ = groups(0.0, beta=0.1)
    samples = ClientSamples(torch.from_numpy(x), torch.from_numpy(owner), SITES)
    assert less_offsets(samples, Search(2, 8), 0) is samples


def check_none(folder: Path, x: np.ndarray, y: np.ndarray, owner: np.ndarray) -> None:
    """K-means is that without offsets, and no site keeps any."""
    rows = Rows(folder, x, y, owner)
    ignorant = rows.method("fedkmeans", sites="ignore")
    expected = rows.accuracy(ignorant, rows.run(ignorant))
    rows.memory = {}
    method = rows.method("fedkmeans")
    server = rows.run(method)
    assert not has_offsets(server.model)
    assert all(SITE_OFFSET not in memory for memory in rows.memory.values())
    assert rows.accuracy(method, server) == pytest.approx(expected, abs=0.01)


def test_one_site_alone_and_small_sites_have_one_beginning(tmp_path: Path) -> None:
    x, y, _, _ = groups(0.8)
    for owner in (np.zeros(600, int), np.arange(600) // 20):
        rows = Rows(tmp_path / str(owner.max()), x, y, owner)
        server = rows.run(rows.method("fedkmeans"), rounds=1)
        assert server.model[BEGINNINGS].unique().tolist() == [0.0]


def test_beginnings_move_the_centres_of_sites_to_each_other() -> None:
    counts = torch.full((2,), float(SAMPLES_PER_CLUSTER), dtype=torch.float64)
    one = torch.tensor([[0.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    mean, begun = beginnings([(one, counts), (one + 4, counts)], 2)
    assert mean.tolist() == [3.0, 2.0]
    assert [share for share, _ in begun] == [0.0, 0.5, 1.0]
    assert torch.equal(begun[0][1], torch.cat([one, one + 4]))
    assert torch.equal(begun[2][1], torch.cat([one + 2, one + 2]))


def test_an_offset_that_only_one_cluster_tells_is_none() -> None:
    """A site of one kind, between two centres: nothing tells that it is not where it says."""
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0]], dtype=torch.float64)
    rng = np.random.default_rng(0)
    noise = torch.from_numpy(rng.normal(0, 0.1, (40, 2)))
    mean = centres.mean(0)
    kinds = torch.arange(40) % 2
    shift = torch.tensor([2.0, 3.0], dtype=torch.float64)
    both = site_fit(centres[kinds] + shift + noise, centres, 0.5, mean)
    torch.testing.assert_close(both.offset, shift + noise.mean(0))
    assert not site_fit(centres[0] + shift + noise, centres, 0.5, mean).offset.any()
    few = [centres[kinds[:6]] + shift, centres[kinds[:6]] - shift]
    assert race(few, [(z, torch.full((6,), 2.0, dtype=z.dtype)) for z in few], 2, rng).offsets.any()


def test_sites_of_more_samples_than_a_draw_have_the_same_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Rows.run` inspects every message: bounds hold for an offset from a draw, too."""
    for module in (feature_clustering, start_steps):
        monkeypatch.setattr(module, "RACE_SAMPLES", 60)
    rows = Rows(tmp_path, *groups(0.8)[:3])
    method = rows.method("fedkmeans", standardise=True)
    server = rows.run(method)
    assert has_offsets(server.model)
    assert rows.accuracy(method, server) > 0.99
