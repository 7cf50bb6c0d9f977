"""Samples with groups are told from samples without, whatever noise looks like."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_iris, load_wine

from shoal.methods.scores.baselines import Comparison, mean_comparison
from shoal.methods.scores.no_groups import (
    GROUPS_GAIN,
    NO_GROUPS_GAIN,
    Groups,
    gain_over_no_groups,
    levels_of,
    mean_over_sites,
)
from tests.conftest import one_quick


def dependent_columns(rng: np.random.Generator) -> np.ndarray:
    x: np.ndarray = rng.normal(size=(600, 3)) @ rng.normal(size=(3, 20))
    return x


NOISE: dict[str, tuple[Callable[[np.random.Generator], np.ndarray], int]] = {
    "two columns": (lambda rng: rng.random((300, 2)), 4),
    "five columns": (lambda rng: rng.random((300, 5)), 4),
    "48 columns": (lambda rng: rng.random((300, 48)), 8),
    "one Gaussian": (lambda rng: rng.normal(size=(300, 6)) @ rng.normal(size=(6, 6)), 4),
    "3 dimensions in 20 columns": (lambda _: dependent_columns(np.random.default_rng(3)), 4),
    "yes or no": (lambda rng: (rng.random((300, 5)) > 0.5).astype(float), 4),
    "mostly no": (lambda rng: (rng.random((300, 6)) > 0.9).astype(float), 3),
    "whole numbers": (lambda rng: rng.integers(1, 6, (300, 6)).astype(float), 4),
    "heavy tails": (lambda rng: rng.standard_t(2, size=(300, 6)), 4),
}


def judged(x: np.ndarray, clusters: int, seed: int = 0, **coding: list[int]) -> Groups:
    spread = x.std(0)
    return gain_over_no_groups(
        (x - x.mean(0)) / np.where(spread > 0, spread, 1), clusters, np.random.default_rng(seed), **coding
    )


QUICK = ("one Gaussian", "two columns")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in NOISE]
)
def test_noise_has_no_groups(name: str) -> None:
    draw, clusters = NOISE[name]
    gain = judged(draw(np.random.default_rng(0)), clusters).gain
    assert gain is None or gain < GROUPS_GAIN - 1


def test_text_columns_of_one_measurement_have_no_groups_by_their_coding() -> None:
    rng = np.random.default_rng(0)
    x = np.hstack([np.eye(3)[rng.choice(3, 300, p=[0.5, 0.3, 0.2])] for _ in range(3)])
    gain = judged(x, 3, widths=[3, 3, 3]).gain
    assert gain is not None
    assert gain < GROUPS_GAIN - 1
    by_single_columns = judged(x, 3).gain
    assert by_single_columns is not None
    assert by_single_columns > gain


def test_of_many_columns_the_principal_components_are_judged() -> None:
    rng = np.random.default_rng(0)
    x = np.hstack([np.eye(3)[rng.integers(0, 3, 120)] for _ in range(12)])
    gain = judged(x, 3, widths=[3] * 12).gain
    assert gain is not None
    assert gain < GROUPS_GAIN


@pytest.mark.parametrize(("load", "clusters"), one_quick([(load_iris, 3), (load_wine, 3), (load_digits, 10)]))
def test_real_groups_are_seen(load, clusters) -> None:
    x = load().data
    gain = judged(x[np.random.default_rng(0).permutation(len(x))[:300]], clusters).gain
    assert gain is not None
    assert gain > GROUPS_GAIN


def test_two_groups_are_seen_and_one_is_not() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4))
    one = judged(x, 2).gain
    assert one is not None
    assert one < NO_GROUPS_GAIN
    x[:150, :2] += 6
    two = judged(x, 2).gain
    assert two is not None
    assert two > GROUPS_GAIN


@pytest.mark.parametrize("share", [0.1, 0.05])
def test_one_small_group_cannot_be_told(share: float) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 3))
    x[: int(600 * share), 0] += 12
    assert judged(x, 2).gain is None


@pytest.mark.parametrize("distance", [0, 3])
def test_a_small_group_beside_a_large_one_is_not_symmetric(distance: int) -> None:
    x = np.random.default_rng(0).normal(size=(600, 3))
    x[:60, 0] += distance
    assert judged(x, 2).symmetric == (distance == 0)


def test_a_few_samples_far_away_are_left_out_of_both_sides() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((300, 3))
    x[:4] += 30
    groups = judged(x, 4)
    assert groups.samples == 296
    assert groups.clusters < 4
    assert groups.gain is not None
    assert groups.gain < GROUPS_GAIN


def test_columns_of_few_values_keep_them() -> None:
    assert levels_of(np.array([0.0, 1.0, 1.0])) == pytest.approx([0, 1])
    assert levels_of(np.array([0.0, 0.5, 2.0])) == pytest.approx([0, 0.5, 1, 1.5, 2])
    assert levels_of(np.array([0.0, 0.5, 1.2])) is None
    assert levels_of(np.random.default_rng(0).random(100)) is None


def test_the_gain_of_sites_is_their_mean_by_samples() -> None:
    parts = [Groups(8.0, 4, 300, symmetric=False), Groups(None, 1, 100), Groups(4.0, 3, 400)]
    mean = Groups(5.0, 4, 800, symmetric=False, sites=3)
    assert mean_over_sites(parts) == mean
    of_sites = [Comparison(part.samples, "columns", 0.9, {}, groups=part) for part in parts]
    assert mean_comparison(of_sites).groups == mean
    assert mean_comparison([replace(of_sites[0], groups=None)]).groups is None
