"""Studies of CFL: what is simulated is what eq. 30 is of, and subsets are what their rows are called."""

import math
from unittest.mock import Mock

import pandas as pd
import pytest

from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.run_folder import RunFolder
from shoal_research.cfl import derive
from shoal_research.cfl.derive import has_rested
from shoal_research.cfl.simulate import noise_bound, noisy_gradients
from shoal_research.definition import load_study


def test_a_positive_gap_is_rarer_than_a_correct_bipartition(tmp_path):
    few = {"dimension": 100, "clients_per_group": 3, "trials": 40}
    clear = noisy_gradients({**few, "groups": 5, "noise": 0.5}, 0, tmp_path)
    assert clear == {"gap_positive": 1.0, "correct_bipartition": 1.0}
    noisy = noisy_gradients({**few, "groups": 10, "noise": 1.5}, 0, tmp_path)
    assert 0.2 < noisy["gap_positive"] < 0.7
    assert noisy["correct_bipartition"] > 0.9
    drowned = noisy_gradients({**few, "groups": 10, "noise": 10.0}, 0, tmp_path)
    assert drowned["gap_positive"] == 0


def test_norms_are_drawn_where_only_some_rounds_are_evaluated(tmp_path, monkeypatch):
    some = [math.nan, 2.0, math.nan, 1.0]
    table = pd.DataFrame({"round": [1, 2, 3, 4], "mean_norm/0": some, "max_norm/0": some})
    group = Mock(column=Mock(key="never_split"), row=Mock(caption="congruent"), runs={0: Mock(table=lambda _: table)})
    drawn = []
    monkeypatch.setattr(derive, "save", lambda figure, _: drawn.append(figure))
    monkeypatch.setattr(derive, "each_run", lambda *_: {})
    derive.norms_over_rounds(Mock(), [group], tmp_path)
    for line in drawn[0].axes[0].get_lines():
        assert line.get_xydata().tolist() == [[2, 2.0], [4, 1.0]]


def test_the_studies_name_the_same_metrics_as_the_simulation(tmp_path):
    study = load_study("cfl-separation-probability")
    found = noisy_gradients(
        {"dimension": 20, "clients_per_group": 2, "trials": 2, "groups": 2, "noise": 1}, 0, tmp_path
    )
    assert set(study.metrics) == set(found)


@pytest.mark.parametrize("groups", [2, 3, 5, 10])
def test_theorem_1_separates_below_its_noise_and_not_above(groups: int) -> None:
    """The bounds of equations 19 and 21, where all clients have the same noise."""

    def separated(noise: float) -> bool:
        h = 1 - 2 * noise**2
        angle = math.pi / (groups - 1)
        cross = 1.0
        if h >= math.cos(angle):
            cross = math.cos(angle) * h + math.sin(angle) * math.sqrt(1 - h**2)
        return h > cross

    bound = noise_bound(groups)
    assert separated(bound - 1e-6)
    assert not separated(bound + 1e-6)


@pytest.mark.parametrize(
    ("norms", "clusters", "rested"),
    [
        ([2.0, 0.39, float("nan")], [1, 1, 1], 1.0),
        ([2.0, 0.41, float("nan")], [1, 1, 1], 0.0),
        ([0.3, 0.8, float("nan")], [1, 1, 1], 0.0),
        ([2.0, 0.41, float("nan")], [1, 2, 2], 1.0),
    ],
)
def test_training_has_rested_where_the_mean_update_ends_below_eps1_or_a_cluster_is_split(norms, clusters, rested):
    table = pd.DataFrame({"round": [1, 2, 3], "mean_norm/0": norms, "clusters": clusters})

    def run_of(criterion: str) -> RunFolder:
        method = {"name": "cfl", "criterion": criterion, "eps1": 0.4, "schedule": [1]}
        run = Mock(spec=RunFolder)
        run.settings.return_value = make_settings({"method": method})
        run.table.return_value = table
        return run

    assert has_rested(run_of("absolute")) == rested
    assert has_rested(run_of("schedule")) is None
