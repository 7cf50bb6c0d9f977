"""With `privacy.clip` one row changes every message by no more than its method says, which noise covers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from table_federation import Rows

from shoal.methods.averaging.private import noisy_sums
from shoal.methods.contract.base import Server
from shoal.methods.contract.context import Context, MethodError, ModelSettings
from shoal.methods.contract.message import Message
from shoal.methods.features import private_sums
from shoal.methods.features.centre_clustering import CENTRES
from shoal.methods.features.feature_clustering import FeatureClustering
from shoal.methods.registry import METHODS
from tests.noise import seeded_normal

CASES: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "fedkmeans": ("fedkmeans", {}, {"measure", "start", "move"}),
    "directions": ("fedkmeans", {"space": "directions"}, {"measure", "start", "move"}),
    "landmarks": ("fedkmeans", {"landmarks": 20}, {"measure", "start", "tie", "move"}),
    "fedgmm": ("fedgmm", {}, {"measure", "start", "move", "mix"}),
    "fedgmm, tied": ("fedgmm", {"covariance": "tied"}, {"measure", "start", "move", "mix"}),
}


def table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of four groups in columns of many units, with one row far from all, and their owners."""
    rng = np.random.default_rng(3)
    y = np.arange(240) % 4
    x = (rng.normal(0, 5, (4, 6))[y] + rng.normal(size=(240, 6))) * 10.0 ** np.arange(-3, 3)
    x[0] *= 1000
    return x.astype(np.float32), y, rng.integers(0, 3, 240)


def private_method(rows: Rows, name: str, clip: float = 0.8, **settings: Any) -> FeatureClustering:
    kind = METHODS[name]
    context = Context(rows.data.spec, ModelSettings(), seed=rows.seed, rounds=80, clip=clip)
    method = kind(kind.Settings(standardise=True, **settings), context)
    assert isinstance(method, FeatureClustering)
    return method


@pytest.mark.parametrize("case", CASES)
def test_a_row_changes_no_message_by_more_than_is_said(tmp_path: Path, case: str) -> None:
    name, settings, steps = CASES[case]
    rows = Rows(tmp_path, *table())
    method = private_method(rows, name, **settings)
    seen = set()
    for rounds in range(30):
        server = rows.run(method, rounds)
        if server.finished:
            break
        down = method.broadcast(server, 0)
        seen.add(down.facts["step"])
        bounds = method.row_bounds(down)
        for few in (len(rows[0].train), 6, 5, 4, 3):
            client = replace(rows[0], train=rows[0].train.take(torch.arange(few)), memory={})
            whole = method.client_update(down, client).message.tensors
            assert whole.keys() == bounds.keys()
            for left_out in (0, 1, few - 1):
                kept = np.delete(client.train.index.numpy(), left_out)
                without = method.client_update(down, replace(client, train=rows.samples(kept))).message.tensors
                for tensor, bound in bounds.items():
                    away = float((whole[tensor] - without[tensor]).norm())
                    assert away <= bound * (1 + 1e-9), (down.facts, tensor, few)
    assert seen == steps


@pytest.mark.parametrize("case", CASES)
def test_little_noise_leaves_most_of_the_groups(tmp_path: Path, case: str) -> None:
    name, settings, _ = CASES[case]
    rows = Rows(tmp_path, *table())
    server = with_noise(rows, method := private_method(rows, name, clip=1.0, **settings), 0.05)
    assert rows.accuracy(method, server) > 0.5
    assert server.finished


def with_noise(rows: Rows, method: FeatureClustering, noise: float) -> Server:
    """The last state, with noise on every message."""
    normal = seeded_normal(torch.Generator().manual_seed(0))
    honest = method.client_update

    def client_update(message: Message, client: Any) -> Any:
        update = honest(message, client)
        return replace(update, message=noisy_sums(update.message, method.row_bounds(message), noise, normal))

    method.client_update = client_update  # type: ignore[method-assign]
    return rows.run(method)


def test_under_noise_too_counts_are_divided_by_the_root_of_their_deviation(tmp_path: Path) -> None:
    x = np.random.default_rng(0).poisson([0.02, 0.1, 0.8], (240, 3)).astype(np.float32)
    rows = Rows(tmp_path, x, *table()[1:])
    method = private_method(rows, "fedkmeans", clip=9.0, representation="counts")
    model = rows.run(method, 2).model
    z = torch.from_numpy(np.log1p(x)) * model["space.scale"]
    assert (z.std(0) * model["space.scale"]).std() < 1e-3
    assert (model[CENTRES].mean((0, 1)) - z.mean(0)).norm() < 0.1


def test_noise_that_hides_all_columns_ends_the_run_in_one_sentence(tmp_path: Path) -> None:
    rows = Rows(tmp_path, *table())
    with pytest.raises(MethodError, match="the noise hides all columns"):
        with_noise(rows, private_method(rows, "fedkmeans"), 200.0)


def test_each_tensor_has_its_share_of_the_noise() -> None:
    message = Message({"sums": torch.zeros(20_000, dtype=torch.float64), "counts": torch.zeros(20_000)})
    sent = noisy_sums(message, {"sums": 3.0, "counts": 0.5}, 2.0, seeded_normal(torch.Generator().manual_seed(0)))
    # Two tensors: each has the multiplier 2 sqrt(2), and together they have 2.
    assert float(sent.tensors["sums"].std()) == pytest.approx(2 * 2**0.5 * 3, rel=0.02)
    assert float(sent.tensors["counts"].std()) == pytest.approx(2 * 2**0.5 * 0.5, rel=0.02)


def test_bins_count_every_value_once_and_tell_mean_and_spread() -> None:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(np.stack([rng.normal(0, 3, 4000), rng.normal(700, 300, 4000), np.zeros(4000)], 1))
    counts = private_sums.column_bins(x)
    assert counts.sum(1).tolist() == [4000] * 3
    moments = private_sums.binned_moments(counts + torch.from_numpy(rng.normal(0, 20, counts.shape)))
    variance = moments["squares"] - moments["total"].square()
    assert moments["total"][:2].tolist() == pytest.approx([0, 700], abs=90)
    assert variance[:2].sqrt().tolist() == pytest.approx([3, 300], rel=0.4)
    assert float(variance[2]) == 0
    assert private_sums.noise_of(counts) == 0


def test_a_cluster_that_noise_explains_stays() -> None:
    before = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)
    counts = torch.tensor([[100.0, 5.0]], dtype=torch.float64)
    moved = private_sums.moved_surely(before, 300 * torch.ones_like(before), counts, noise=2.0, clip=0.5)
    assert moved[0, 1].tolist() == [0, 1]
    assert moved[0, 0].norm() == pytest.approx(0.5)


def test_drawn_columns_need_no_message(tmp_path: Path) -> None:
    rows = Rows(tmp_path, *table())
    method = private_method(rows, "fedkmeans", components=4)
    assert method.source.width == 4
    assert rows.run(method, 3).model[CENTRES].shape == (1, 4, 4)
