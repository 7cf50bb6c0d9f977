"""The study of unseen data: its sets, null baselines and rules, on tiny sets of another seed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.preprocessing import StandardScaler

from shoal.engine.settings import places
from shoal.methods.scores.clustering import accuracy
from shoal_research import kept, runner
from shoal_research.definition import StudyError, load_study, make_study
from shoal_research.kept import keep, load_kept
from shoal_research.pages import study_parts
from shoal_research.result import StudyResult
from shoal_research.runner import run_study
from shoal_research.unseen import judge as judged
from shoal_research.unseen.files import add_set
from shoal_research.unseen.nulls import (
    K_MEANS,
    MEAN,
    PRETRAINED,
    RANDOM,
    RAW,
    REPEATS,
    STANDARDISED,
    STD,
    UNTRAINED,
    best_null,
    best_null_mean,
    feature_spaces,
    k_means,
    nulls,
    random_accuracy,
)
from shoal_research.unseen.page import cells as page_cells
from shoal_research.unseen.page import with_ranges
from shoal_research.unseen.sets import SEED, SETS, DrawnSet, samples_of, set_name
from shoal_research.unseen.sites import deal_to_sites, labels_of_sizes

TRIAL_SEED = 3
SETTINGS = {"method": {"name": "kmeans"}, "tracking": {"mlflow": False, "prefect": "off"}}
DRAWN = [key for key, about in SETS.items() if isinstance(about, DrawnSet)]


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
        if isinstance(about, DrawnSet):
            label = labels_of_sizes(about.samples, about.classes, about.ratio, np.random.default_rng(0))
            sizes = np.bincount(label)
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
    return {name for name in found if not name.endswith((MEAN, STD))}


def test_each_k_means_baseline_is_repeated_with_other_random_states(home: Path) -> None:
    prepared = add_set("mixed_scales", TRIAL_SEED, 120)
    found = nulls(prepared, 6)
    truth = np.asarray(prepared.train_y)
    x = feature_spaces(prepared)[RAW]
    repeats = [accuracy(truth, k_means(x, 6, repeat)) for repeat in range(1, REPEATS + 1)]
    assert found[RAW] == accuracy(truth, k_means(x, 6))
    assert found[RAW + MEAN] == pytest.approx(np.mean(repeats))
    assert found[RAW + STD] == pytest.approx(np.std(repeats, ddof=1))
    assert len(repeats) == 15
    assert len({k_means(x, 6, repeat).tobytes() for repeat in range(REPEATS + 1)}) > 1
    assert {name + end for name in (RAW, STANDARDISED) for end in (MEAN, STD)} == set(found) - single(found)


def test_the_best_mean_is_not_the_best_draw() -> None:
    found = {RANDOM: 0.2, RAW: 0.7, RAW + MEAN: 0.5, RAW + STD: 0.9, STANDARDISED: 0.6}
    found |= {STANDARDISED + MEAN: 0.55, STANDARDISED + STD: 0.01}
    assert best_null(found) == 0.7
    assert best_null_mean(found) == (0.55, 0.01)
    assert best_null_mean(found | {RANDOM: 0.56}) == (0.56, 0.0)


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
    study = load_study("unseen").model_copy(update={"options": {"seed": TRIAL_SEED, "samples": 120}})
    monkeypatch.setattr(runner, "load_study", lambda name: study)
    return lambda: run_study("unseen", "cpu", overrides=SETTINGS, rows=["mixed_scales"], columns=["own"])


def values(result: StudyResult) -> dict[str, float]:
    """Return the numbers of the only run."""
    return {row.metric: row.values[0] for row in result.rows}


def test_one_set_runs_resumes_and_makes_the_table(
    run_tiny: Callable[[], StudyResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run_tiny()
    found = values(result)
    assert (found["samples"], found["classes"], found["sites"]) == (120, 6, 6)
    assert found["best_null"] == max(found[name] for name in (RAW, STANDARDISED, RANDOM))
    assert found["best_null_mean"] == max(found[name] for name in (RAW + MEAN, STANDARDISED + MEAN, RANDOM))
    assert found["chance"] == found[RANDOM]
    (run,) = (path for path in places.runs().iterdir() if not path.name.startswith("."))
    shown = json.loads((run / "clusters.json").read_text())["comparison"]
    assert found["own_null"] == max(shown["chance_acc"], *shown["baseline_acc"].values())
    (words,) = result.words
    said = words.words["verdict"] in ("doubtful", "chance")
    assert found["told"] == float(said or found["acc"] >= 1.5 * found["chance"])
    assert words.words["method"] == "kmeans"
    assert words.words["kind"] == "vector"
    verdicts = {claim.claim: str(claim.verdict) for claim in result.claims if claim.differences}
    reached = found["acc"] >= found["best_null"] - 0.02
    assert verdicts["Mixed scales, own: ACC is at or above every null baseline less 0.02"] == (
        "reproduced" if reached else "opposite"
    )
    on_average = found["acc"] >= found["best_null_mean"] - 0.02
    wanted = "ACC is at or above the mean of every null baseline over 15 other random states, less 0.02"
    assert verdicts[f"Mixed scales, own: {wanted}"] == ("reproduced" if on_average else "opposite")
    by_itself = found["acc"] >= found["own_null"] - 0.02
    shows = "ACC is at or above every null baseline that the run itself shows, less 0.02"
    assert verdicts[f"Mixed scales, own: {shows}"] == ("reproduced" if by_itself else "opposite")
    assert run_tiny().runs == result.runs, "a finished run is used again"
    assert len(list(places.runs().iterdir())) - len(list(places.runs().glob(".*"))) == 1
    study = load_study("unseen")
    docs = tmp_path / "docs"
    monkeypatch.setattr(kept, "require_clean_code", lambda *arguments: None)
    keep(study, "cpu", docs)
    one = load_kept("unseen", "cpu", docs)
    assert one is not None
    assert one.words == result.words
    page = "\n".join(study_parts(study, "cpu", one, docs))
    assert f"less 0.02: **{int(reached)} of 30 runs**" in page
    assert f"1.5 times chance: **{int(found['told'])} of 30 runs**" in page
    assert f"{wanted}: **{int(on_average)} of 30 runs**" in page
    scores = f"{found['acc']:.3f} | {found['nmi']:.3f}"
    marks = ["yes" if each else "**no**" for each in (reached, on_average, by_itself)]
    assert f"| Mixed scales, own | {scores} | {' | '.join(marks)} | {words.words['verdict']} |" in page
    draws = [f"{found[n]:.3f} ({found[n + MEAN]:.3f} ± {found[n + STD]:.3f})" for n in K_MEANS[:2]]
    assert f"| Mixed scales | {found[RANDOM]:.3f} | {' | '.join(draws)} |" in page
    assert page.count("not measured") == 29


def test_a_warning_excuses_a_run_at_chance(
    run_tiny: Callable[[], StudyResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judged, "CHANCE_FACTOR", 1000.0)
    said = {}
    for word in ("good", "doubtful", "chance", "none"):
        monkeypatch.setattr(judged, "verdict_of", lambda run, word=word: (word, "a reason"))
        result = run_tiny()
        said[word] = values(result)["told"]
        assert result.words[0].words["verdict reason"] == "a reason"
    assert said == {"good": 0.0, "doubtful": 1.0, "chance": 1.0, "none": 0.0}


def test_a_run_at_chance_that_is_not_told_is_marked() -> None:
    own = {"acc": 0.2, "nmi": 0.1, "seconds": 3.4}
    assert page_cells(own, {"verdict": "good"}, [False, True, True, False]) == [
        *("0.200", "0.100", "**no**", "yes", "yes", "good, **not told**", "3")
    ]
    assert page_cells(own, {"verdict": "chance"}, [True, True, True, True])[-2] == "chance"


def test_reasons_that_differ_in_numbers_are_one_line() -> None:
    reasons = [
        "83 images: efficientnet-lite0 wants 5,000, ACC is 0.9",
        "1,200 images: efficientnet-lite0 wants 5,000, ACC is 0.25",
        "97 images: efficientnet-lite0 wants 5,000, ACC is 0.3",
    ]
    assert with_ranges(reasons) == "83 to 1,200 images: efficientnet-lite0 wants 5,000, ACC is 0.25 to 0.9"
    assert with_ranges(reasons[:1]) == reasons[0]


def test_the_verdict_is_read_as_the_run_wrote_it() -> None:
    assert judged.word_and_reason("chance") == ("chance", "")
    assert judged.word_and_reason({"word": "good", "reason": "Stable."}) == ("good", "Stable.")
    assert judged.word_and_reason(None) == ("none", "")


def test_a_claim_of_each_cell_names_metrics() -> None:
    raw: dict[str, Any] = {
        "name": "toy",
        "title": "a toy",
        "paper": "none",
        "metrics": ["acc"],
        "rows": {"a": {"caption": "A"}, "b": {"caption": "B"}},
        "columns": {"x": {"caption": "X"}},
        "scales": {"cpu": {"about": "a toy"}},
        "claims": [{"claim": "enough", "each_cell": True, "left": "acc", "op": ">=", "right": 0.5}],
    }
    study = make_study(raw, "toys", "toy.yaml")
    assert [claim.claim for claim in study.claims] == ["A, X: enough", "B, X: enough"]
    assert [claim.quantities()[0].row for claim in study.claims] == ["a", "b"]
    raw["claims"][0]["each_cell"] = False
    with pytest.raises(StudyError, match=r"claims\.0"):
        make_study(raw, "toys", "toy.yaml")


def test_the_lines_that_the_readme_quotes_are_those_of_a_kept_run() -> None:
    result = load_kept("unseen", "cpu")
    assert result is not None
    (words,) = (each.words for each in result.words if (each.row, each.column) == ("scenes", "own"))
    quoted = (Path(__file__).parents[2] / "README.md").read_text()
    assert f"    {words['method reason']}\n" in quoted
    assert f"    verdict: {words['verdict']}. {words['verdict reason']}\n" in quoted
