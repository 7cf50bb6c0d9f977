"""Advice on a method: what auto chooses, and the command."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli.data import app
from shoal.engine.settings.run_settings import load_settings
from shoal.lifecycle.preparing import advise

POINTS = ["data.name=gaussian", "data.options={samples: 80, clusters: 3, dimension: 8, test: 20}"]


def test_advice_is_what_auto_chooses(home: Path) -> None:
    method = advise(load_settings(None, [*POINTS, "model.clusters=auto", "partition.clients=4"]))
    assert method.method == "fedkmeans"
    assert "federated K-means on columns as they are" in method.reason


@pytest.mark.long
def test_data_show_ends_with_the_command(home: Path) -> None:
    assert CliRunner().invoke(app, ["prepare", "digits"]).exit_code == 0
    done = CliRunner().invoke(app, ["show", "digits"])
    assert done.exit_code == 0, done.output
    assert "run: shoal run --set data.name=digits" in done.output
