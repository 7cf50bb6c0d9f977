"""Studies of CFL: norms are drawn, and training has rested where the paper's eps1 says so."""

import math
from unittest.mock import Mock

import pandas as pd
import pytest

from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.run_folder import RunFolder
from shoal_research.cfl import derive
from shoal_research.cfl.derive import has_rested


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
