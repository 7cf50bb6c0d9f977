"""Labels that come later score a run's clusters, whole or in part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from typer.testing import CliRunner

from shoal.cli.score import app
from shoal.core.errors import DataError
from shoal.engine.store.run_folder import RunFolder
from shoal.review.results import label_scores as module
from shoal.review.results.label_scores import label_scores
from tests.planted_images import clustered

Make = Callable[..., Any]
FILES = [f"north/{number:02d}.png" for number in range(40)]


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """The table of a run whose clusters nearly are the labels of `write`."""
    cluster = np.arange(40) % 3
    cluster[:4] = 2
    table = pd.DataFrame({"file": FILES, "cluster": cluster})
    monkeypatch.setattr(module, "read_clusters", lambda run: table)
    return table


def write(path: Path, rows: list[tuple[str, str]]) -> Path:
    pd.DataFrame(rows, columns=["file", "label"]).to_csv(path, index=False)
    return path


def test_some_labels_are_enough(clusters: pd.DataFrame, tmp_path: Path) -> None:
    kinds = {file: f"0{number % 3}" for number, file in enumerate(FILES)}
    chosen = FILES[1::2]
    path = write(tmp_path / "labels.csv", [(file.replace("/", "\\"), kinds[file]) for file in chosen])
    run = RunFolder(tmp_path)
    scores = label_scores(run, path)
    cluster = clusters.set_index("file")["cluster"][chosen].to_numpy()
    truth = [kinds[file] for file in chosen]
    assert scores.samples == 40
    assert scores.beside.samples == 20
    assert scores.scores["ari"] == pytest.approx(adjusted_rand_score(truth, cluster))
    assert scores.scores["nmi"] == pytest.approx(normalized_mutual_info_score(truth, cluster))
    assert scores.verdict.word == "good"
    assert scores.beside.chance_acc is not None
    assert 1 / 3 < scores.beside.chance_acc < 0.6
    assert list(scores.table.columns) == ["00", "01", "02"], "labels are names, not numbers"
    assert int(scores.table.to_numpy().sum()) == 20


def test_labels_that_clusters_do_not_follow_are_chance(clusters: pd.DataFrame, tmp_path: Path) -> None:
    path = write(tmp_path / "labels.csv", [(file, str(number // 20)) for number, file in enumerate(FILES)])
    assert label_scores(RunFolder(tmp_path), path).verdict.word == "chance"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([("north/00.png", "a"), ("south/00.png", "b")], "names 1 files that the run does not have: south/00.png"),
        ([("north/00.png", "a"), ("north/00.png", "b")], "more than once: north/00.png"),
        ([("north/00.png", "a"), ("north/01.png", "a")], "scores need two or more"),
    ],
)
def test_wrong_labels_are_refused(clusters: pd.DataFrame, tmp_path: Path, rows, said: str) -> None:
    with pytest.raises(DataError, match=said):
        label_scores(RunFolder(tmp_path), write(tmp_path / "labels.csv", rows))


def test_a_set_without_files_is_refused(clusters: pd.DataFrame, tmp_path: Path) -> None:
    clusters["file"] = pd.NA
    with pytest.raises(DataError, match="its set has no files"):
        label_scores(RunFolder(tmp_path), write(tmp_path / "labels.csv", [("north/00.png", "a")]))


@pytest.mark.long
def test_the_command_scores_a_run(home: Path, small: Make) -> None:
    run = clustered(home, small, each=6)
    table = pd.read_parquet(run.path / "clusters.parquet")
    labels = np.array(["cluster", "a", "b"])[table["cluster"]]
    rows = list(zip(table["file"], labels, strict=True))
    path = write(home / "labels.csv", rows)
    said = CliRunner().invoke(app, ["latest", str(path)])
    assert said.exit_code == 0, said.output
    assert "by these labels: above chance. ACC is 1.000" in said.output
