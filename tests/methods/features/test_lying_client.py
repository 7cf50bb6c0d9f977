"""What a client cannot have sent is refused, whatever it holds; what it can have sent is not."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from table_federation import Rows

from shoal.engine.messages.inspection import MAX_ABS_VALUE
from shoal.methods.clustering.declared_sums import check_largest_costs, check_means
from shoal.methods.clustering.k_means import kmeans
from shoal.methods.contract.context import MethodError
from shoal.methods.contract.declared import fault
from shoal.methods.contract.message import Tensors
from shoal.methods.features import feature_clustering, fedgmm, start_steps
from shoal.methods.features.centre_clustering import CENTRES
from tests.conftest import one_quick

SETTINGS: dict[str, dict[str, Any]] = {
    "as they are": {},
    "standardised": {"standardise": True},
    "components": {"components": 3, "space": "directions"},
    "directions": {"space": "directions", "min_points": 1},
    "site means": {"sites": "centre", "min_points": 4},
    "landmarks": {"landmarks": 20, "standardise": True},
    "offsets": {"standardise": True, "min_points": 3},
}
SPREAD: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "plain": lambda x: x,
    "far from 0": lambda x: x + 1e6,
    "of many units": lambda x: x * 10.0 ** np.arange(-6, 6, 2),
    "duplicates": lambda x: np.round(x / 6) * 6,
    "binary": lambda x: x > 0,
    "outliers": lambda x: np.concatenate([x[:-2], np.full((1, 6), 1e8), np.full((1, 6), -1e8)]),
}


def table(
    kind: str, seed: int = 0, samples: int = 240, shift: float = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of four groups, their groups, and the owner of each of seven: the last has one row."""
    rng = np.random.default_rng(seed)
    y = np.arange(samples) % 4
    x = rng.normal(0, 5, (4, 6))[y] + rng.normal(size=(samples, 6))
    owner = rng.choice(6, samples, p=[0.5, 0.2, 0.1, 0.1, 0.05, 0.05])
    owner[:7] = np.arange(7)
    if shift:
        x += shift * rng.normal(size=(7, 6))[owner]
    return SPREAD[kind](x).astype(np.float32), y, owner


@pytest.mark.parametrize(("method", "settings"), one_quick(itertools.product(["fedkmeans", "fedgmm"], SETTINGS)))
def test_an_honest_client_is_never_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, settings: str
) -> None:
    """`Rows.run` inspects every message; the groups of some tables cannot be found, which is no client's fault."""
    monkeypatch.setattr(fedgmm, "KMEANS_ITERATIONS", 5)
    first = list(SETTINGS).index(settings)
    for seed, kind in enumerate(SPREAD):
        if seed % 3 == first % 3 or kind == "far from 0":
            rows = Rows(tmp_path / kind, *table(kind, seed, 140, 9.0 * (settings == "offsets")), seed)
            more: dict[str, Any] = {"covariance": ["full", "tied"][seed % 2]} if method == "fedgmm" else {}
            with contextlib.suppress(MethodError):
                rows.run(rows.method(method, **SETTINGS[settings], **more), 14)


@pytest.mark.long
def test_a_client_that_answers_for_a_draw_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (feature_clustering, start_steps):
        monkeypatch.setattr(module, "RACE_SAMPLES", 50)
    for name in ("standardised", "directions", "landmarks"):
        rows = Rows(tmp_path / name, *table("plain", samples=400))
        rows.run(rows.method("fedkmeans", **SETTINGS[name]), 9)


def every_cluster(sent: Tensors, count: str, samples: int) -> Tensors:
    means = sent["sums"] / sent[count].clamp_min(1)[..., None]
    return {count: torch.full_like(sent[count], samples), "sums": -samples * means}


def sums_changed(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors, str, int], Tensors]:
    return lambda sent, count, samples: {"sums": change(sent["sums"])}


LIES: dict[str, Callable[[Tensors, str, int], Tensors]] = {
    "every cluster": every_cluster,
    "times -1": sums_changed(lambda sums: -sums),
    "times 3": sums_changed(lambda sums: 3 * sums),
    "the next cluster": sums_changed(lambda sums: sums.roll(1, -2)),
    "more": lambda sent, count, samples: {name: 2 * sent[name] for name in (count, "sums")},
    "fewer": lambda sent, count, samples: {name: sent[name] / 2 for name in (count, "sums")},
}


@pytest.mark.parametrize(
    ("method", "settings", "rounds", "step"),
    [
        ("fedkmeans", {"standardise": True}, 3, "move"),
        ("fedkmeans", {"standardise": True}, 8, "move"),
        ("fedkmeans", {"landmarks": 20, "standardise": True}, 6, "move"),
        ("fedgmm", {"standardise": True}, 8, "mix"),
        ("fedgmm", {"standardise": True}, 9, "mix"),
        ("fedgmm", {"covariance": "tied", "landmarks": 20}, 10, "mix"),
    ],
)
def test_sums_that_no_samples_have_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, settings: dict[str, Any], rounds: int, step: str
) -> None:
    monkeypatch.setattr(fedgmm, "KMEANS_ITERATIONS", 5)
    rows = Rows(tmp_path, *table("plain"))
    made = rows.method(method, **settings)
    server = rows.run(made, rounds)
    assert made.next_step(server) == step  # type: ignore[attr-defined]
    samples = len(rows[0].train)
    message = made.client_update(made.broadcast(server, 0), rows[0]).message
    form = made.declared(server, 0, samples)
    assert fault(message, form, MAX_ABS_VALUE) is None
    count = "weights" if step == "mix" else "counts"
    for name, lie in LIES.items():
        told = replace(message, tensors={**message.tensors, **lie(dict(message.tensors), count, samples)})
        assert fault(told, form, MAX_ABS_VALUE) is not None, name


@pytest.mark.parametrize(("settings", "rounds"), [({"standardise": True}, 8), ({"landmarks": 20}, 7)])
def test_a_client_keeps_to_the_moments_that_it_sent(tmp_path: Path, settings: dict[str, Any], rounds: int) -> None:
    """It says that all its samples lie far away, in the region of one centre, at a cost to match."""
    rows = Rows(tmp_path, *table("plain"))
    method = rows.method("fedkmeans", **settings)
    server = rows.run(method, rounds)
    samples = len(rows[0].train)
    centres = server.model[CENTRES][0]
    assert len(server.model[CENTRES]) == 1
    counts = torch.zeros(4, dtype=torch.float64)
    counts[0] = samples
    far = 100 * (centres[0] - centres.mean(0)) + centres[0]
    sums = counts[:, None] * far
    cost = (samples * (far - centres[0]).square().sum())[None]
    told = {"sums": sums[None], "counts": counts[None], "inertia": cost}
    message = method.client_update(method.broadcast(server, 0), rows[0]).message
    form = replace(method.declared(server, 0, samples), rule=None)
    assert fault(replace(message, tensors=told), form, MAX_ABS_VALUE) is None
    limits = method.limits(server, 0, samples)  # type: ignore[attr-defined]
    words = "that of the client's samples"
    assert words in (check_means(sums[None], counts[None], limits) or "")
    assert check_means(sums[None], counts[None], replace(limits, energy=math.inf)) is None
    assert "by the client's moments" in (check_largest_costs(cost, centres[None], limits) or "")


@pytest.mark.parametrize("factor", [0.0, 10.0])
def test_costs_of_starts_that_no_samples_have_are_refused(tmp_path: Path, factor: float) -> None:
    """A start could be kept out of the race by what it is said to cost, or put in."""
    rows = Rows(tmp_path, *table("plain"))
    method = rows.method("fedkmeans", standardise=True)
    server = rows.run(method, 2)
    assert method.next_step(server) == "weigh"  # type: ignore[attr-defined]
    message = method.client_update(method.broadcast(server, 0), rows[0]).message
    form = method.declared(server, 0, len(rows[0].train))
    assert fault(message, form, MAX_ABS_VALUE) is None
    costs = message.tensors["inertia"].clone()
    costs[0] *= factor
    assert fault(replace(message, tensors={"inertia": costs}), form, MAX_ABS_VALUE) is not None


def test_moments_are_of_all_samples_and_fit_each_other(tmp_path: Path) -> None:
    rows = Rows(tmp_path, *table("plain"))
    method = rows.method("fedkmeans", standardise=True)
    server = rows.run(method, 0)
    samples = len(rows[0].train)
    message = method.client_update(method.broadcast(server, 0), rows[0]).message
    form = method.declared(server, 0, samples)
    for changed, words in (
        ({"samples": message.tensors["samples"] - 1}, f"expected {samples}"),
        ({"total": 9 * message.tensors["total"]}, "larger than the 'squares' allow"),
    ):
        told = replace(message, tensors={**message.tensors, **changed})
        assert words in (fault(told, form, MAX_ABS_VALUE) or "")


def test_centres_of_duplicates_lie_among_them() -> None:
    """More centres than distinct samples: scikit-learn alone leaves one 10 times as long as any sample."""
    rng = np.random.default_rng(0)
    distinct = rng.normal(size=(14, 6))
    x = distinct[rng.integers(0, 14, 129)]
    for seed in range(20):
        found = kmeans(x, 32, np.random.default_rng(seed), starts=1)
        used = np.unique(found.cluster)
        assert np.linalg.norm(found.centres[used], axis=1).max() <= np.linalg.norm(x, axis=1).max() + 1e-9
