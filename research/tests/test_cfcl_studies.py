"""What the CF-CL studies derive from finished runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from shoal.engine.settings import places
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.run_folder import RunFolder
from shoal_research.cfcl import derive as cfcl
from shoal_research.definition import load_study
from shoal_research.table import Group, Table
from tests.conftest import SMALL, at_home
from tests.engine.rounds.test_every_method_runs import CASES
from tests.runs import straight

STUDY = load_study("cfcl-negatives")


def group(key: str, *runs: Any) -> Group:
    """Runs as the group of a row of the study `cfcl-negatives`."""
    return Group(STUDY.rows[key], STUDY.columns["labels_2"], dict(enumerate(runs)))


def of_first_seed(table: Table) -> dict[tuple[str, str], float]:
    """The numbers of a table by row and metric: that of the first seed, or of all seeds together."""
    return {(row, metric): next(iter(values.values())) for (row, _, metric), values in table.items()}


@pytest.fixture(scope="module")
def home_of_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A home with one short run of each selection, and the runs' names."""
    case = CASES["cfcl"]
    names = {}
    with at_home(tmp_path_factory.mktemp("selections")) as folder:
        for key, selection in (("fedavg", "none"), ("uniform", "uniform"), ("cfcl", "cfcl")):
            changes = {**case, "method": {**case["method"], "name": "cfcl_importance", "selection": selection}}
            names[key] = straight(make_settings(merge(SMALL, changes))).name
    return folder, names


@pytest.fixture
def groups(home_of_runs: tuple[Path, dict[str, str]], home: Path) -> list[Group]:
    """The runs in a copy of that home, which a test may change."""
    folder, names = home_of_runs
    shutil.copytree(folder, home, symlinks=True, dirs_exist_ok=True)
    return [group(key, RunFolder(places.runs() / name)) for key, name in names.items()]


def test_figures_and_tables_are_of_the_runs(groups: list[Group], tmp_path: Path) -> None:
    variance = {
        row: value for (row, _), value in of_first_seed(cfcl.labels_over_rounds(STUDY, groups, tmp_path)).items()
    }
    for one in groups:
        rounds = one.runs[0].table("rounds")["label_variance"]
        # CF-CL's first round is its push: nobody has anything of others before the second.
        counted = rounds[1:] if one.row.key == "cfcl" else rounds
        assert variance[one.row.key] == pytest.approx(counted.mean())
    assert rounds[0] > rounds[1:].max(), "CF-CL's: so that the push would raise the mean"
    assert variance["fedavg"] > variance["uniform"], "what is pulled is of other labels, most of it"
    cfcl.convergence(STUDY, groups, tmp_path)
    cfcl.embeddings(STUDY, groups, tmp_path)
    for name in ("convergence", "label-variance", "embeddings"):
        assert (tmp_path / f"{name}.png").stat().st_size > 5000, name


def test_redundancy_is_a_mean_over_rounds_in_which_something_was_held(
    groups: list[Group], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {row: value for (row, _), value in of_first_seed(cfcl.redundancy(STUDY, groups, tmp_path)).items()}
    assert found.keys() == {"uniform", "cfcl"}, "without exchange there is none"
    assert all(0 <= mean <= 1 for mean in found.values())
    assert groups[2].runs[0].table("rounds")["redundancy"].isna().tolist()[:2] == [True, False], "push, then pull"
    table = pd.DataFrame({"round": [1, 2, 3, 4], "redundancy": [None, 0.2, 0.3, 0.7]})
    monkeypatch.setattr(RunFolder, "table", lambda run, name: table)
    assert of_first_seed(cfcl.redundancy(STUDY, groups[2:], tmp_path)) == {
        ("cfcl", "redundancy_mean"): pytest.approx(0.4)
    }


def test_steps_and_delay_until_uniforms_final_accuracy(
    groups: list[Group], small: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uniform ends at 0.7, there after 20 steps, CF-CL after 10, FedAvg never, so 30. Pulled negatives: at 0.8."""
    case = CASES["cfcl"]
    for key, selection in (("uniform_pulled_negatives", "uniform"), ("cfcl_pulled_negatives", "cfcl")):
        method = {**case["method"], "name": "cfcl_importance", "selection": selection, "negatives": "pulled"}
        groups.append(group(key, straight(small(**{**case, "method": method}))))
    probes = {
        "fedavg": [0.5, 0.6, 0.6],
        "uniform": [0.6, 0.7, 0.7],
        "cfcl": [0.7, 0.6, 0.7],
        "uniform_pulled_negatives": [0.7, 0.7, 0.8],
        "cfcl_pulled_negatives": [0.7, 0.9, 0.9],
    }
    by_run = {one.runs[0].name: probes[one.row.key] for one in groups}
    monkeypatch.setattr(
        cfcl,
        "curve",
        lambda run: pd.DataFrame({"step": [10, 20, 30], "probe": by_run[run.name], "delay": [1.0, 2.0, 3.0]}),
    )
    monkeypatch.setattr(cfcl, "metric_of", lambda run, name: by_run[run.name][-1])
    found = of_first_seed(cfcl.convergence(STUDY, groups, tmp_path))
    means = {row: found.pop((row, "probe_over_steps")) for row in probes}
    assert means == pytest.approx({row: sum(values) / 3 for row, values in probes.items()})
    assert found == {
        ("fedavg", "steps_to_uniform"): 30,
        ("fedavg", "delay_to_uniform"): 3.0,
        ("uniform", "steps_to_uniform"): 20,
        ("uniform", "delay_to_uniform"): 2.0,
        ("cfcl", "steps_to_uniform"): 10,
        ("cfcl", "delay_to_uniform"): 1.0,
        ("uniform_pulled_negatives", "steps_to_uniform"): 30,
        ("uniform_pulled_negatives", "delay_to_uniform"): 3.0,
        ("cfcl_pulled_negatives", "steps_to_uniform"): 20,
        ("cfcl_pulled_negatives", "delay_to_uniform"): 2.0,
    }
