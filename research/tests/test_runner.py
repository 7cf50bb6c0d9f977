"""Planning, running and simulating studies, and their claims."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.data.sets.prepared import open_prepared
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import make_settings
from shoal.lifecycle.starting import new_run
from shoal.sweeps.sweep import Sweep
from shoal_research import kept, runner, simulation
from shoal_research.cells import cells
from shoal_research.commands.study import show_study
from shoal_research.definition import StudyError, function, load_study, make_study, study_names
from shoal_research.kept import keep, load_kept
from shoal_research.pages import study_parts
from shoal_research.result import rule_of, study_folder
from shoal_research.runner import run_study
from tests.team import eventually

TOY = {
    "name": "toy",
    "title": "a toy",
    "paper": "none",
    "metrics": ["score"],
    "percent": False,
    "rows": {"small": {"caption": "Small", "settings": {"size": 1}}, "large": {"caption": "Large one"}},
    "columns": {"all": {"caption": "All"}},
    "scales": {"cpu": {"about": "a toy", "seeds": 3}},
}


def toy(**changes):
    """A toy study with some of its keys replaced."""
    return make_study({**TOY, **changes}, "toys", "studies/toys/toy.yaml")


@pytest.fixture
def known(monkeypatch):
    """Make a study the one that `run_study` loads, and functions those that it names."""

    def use(study, **functions):
        monkeypatch.setattr(runner, "load_study", lambda name: study)
        for module in (runner, simulation):
            monkeypatch.setattr(module, "function", lambda study, path: functions[path.split(":")[1]])
        if study.simulate:
            monkeypatch.setattr(simulation.os, "cpu_count", lambda: 1)  # in this process, where calls can be counted

    return use


def test_every_study_plans_valid_settings_at_every_scale():
    assert study_names()
    for name in study_names():
        study = load_study(name)
        for scale in study.scales:
            planned = cells(study, scale, 1)
            assert planned, (name, scale)
            if not study.simulate:
                make_settings(planned[0].settings)
        for path in (*study.derive, *study.figures, *filter(None, [study.simulate])):
            assert callable(function(study, path))


def test_a_row_can_be_skipped_or_run_in_some_columns_only():
    study = toy(
        rows={
            "a": {"caption": "A", "settings": {"method": "fedcc"}},
            "b": {"caption": "B", "settings": {"method": "fedpnp"}},
            "c": {"caption": "C", "settings": {"method": "kmeans"}},
        },
        columns={
            "one": {"caption": "One", "settings": {"seed": 0}},
            "two": {"caption": "Two", "settings": {"rounds": 2}},
        },
        scales={"cpu": {"about": "", "rows": {"a": "skip", "b": {"columns": ["two"], "settings": {"rounds": 3}}}}},
    )
    planned = cells(study, "cpu", 1)
    assert [(c.row.key, c.column.key) for c in planned] == [("c", "one"), ("b", "two"), ("c", "two")]
    assert next(c for c in planned if c.row.key == "b").settings["rounds"] == 3
    with pytest.raises(StudyError, match="no scale 'paper'"):
        cells(study, "paper", 1)


def test_rows_and_columns_are_chosen_by_key_or_caption():
    study = load_study("uifca-table1")
    chosen = cells(study, "cpu", 1, ["Gaussian, k-FED", "subspace_kfed"], ["p = 1"])
    assert [(c.row.key, c.column.key) for c in chosen] == [("gaussian_kfed", "p_1"), ("subspace_kfed", "p_1")]
    with pytest.raises(StudyError, match="no column 'p = 2'; it has p = 0; p"):
        cells(study, "cpu", 1, columns=["p = 2"])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"metrics": None}, "metrics: given None; expected metrics of the last evaluated round"),
        ({"colums": {}}, "colums: there is no such key; expected one of system, name, title"),
        ({"rows": {"a": {}}}, "rows.a.caption: is missing; expected words that tables and figures show"),
        ({"rows": {"A b": {"caption": "a"}}}, "rows.A b: given 'A b'; expected lower-case letters"),
        ({"rows": {"a": {"caption": "a", "role": "best"}}}, "rows.a.role: given 'best'; expected method, baseline,"),
        ({"scales": {"cpu": {}}}, "scales.cpu.about: is missing; expected a sentence"),
        (
            {"scales": {"cpu": {"about": "", "rows": {"mid": "skip"}}}},
            "scales.cpu.rows.mid: given 'mid'; expected one of",
        ),
        ({"scales": {"cpu": {"about": "", "columns": {"x": {}}}}}, "scales.cpu.columns.x.caption: is missing"),
        (
            {"paper_values": {"small": {"none": {"score": 1}}}},
            "paper_values.small.none: given 'none'; expected one of all",
        ),
        (
            {"claims": [{"claim": "c", "left": ["Small", "all", "score"], "right": 1}]},
            "claims.0.left: given 'Small'; expected one of small, large",
        ),
        (
            {"claims": [{"claim": "c", "left": "small", "right": 1}]},
            "claims.0.left: given 'small'; expected [row, column",
        ),
        (
            {"claims": [{"claim": "c", "left": 1, "right": 1, "op": "="}]},
            "claims.0.op: given '='; expected >, >=, <, <=, or within",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_its_key_and_what_was_expected(changes, sentence):
    with pytest.raises(StudyError) as refused:
        toy(**changes)
    assert str(refused.value).startswith(f"studies/toys/toy.yaml: {sentence}")


def test_a_function_that_is_not_there_is_named():
    with pytest.raises(StudyError, match=r"study 'toy' names shoal_research\.toys\.derive:rows"):
        function(toy(), "derive:rows")


def test_changing_a_method_drops_the_settings_of_the_one_before():
    base = {"method": {"name": "fedpnp", "mu": 0.9}, "local": {"epochs": 2, "batch": 4}}
    merged = merge(base, {"method": {"name": "fedcc"}, "local": {"epochs": 1}})
    assert merged == {"method": {"name": "fedcc"}, "local": {"epochs": 1, "batch": 4}}


def test_a_simulated_cell_is_computed_once(home, known):
    calls = []

    def compute(settings, seed, folder):
        calls.append((settings["size"], seed))
        (folder / "drawn.txt").write_text("a figure")
        return {"score": settings["size"] + seed}

    study = toy(
        simulate="toy:compute",
        rows={
            "small": {"caption": "Small", "settings": {"size": 1}},
            "large": {"caption": "Large one", "settings": {"size": 10}},
        },
        claims=[{"claim": "large wins", "left": ["large", "all", "score"], "right": ["small", "all", "score"]}],
        paper_values={"large": {"all": {"score": 11}}},
    )
    known(study, compute=compute)
    first = run_study("toy", "cpu")
    assert [(r.row, r.row_key, r.mean, r.std, r.paper) for r in first.rows] == [
        ("Small", "small", 2.0, 1.0, None),
        ("Large one", "large", 11.0, 1.0, 11),
    ]
    assert first.claims[0].verdict == "reproduced"
    assert first.claims[0].differences == (9.0, 9.0, 9.0), "large less small, seed by seed"
    assert first.rows[1].values == (10.0, 11.0, 12.0)
    assert first.rows[1].of_seeds == (0, 1, 2)
    written = json.loads((Path(first.folder) / "result.json").read_text())
    assert written == first.to_json()
    assert (written["rows"][1]["row"], written["rows"][1]["row_key"]) == ("Large one", "large")
    assert len(calls) == 6
    assert run_study("toy", "cpu") == first
    assert len(calls) == 6, "kept results are used again"
    further = run_study("toy", "cpu", 5)
    assert len(calls) == 10, "of five seeds two are new"
    assert further.claims[0].of_seeds == (0, 1, 2, 3, 4)
    assert run_study("toy", "cpu", 9, gather=True).claims[0].of_seeds == (0, 1, 2, 3, 4), "what is there, and no more"
    with pytest.raises(StudyError, match="no run of study 'toy' at scale 'cpu' with these settings has ended under"):
        run_study("toy", "cpu", overrides={"size": 5}, gather=True)
    assert json.loads((Path(first.folder) / "result.json").read_text())["rows"], "the result stays"
    del calls[6:]
    run_study("toy", "cpu", overrides={"size": 5})
    assert len(calls) == 9


def staged_toy(tiny=None, **changes):
    """A simulated study in stages: `small` is far below `large`, and `noisy` is not."""
    return toy(
        simulate="toy:compute",
        rows={
            "small": {"caption": "Small", "settings": {"size": 1}},
            "large": {"caption": "Large", "settings": {"size": 10}},
            "noisy": {"caption": "Noisy", "settings": {"size": 0}},
            **({"tiny": tiny} if tiny else {}),
        },
        scales={"cpu": {"about": "a toy", "seeds": "staged"}},
        **changes,
    )


def above(left, right):
    return {"claim": f"{left} wins", "left": [left, "all", "score"], "right": [right, "all", "score"]}


def test_only_claims_that_are_not_settled_get_more_seeds(home, known):
    calls = []

    def compute(settings, seed, folder):
        calls.append((settings["size"], seed))
        noise = {0: 20 * (-1) ** seed}.get(settings["size"], 0.001 * seed**2 * settings["size"])
        return {"score": settings["size"] + noise}

    known(staged_toy(claims=[above("large", "small"), above("small", "noisy")]), compute=compute)
    result = run_study("toy", "cpu")
    assert [len(claim.of_seeds) for claim in result.claims] == [3, 20]
    assert [claim.verdict for claim in result.claims] == ["reproduced", "undecided"]
    assert {size: sum(1 for own, _ in calls if own == size) for size in (0, 1, 10)} == {0: 20, 1: 20, 10: 3}
    assert run_study("toy", "cpu", gather=True).claims == result.claims


def test_a_number_of_seeds_in_the_command_overrides_the_stages(home, known):
    known(staged_toy(claims=[above("small", "noisy")]), compute=lambda settings, seed, folder: {"score": seed**2})
    assert {row.seeds for row in run_study("toy", "cpu", 4).rows} == {4}


def test_rules_are_written_down_before_their_cells_are_run(home, known):
    compute = lambda settings, seed, folder: {"score": settings["size"] + seed}  # noqa: E731
    first = staged_toy(claims=[above("large", "small")])
    known(first, compute=compute)
    assert run_study("toy", "cpu", 3).rules == (rule_of(first, "cpu", first.claims[0]),)
    later = staged_toy(claims=[above("large", "small"), above("small", "noisy")])
    known(later, compute=compute)
    assert run_study("toy", "cpu", 3).rules == (rule_of(first, "cpu", first.claims[0]),), "its cells had been run"
    mixed = staged_toy(claims=[above("large", "tiny")], tiny={"caption": "Tiny", "settings": {"size": 0.5}})
    known(mixed, compute=compute)
    assert run_study("toy", "cpu", 3).rules == (), "one of its cells had been"
    stamps = json.loads((study_folder("toy", "cpu") / "rules.json").read_text())
    assert [each["stamped"][:2] for each in stamps] == ["20"]


def test_a_simulated_study_is_given_its_data_and_draws_from_all_cells(home, known):
    def compute(settings, seed, folder):
        return {"samples": float(len(open_prepared(Path(settings["prepared"]["digits"])).train_x))}

    def draw(measured, folder):
        (folder / "all.txt").write_text(str(measured[0].metrics[0]["samples"]))

    study = toy(
        simulate="given:compute",
        needs=["digits"],
        figures=["given:draw"],
        metrics=["samples"],
        rows={"one": {"caption": "one", "settings": {"size": 1}}},
        scales={"cpu": {"about": "a toy", "seeds": 1}},
    )
    known(study, compute=compute, draw=draw)
    result = run_study("given", "cpu")
    assert result.rows[0].mean == 1437
    assert (Path(result.folder) / "all.txt").read_text() == "1437.0"
    (kept,) = (home / "results" / "simulated").glob("*.json")
    assert json.loads(kept.read_text())["of"] == ["toys.given:compute", {"size": 1}, 0], (
        "where data lies is no identity"
    )


def test_a_study_of_runs_uses_finished_runs_again(home, known):
    changes = {"rounds": 1, "tracking": {"mlflow": False}, "data": {"name": "digits", "limit": 200}}
    small = {**changes, "local": {"epochs": 1}, "partition": {"clients": 2}, "model": {"encoder": "tiny-conv"}}
    study = toy(
        metrics=["acc"],
        percent=True,
        settings=small,
        rows={
            "floor": {"caption": "floor", "settings": {"method": "kmeans"}},
            "fedcc": {"caption": "FedCC", "settings": {"method": "fedcc"}},
        },
        columns={"iid": {"caption": "IID", "settings": {"partition": {"kind": "iid"}}}},
        scales={"cpu": {"about": "a test", "seeds": 1}},
    )
    known(study)
    first = run_study("pair", "cpu")
    assert len(first.runs) == 2
    assert all(1 < row.mean <= 100 for row in first.rows), "in percent"
    assert run_study("pair", "cpu").runs == first.runs
    assert run_study("pair", "cpu", 2, gather=True).runs == first.runs, "a second seed was not run"
    with pytest.raises(StudyError, match="no run of study 'toy'"):
        run_study("pair", "cpu", overrides={"rounds": 7}, gather=True)
    assert json.loads((Path(first.folder) / "result.json").read_text()) == first.to_json()
    assert {row.of_seeds for row in first.rows} == {(0,)}
    assert first.provenance is not None
    assert first.provenance.seconds > 0
    assert first.provenance.versions["shoal"]


@pytest.mark.slow
def test_runs_side_by_side_are_the_same_runs(home, known, monkeypatch, capfd):
    changes = {"rounds": 1, "tracking": {"mlflow": False}, "data": {"name": "digits", "limit": 200}}
    small = {**changes, "local": {"epochs": 1}, "partition": {"clients": 2}, "model": {"encoder": "tiny-conv"}}
    study = toy(
        metrics=["acc"],
        settings={**small, "method": "fedcc", "workers": {"slots": 1}},
        scales={"cpu": {"about": "a test", "seeds": 2}},
        rows={"fedcc": {"caption": "FedCC"}, "wild": {"caption": "Wild", "settings": {"local": {"lr": 1e38}}}},
    )
    known(study)

    states = []
    with monkeypatch.context() as patched:  # which the processes do not have
        patched.setattr(Sweep, "complete", lambda sweep, run, label: states.append(run.status().state))
        together = run_study("toy", "cpu", processes=2)
    assert states == ["finished", "finished", "failed", "failed"], "nothing is left to this process"
    told = capfd.readouterr()
    assert told.out == "", "standard output is for the result"
    assert told.err.count(": done") == 2
    assert told.err.count(": failed") == 2
    assert {(run.row, run.seed) for run in together.failed} == {("wild", 0), ("wild", 1)}
    shutil.rmtree(home / "runs")
    one_row = run_study("toy", "cpu", rows=["fedcc"])
    ended = [row.values for row in together.rows if row.row == "FedCC"]
    assert ended == [row.values for row in one_row.rows]
    assert len(ended[0]) == 2


SIDE_BY_SIDE = """
import signal, sys
from pathlib import Path
from shoal.engine.store.run_folder import RunFolder
from shoal_research.side_by_side import complete_side_by_side

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    complete_side_by_side([(folder, RunFolder(Path(folder))) for folder in sys.argv[1:]], 2)
"""


def test_runs_side_by_side_end_resumable_where_only_the_first_process_is_told(home, small):
    runs = [new_run(small(rounds=2_000, seed=seed)) for seed in range(2)]
    script = home / "script.py"
    script.write_text(SIDE_BY_SIDE)
    process = subprocess.Popen([sys.executable, script, *(run.path for run in runs)], stderr=subprocess.PIPE)
    try:
        eventually(lambda: all(run.status().round for run in runs), "a round of each")
        process.terminate()
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert [run.status().state for run in runs] == ["interrupted", "interrupted"]
    assert all(0 < run.status().round < 2_000 for run in runs)


def test_rows_that_a_scale_skips_are_refused_by_themselves():
    study = toy(scales={"cpu": {"about": "a toy", "rows": {"small": "skip"}}})
    assert {cell.row.key for cell in cells(study, "cpu", 1)} == {"large"}
    with pytest.raises(StudyError, match="runs none of these cells at scale 'cpu': name other rows or columns"):
        cells(study, "cpu", 1, ["small"])


def test_a_run_that_diverges_has_no_number_and_the_others_have(home, known, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(kept, "require_clean_code", lambda *arguments: None)
    settings = {"rounds": 1, "tracking": {"mlflow": False}, "data": {"name": "digits", "limit": 200}}
    settings |= {"local": {"epochs": 1}, "partition": {"kind": "iid", "clients": 2}, "model": {"encoder": "tiny-conv"}}
    study = toy(
        metrics=["acc"],
        settings=settings,
        rows={
            "wild": {"caption": "Wild steps", "settings": {"method": "fedcc", "local": {"lr": 1e38}}},
            "fedcc": {"caption": "FedCC", "settings": {"method": "fedcc"}},
        },
        scales={"cpu": {"about": "a test", "seeds": 2}},
    )
    known(study)
    result = run_study("toy", "cpu")
    assert {(row.row_key, row.of_seeds) for row in result.rows} == {("fedcc", (0, 1))}
    assert [(run.row, run.column, run.seed) for run in result.failed] == [("wild", "all", 0), ("wild", "all", 1)]
    assert all("NaN" in run.message for run in result.failed)
    assert run_study("toy", "cpu", gather=True).failed == result.failed
    show_study(result)
    assert "failed, and has no number: wild, all, seed 1" in capsys.readouterr().out
    keep(study, "cpu", tmp_path)
    page = "\n".join(study_parts(study, "cpu", load_kept("toy", "cpu", tmp_path), tmp_path))
    assert "Runs that failed and have no number: Wild steps, seeds 0, 1 (round 1: 0 of 2 clients succeeded" in page

    one_metric = toy(metrics=["acc"], settings=settings, rows={"wild": study.rows["wild"].model_dump()})
    known(one_metric)
    with pytest.raises(StudyError, match="every run failed; round 1: 0 of 2 clients succeeded"):
        run_study("toy", "cpu")


def test_cells_are_computed_in_several_processes(home):
    result = run_study("cfl-separation-probability", "cpu", 1, overrides={"trials": 3})
    study = load_study("cfl-separation-probability")
    assert len(result.rows) == len(study.rows) * len(study.columns) * len(study.metrics)
    assert all(0 <= row.mean <= 1 for row in result.rows)
    again = run_study("cfl-separation-probability", "cpu", 1, overrides={"trials": 3})
    assert again == result
