import json
from pathlib import Path

import pytest

from cli.console import show_study
from data.prepared import open_prepared
from engine.merge import merge
from studies import runner as studies
from studies.runner import StudyError, cells, check, function, load_study, run_study, study_names


def test_every_study_plans_valid_settings_at_every_scale():
    assert study_names()
    for name in study_names():
        study = load_study(name)
        assert study["name"] == name
        for scale, chosen in study["scales"].items():
            assert chosen["about"]
            planned = cells(study, scale, 1)
            assert planned, (name, scale)
            if "simulate" in study:
                assert callable(function(study["simulate"]))
        for path in [*study.get("derive", []), *study.get("figures", [])]:
            assert callable(function(path))


def test_every_claim_names_a_row_and_column_of_its_study():
    for name in study_names():
        study = load_study(name)
        columns = {c for scale in study["scales"].values() for c in scale.get("columns", study["columns"])}
        for claim in study.get("claims", []):
            for side in (claim["left"], claim["right"]):
                if isinstance(side, list) and "derive" not in study:
                    assert side[0] in study["rows"], claim
                    assert side[1] in columns, claim


def test_a_row_can_be_skipped_or_run_in_some_columns_only():
    study = {
        "name": "x",
        "rows": {"a": {"method": "fedcc"}, "b": {"method": "fedpnp"}, "c": {"method": "kmeans"}},
        "columns": {"one": {"seed": 0}, "two": {"rounds": 2}},
        "scales": {"cpu": {"rows": {"a": "skip", "b": {"columns": ["two"], "rounds": 3}}}},
    }
    planned = [(c.row, c.column) for c in cells(study, "cpu", 1)]
    assert planned == [("c", "one"), ("b", "two"), ("c", "two")]
    assert next(c for c in cells(study, "cpu", 1) if c.row == "b").settings.rounds == 3
    with pytest.raises(StudyError, match="no scale 'paper'"):
        cells(study, "paper", 1)


def test_rows_and_columns_can_be_chosen():
    study = load_study("uifca-table1")
    chosen = cells(study, "cpu", 1, ["Gaussian, k-FED", "Subspace, k-FED"], ["p = 1"])
    assert [(c.row, c.column) for c in chosen] == [("Gaussian, k-FED", "p = 1"), ("Subspace, k-FED", "p = 1")]
    with pytest.raises(StudyError, match="no column 'p = 2'; it has p = 0; p"):
        cells(study, "cpu", 1, columns=["p = 2"])


def test_changing_a_method_drops_the_settings_of_the_one_before():
    base = {"method": {"name": "fedpnp", "mu": 0.9}, "local": {"epochs": 2, "batch": 4}}
    merged = merge(base, {"method": {"name": "fedcc"}, "local": {"epochs": 1}})
    assert merged == {"method": {"name": "fedcc"}, "local": {"epochs": 1, "batch": 4}}


def test_a_claim_may_come_out_false_or_unmeasured(capsys):
    rows = [{"row": "a", "column": "x", "metric": "acc", "mean": 60.0}]
    claim = {"claim": "a is above 70", "left": ["a", "x", "acc"], "op": ">", "right": 70}
    assert check(claim, rows) == {"claim": "a is above 70", "holds": False, "value": -10.0}
    missing = check({**claim, "left": ["b", "x", "acc"]}, rows)
    assert missing == {"claim": "a is above 70", "holds": None, "value": None}
    claims = [check(claim, rows), missing]
    result = {"study": "toy", "scale": "cpu", "about": "", "percent": False, "rows": [], "claims": claims, "folder": ""}
    show_study(result)
    shown = capsys.readouterr().out
    assert "does not hold  a is above 70 (-10.000)" in shown
    assert "not measured  a is above 70\n" in shown


def test_a_simulated_cell_is_computed_once(home, monkeypatch):
    calls = []

    def compute(settings, seed, folder):
        calls.append((settings["size"], seed))
        (folder / "drawn.txt").write_text("a figure")
        return {"score": settings["size"] + seed}

    study = {
        "name": "toy",
        "simulate": "toy:compute",
        "percent": False,
        "metrics": ["score"],
        "rows": {"small": {"size": 1}, "large": {"size": 10}},
        "columns": {"all": {}},
        "scales": {"cpu": {"about": "a toy", "seeds": 3}},
        "claims": [{"claim": "large wins", "left": ["large", "all", "score"], "right": ["small", "all", "score"]}],
        "paper_values": {"large": {"all": {"score": 11}}},
    }
    monkeypatch.setattr(studies, "load_study", lambda name: study)
    monkeypatch.setattr(studies, "function", lambda path: compute)
    monkeypatch.setattr(studies.os, "cpu_count", lambda: 1)  # in this process, where calls can be counted
    first = run_study("toy", "cpu")
    assert [(r["row"], r["mean"], r["std"], r["paper"]) for r in first["rows"]] == [
        ("small", 2.0, 1.0, None),
        ("large", 11.0, 1.0, 11),
    ]
    assert first["claims"][0]["holds"]
    assert len(calls) == 6
    assert run_study("toy", "cpu") == first
    assert len(calls) == 6, "kept results are used again"
    run_study("toy", "cpu", overrides={"size": 5})
    assert len(calls) == 9


def test_a_simulated_study_is_given_its_data_and_draws_from_all_cells(home, monkeypatch):
    def compute(settings, seed, folder):
        return {"samples": float(len(open_prepared(Path(settings["prepared"]["digits"])).train_x))}

    def draw(found, folder):
        (folder / "all.txt").write_text(str(found[("one", "all")][0]["samples"]))

    study = {
        "name": "given",
        "simulate": "given:compute",
        "needs": ["digits"],
        "figures": ["given:draw"],
        "percent": False,
        "metrics": ["samples"],
        "rows": {"one": {"size": 1}},
        "columns": {"all": {}},
        "scales": {"cpu": {"about": "a toy", "seeds": 1}},
    }
    monkeypatch.setattr(studies, "load_study", lambda name: study)
    monkeypatch.setattr(studies, "function", lambda path: {"compute": compute, "draw": draw}[path.split(":")[1]])
    monkeypatch.setattr(studies.os, "cpu_count", lambda: 1)
    result = run_study("given", "cpu")
    assert result["rows"][0]["mean"] == 1437
    assert (Path(result["folder"]) / "all.txt").read_text() == "1437.0"
    (kept,) = (home / "results" / "simulated").glob("*.json")
    assert json.loads(kept.read_text())["of"] == ["given:compute", {"size": 1}, 0], "where data lies is no identity"


def test_a_study_of_runs_uses_finished_runs_again(home):
    changes = {"rounds": 1, "tracking": {"mlflow": False}, "data": {"name": "digits", "limit": 200}}
    small = {**changes, "local": {"epochs": 1}, "partition": {"clients": 2}, "model": {"encoder": "tiny-conv"}}
    with pytest.MonkeyPatch.context() as patch:
        study = {
            "name": "pair",
            "metrics": ["acc"],
            "settings": small,
            "rows": {"floor": {"method": "kmeans"}, "FedCC": {"method": "fedcc"}},
            "columns": {"IID": {"partition": {"kind": "iid"}}},
            "scales": {"cpu": {"about": "a test", "seeds": 1}},
        }
        patch.setattr(studies, "load_study", lambda name: study)
        first = run_study("pair", "cpu")
        assert len(first["runs"]) == 2
        assert all(0 <= row["mean"] <= 100 for row in first["rows"])
        assert run_study("pair", "cpu")["runs"] == first["runs"]


def test_cells_are_computed_in_several_processes(home):
    result = run_study("cfl-separation-probability", "cpu", 1, overrides={"trials": 3})
    assert len(result["rows"]) == 20
    assert all(0 <= row["mean"] <= 1 for row in result["rows"])
    again = run_study("cfl-separation-probability", "cpu", 1, overrides={"trials": 3})
    assert again == result
