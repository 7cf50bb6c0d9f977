"""The files of studies, and the cells that they plan."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.engine.settings.run_settings import make_settings
from shoal_research.cells import cells
from shoal_research.definition import Study, StudyError, function, load_study, make_study, study_names
from shoal_research.pages import PAGES

TOY: dict[str, Any] = {
    "title": "a toy",
    "paper": "none",
    "metrics": ["score"],
    "percent": False,
    "rows": {"small": {"caption": "Small", "settings": {"size": 1}}, "large": {"caption": "Large one"}},
    "columns": {"all": {"caption": "All"}},
    "scales": {"cpu": {"about": "a toy", "seeds": 3}},
}


def toy(**changes: Any) -> Study:
    """A toy study with some of its keys replaced."""
    return make_study({**TOY, **changes}, "toys", "toy")


@pytest.mark.parametrize("name", study_names())
def test_a_study_plans_valid_settings_at_every_scale_and_names_functions_and_a_page(name: str) -> None:
    study = load_study(name)
    for scale in study.scales:
        planned = cells(study, scale, 1)
        if not study.code_at:
            make_settings(planned[0].settings)
    for path in (*study.derive, *filter(None, [study.add_data])):
        assert callable(function(study, path))
    assert study.page in PAGES
    claims = [claim.claim for claim in study.claims]
    assert len(set(claims)) == len(claims), "no two claims in the same words"


def test_a_row_can_be_skipped_or_run_in_some_columns_only() -> None:
    study = toy(
        rows={key: {"caption": key.upper(), "settings": {"method": key}} for key in ("a", "b", "c")},
        columns={"one": {"caption": "One"}, "two": {"caption": "Two", "settings": {"rounds": 2}}},
        scales={
            "cpu": {"about": "", "rows": {"a": {"columns": []}, "b": {"columns": ["two"], "settings": {"rounds": 3}}}}
        },
    )
    planned = cells(study, "cpu", 1)
    assert [(c.row.key, c.column.key) for c in planned] == [("c", "one"), ("b", "two"), ("c", "two")]
    assert next(c for c in planned if c.row.key == "b").settings["rounds"] == 3
    with pytest.raises(StudyError, match="no scale 'paper'"):
        cells(study, "paper", 1)
    with pytest.raises(StudyError, match="runs none of these cells at scale 'cpu': name other rows or columns"):
        cells(study, "cpu", 1, ["a"])


def test_seeds_are_those_of_the_row_or_the_scale_from_the_first_on() -> None:
    study = toy(scales={"cpu": {"about": "", "seeds": 2, "first_seed": 3, "rows": {"large": {"seeds": 1}}}})
    assert [(c.row.key, c.seed) for c in cells(study, "cpu")] == [("small", 3), ("small", 4), ("large", 3)]
    assert {c.seed for c in cells(study, "cpu", 3)} == {3, 4, 5}


def test_rows_and_columns_are_chosen_by_key_or_caption() -> None:
    study = load_study("uifca-table1")
    chosen = cells(study, "cpu", 1, ["Gaussian, k-FED", "subspace_kfed"], ["p = 1"])
    assert [(c.row.key, c.column.key) for c in chosen] == [("gaussian_kfed", "p_1"), ("subspace_kfed", "p_1")]
    with pytest.raises(StudyError, match="no column 'p = 2'; it has p = 0; p"):
        cells(study, "cpu", 1, columns=["p = 2"])


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"metrics": None}, "metrics"),
        ({"colums": {}}, "colums"),
        ({"rows": {"a": {}}}, "rows.a.caption"),
        ({"rows": {"A b": {"caption": "a"}}}, "rows.A b.key"),
        ({"rows": {"a": {"caption": "a", "role": "best"}}}, "rows.a.role"),
        ({"scales": {"cpu": {}}}, "scales.cpu.about"),
        ({"scales": {"cpu": {"about": "", "columns": {"x": {}}}}}, "scales.cpu.columns.x.caption"),
        ({"claims": [{"claim": "c", "left": "small", "right": 1}]}, "claims.0.left"),
        ({"claims": [{"claim": "c", "left": 1, "right": 1, "op": "="}]}, "claims.0.op"),
    ],
)
def test_a_wrong_file_is_refused_with_its_key(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(StudyError) as refused:
        toy(**changes)
    assert str(refused.value).startswith(f"study toy: {key}")


def test_a_study_or_a_function_that_is_not_there_is_named() -> None:
    with pytest.raises(StudyError, match="no study is called 'nothing'"):
        load_study("nothing")
    with pytest.raises(StudyError, match=r"study 'toy' names shoal_research\.toys\.derive:rows"):
        function(toy(), "derive:rows")


def test_a_claim_of_each_cell_names_metrics() -> None:
    claim = {"claim": "enough", "each_cell": True, "left": "score", "op": ">=", "right": 0.5}
    study = toy(claims=[claim])
    assert [one.claim for one in study.claims] == ["Small, All: enough", "Large one, All: enough"]
    assert [one.quantities()[0] for one in study.claims] == [("small", "all", "score"), ("large", "all", "score")]
