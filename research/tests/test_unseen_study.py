"""The study of unseen data: its sets, null baselines and rules, on tiny sets of another seed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.preprocessing import StandardScaler

from shoal.engine.settings import places
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.scores.clustering import accuracy
from shoal_research import kept
from shoal_research.definition import load_study
from shoal_research.runner import StudyResult, run_study
from shoal_research.unseen import judge as judged
from shoal_research.unseen.files import add_set
from shoal_research.unseen.nulls import (
    MEAN,
    PRETRAINED,
    RANDOM,
    RAW,
    REPEATS,
    STANDARDISED,
    UNTRAINED,
    feature_spaces,
    k_means,
    nulls,
    random_accuracy,
)
from shoal_research.unseen.sets import SEED, SETS, samples_of, set_name
from shoal_research.unseen.sites import deal_to_sites, labels_of_sizes

TRIAL_SEED = 3
SETTINGS = {"method": {"name": "kmeans"}, "tracking": {"mlflow": False, "prefect": "off"}}
DRAWN = [key for key in SETS if key not in ("fashion", "wine")]


def test_the_study_names_every_set_with_its_number_of_classes() -> None:
    study = load_study("unseen")
    assert list(study.rows) == list(SETS)
    for key, row in study.rows.items():
        assert row.settings == {"data": {"name": set_name(key)}, "model": {"clusters": SETS[key].classes}}
    assert len(study.claims) == 4 * 3 * len(SETS)
    assert "method" not in study.settings


def test_at_least_three_sets_are_uneven_by_ten() -> None:
    ratios = []
    for about in SETS.values():
        assert 4 <= about.sites <= 8
        sizes = np.bincount(labels_of_sizes(about.samples, about.classes, about.ratio, np.random.default_rng(0)))
        assert sizes.sum() == about.samples
        ratios.append(sizes.max() / sizes.min())
    assert sum(ratio >= 10 for ratio in ratios) >= 3


def test_sites_differ_in_size_and_in_classes() -> None:
    label = labels_of_sizes(600, 6, 1, np.random.default_rng(0))
    site = deal_to_sites(label, 6, np.random.default_rng(1))
    counts = np.stack([np.bincount(label[site == each], minlength=6) for each in range(6)])
    sizes = counts.sum(axis=1)
    assert sizes.min() >= 16
    assert sizes.max() > 1.5 * sizes.min()
    assert (counts.max(axis=1) > 2 * counts.min(axis=1)).all()


@pytest.mark.parametrize("key", DRAWN)
def test_a_drawn_set_follows_from_its_seed(key: str) -> None:
    first, site = samples_of(key, TRIAL_SEED, 48)
    again, same_site = samples_of(key, TRIAL_SEED, 48)
    other, _ = samples_of(key, TRIAL_SEED + 1, 48)
    assert np.array_equal(first.x, again.x)
    assert np.array_equal(site, same_site)
    assert not np.array_equal(first.x, other.x)
    assert len(first.x) == len(first.label) == len(site) == 48
    assert set(np.unique(first.label)) == set(range(len(first.classes)))
    assert TRIAL_SEED != SEED


def test_images_become_a_set_with_the_same_labels_and_sites(home: Path) -> None:
    drawn, site = samples_of("displays", TRIAL_SEED, 60)
    prepared = add_set("displays", TRIAL_SEED, 60)
    names = np.array(prepared.manifest.class_names)
    where = np.array(prepared.manifest.extra["clients"])
    column = prepared.column("client")
    assert prepared.train_y is not None
    mine = sorted(zip(drawn.x.reshape(60, -1).sum(1), np.array(drawn.classes)[drawn.label], site + 1, strict=True))
    theirs = [
        (int(image.sum()), names[label], int(where[client].removeprefix("site-")))
        for image, label, client in zip(np.asarray(prepared.train_x).astype(int), prepared.train_y, column, strict=True)
    ]
    assert sorted(theirs) == [(int(total), str(label), int(own)) for total, label, own in mine]


def test_every_measurement_of_a_table_is_a_feature(home: Path) -> None:
    for key, columns in (("mixed_scales", 12), ("waves", 64), ("directions", 64), ("wine", 13)):
        assert add_set(key, TRIAL_SEED, 64).spec.shape == (columns,)


def single(found: dict[str, float]) -> set[str]:
    """Return the names of the single draws among null baselines."""
    return {name for name in found if name.startswith("null_") and not name.endswith(MEAN)}


def test_each_k_means_baseline_is_repeated_with_other_random_states(home: Path) -> None:
    prepared = add_set("mixed_scales", TRIAL_SEED, 120)
    found = nulls(prepared, 6)
    truth = np.asarray(prepared.train_y)
    x = feature_spaces(prepared)[RAW]
    repeats = [accuracy(truth, k_means(x, 6, repeat)) for repeat in range(1, REPEATS + 1)]
    assert found[RAW] == accuracy(truth, k_means(x, 6))
    assert found[RAW + MEAN] == pytest.approx(np.mean(repeats))
    assert len(repeats) == 15
    assert len({k_means(x, 6, repeat).tobytes() for repeat in range(REPEATS + 1)}) > 1
    assert {RAW + MEAN, STANDARDISED + MEAN, "best_null", "best_null_mean"} == set(found) - single(found)


@pytest.mark.parametrize(("chance", "best", "best_mean"), [(0.2, 0.7, 0.55), (0.56, 0.7, 0.56), (0.8, 0.8, 0.8)])
def test_the_best_mean_is_not_the_best_draw(
    home: Path, monkeypatch: pytest.MonkeyPatch, chance: float, best: float, best_mean: float
) -> None:
    """K-means of raw values: .7, then .5 in the mean; of standardised ones .6 and .55."""
    prepared = add_set("mixed_scales", TRIAL_SEED, 60)
    draws = iter([0.7, *[0.5] * REPEATS, 0.6, *[0.55] * REPEATS])
    monkeypatch.setattr("shoal_research.unseen.nulls.accuracy", lambda *_: next(draws))
    monkeypatch.setattr("shoal_research.unseen.nulls.random_accuracy", lambda _: chance)
    monkeypatch.setattr("shoal_research.unseen.nulls.k_means", lambda *_: None)
    found = nulls(prepared, 6)
    assert (found["best_null"], found["best_null_mean"]) == (best, pytest.approx(best_mean))


def test_null_baselines_of_a_table_are_scikit_learns(home: Path) -> None:
    prepared = add_set("mixed_scales", TRIAL_SEED, 120)
    found = nulls(prepared, 6)
    x = np.asarray(prepared.train_x, dtype=np.float64)
    truth = np.asarray(prepared.train_y)
    assert single(found) == {RAW, STANDARDISED, RANDOM}
    scaled = KMeans(6, n_init=10, random_state=1).fit_predict(StandardScaler().fit_transform(x))
    assert found[STANDARDISED] == pytest.approx(accuracy(truth, scaled), abs=0.15)
    assert found[STANDARDISED] > found[RAW] + 0.15
    assert found[RANDOM] < found[RAW] + 0.15


def test_images_have_baselines_on_both_encoders(home: Path) -> None:
    found = nulls(add_set("shapes", TRIAL_SEED, 36), 6)
    assert single(found) == {RAW, STANDARDISED, UNTRAINED, PRETRAINED, RANDOM}
    assert all(0 < value <= 1 for value in found.values())


def test_random_labels_have_the_sizes_of_the_classes() -> None:
    assert random_accuracy(np.zeros(10, dtype=int)) == 1.0
    assert random_accuracy(np.repeat([0, 1], 5000)) == pytest.approx(0.5, abs=0.02)
    assert random_accuracy(np.repeat([0, 1], [9000, 1000])) == pytest.approx(0.82, abs=0.02)


@pytest.fixture
def run_tiny(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], StudyResult]:
    """Run one tiny set, at its own sites."""
    add_set("mixed_scales", TRIAL_SEED, 120)
    monkeypatch.setattr(kept, "RESULTS", home / "kept")
    return lambda: run_study("unseen", "cpu", overrides=SETTINGS, rows=["mixed_scales"], columns=["own"])


def values(result: StudyResult) -> dict[str, float]:
    """Return the numbers of the only run."""
    return {metric: by_seed[0] for (_, _, metric), by_seed in result.table.items()}


def test_one_set_runs_and_is_judged(run_tiny: Callable[[], StudyResult]) -> None:
    result = run_tiny()
    found = values(result)
    assert found["best_null"] == max(found[name] for name in (RAW, STANDARDISED, RANDOM))
    assert found["best_null_mean"] == max(found[name] for name in (RAW + MEAN, STANDARDISED + MEAN, RANDOM))
    assert found["chance"] == found[RANDOM]
    (run,) = (path for path in places.runs().iterdir() if not path.name.startswith("."))
    shown = json.loads((run / "clusters.json").read_text())["comparison"]
    assert found["own_null"] == max(shown["chance_acc"], *shown["baseline_acc"].values())
    said = judged.word_of(RunFolder(run)) in ("doubtful", "chance")
    assert found["told"] == float(said or found["acc"] >= 1.5 * found["chance"])
    verdicts = {one.claim.claim.partition(": ")[2]: one.verdict for one in result.claims if one.differences}
    reached = {"best_null": "less 0.02", "best_null_mean": "15 other random states", "own_null": "the run itself shows"}
    for metric, rule in reached.items():
        (verdict,) = [verdict for words, verdict in verdicts.items() if rule in words.removesuffix(", less 0.02")]
        assert (verdict == "reproduced") == (found["acc"] >= found[metric] - 0.02)
    assert run_tiny().table == result.table, "a finished run is used again"


def test_a_warning_excuses_a_run_at_chance(
    run_tiny: Callable[[], StudyResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judged, "CHANCE_FACTOR", 1000.0)
    said = {}
    for word in ("good", "doubtful", "chance"):
        monkeypatch.setattr(judged, "word_of", lambda run, word=word: word)
        said[word] = values(run_tiny())["told"]
    assert said == {"good": 0.0, "doubtful": 1.0, "chance": 1.0}
