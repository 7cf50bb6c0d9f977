"""Own images from `data add` to `predict`, as their user does it: in a folder of its own, without Shoal's variables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from shoal.core.errors import DataError
from shoal.review.served.predict import PredictedClusters, check_images
from tests.planted_images import kind_of, write_clients, write_new


def shoal(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SHOAL_", "MLFLOW_", "PREFECT_API"))}
    command = [sys.executable, "-m", "shoal.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=folder, timeout=240)


@pytest.mark.long
def test_from_own_files_to_the_clusters_of_new_ones(tmp_path: Path) -> None:
    write_clients(tmp_path / "pictures")
    assert shoal(tmp_path, "data", "add", "pictures", "--name", "mine").returncode == 0
    changes = {
        "data.name": "mine",
        "partition.kind": "by_column",
        "partition.column": "client",
        "method.name": "kmeans",
        "model.clusters": 3,
        "workers.slots": 1,
        "tracking.mlflow": "false",
        "tracking.prefect": "off",
    }
    options = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
    done = shoal(tmp_path, "run", *options)
    assert done.returncode == 0, done.stderr
    lines = [line.split("│")[1].strip() for line in done.stdout.splitlines() if line.startswith("│")]
    shown = lines[: lines.index("balance of cluster sizes") + 1]
    assert {"share of the smallest cluster", "share of the largest cluster", "empty clusters"} <= set(shown)
    assert "silhouette" in shown
    (run,) = (tmp_path / "runs").glob("[!.]*")
    table = pd.read_parquet(run / "clusters.parquet")
    assert {(tmp_path / "pictures" / file).is_file() for file in table["file"]} == {True}
    assert len(list((run / "figures" / "clusters").glob("*.png"))) == 3

    write_new(tmp_path / "new")
    (tmp_path / "new" / "torn.png").write_bytes(b"\x89PNG")
    done = shoal(tmp_path, "predict", "latest", "new", "--out", "found.csv", "--sheet", "found.png", "--json")
    assert done.returncode == 0, done.stderr
    assert "skipped 1 of 10 images" in done.stderr
    assert "torn.png: unreadable" in done.stderr
    assert [line.split()[1:4] for line in done.stderr.splitlines() if "files" in line and "│" in line] == [
        ["files", "seen", "│"],
        ["files", "taken", "│"],
    ]
    found = pd.read_csv(tmp_path / "found.csv")
    cluster_of = dict(zip(table["file"].map(kind_of), table["cluster"], strict=True))
    assert found["cluster"].tolist() == [cluster_of[kind_of(file)] for file in found["file"]]
    assert (tmp_path / "found.png").stat().st_size
    told = json.loads(done.stdout)
    assert [(one["file"], one["cluster"]) for one in told["samples"]] == list(
        zip(found["file"], found["cluster"], strict=True)
    )
    assert [one["file"] for one in told["skipped"]] == ["torn.png"]
    assert told["intake"]["taken"] == {"files": 9}


def test_a_sheet_is_of_images_alone() -> None:
    windows = PredictedClusters(pd.DataFrame({"window": ["m1@0"], "cluster": [0]}), [])
    with pytest.raises(DataError, match="these samples are windows of time series: leave it out"):
        check_images(windows)
    rows = PredictedClusters(pd.DataFrame({"row": [0], "cluster": [0]}), [])
    with pytest.raises(DataError, match="these samples are rows of a table: leave it out"):
        check_images(rows)
    check_images(PredictedClusters(pd.DataFrame({"file": ["a.png"], "cluster": [0]}), []))
