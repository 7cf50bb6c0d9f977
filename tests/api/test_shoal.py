"""Shoal from Python: the same runs as the command line's, and an import that costs nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import shoal
from shoal.api.running import nested, settings_of
from shoal.engine.settings.run_settings import load_settings
from shoal.engine.store.run_events import Event
from tests.conftest import SMALL
from tests.planted_images import KINDS, draw, kind_of, write_clients, write_new

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home folder with own images of three kinds."""
    folder = tmp_path_factory.mktemp("place")
    write_clients(folder / "pictures")
    write_new(folder / "new")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_HOME", str(folder))
        for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
            patch.delenv(name, raising=False)
        yield folder


@pytest.fixture(scope="module")
def found(place: Path) -> shoal.Run:
    """A finished run on them."""
    added = shoal.add_data(place / "pictures", "mine")
    assert (added.kind, added.shape, added.extra["clients"]) == ("image", (1, 12, 12), ["lab 3", "north", "süd"])
    notes = json.loads((place / "data" / "store" / "own" / "mine.intake.json").read_text())
    assert notes["seen"] == notes["taken"] == {"files": added.train}
    assert notes["left_out"] == {}
    events: list[str] = []
    run = shoal.run(
        SMALL, data={"name": "mine", "limit": None}, method="kmeans", partition="by_column", rounds=1,
        model={"clusters": 3}, progress=False, observers=[lambda event: events.append(event.kind)],
    )  # fmt: skip
    assert events[0] == "started"
    assert events[-1] == "finished"
    return run


def test_import_takes_nothing_heavy() -> None:
    code = "import sys, shoal; print(dir(shoal)); print(sorted(set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    every = json.loads(done.stdout.splitlines()[-1].replace("'", '"'))
    modules = {name.split(".")[0] for name in every}
    assert [name for name in every if name.startswith("shoal.")] == []
    assert not modules & {"torch", "numpy", "pandas", "pydantic", "prefect", "mlflow", "sklearn", "matplotlib", "typer"}
    assert "'run'" in done.stdout
    assert "'add_data'" in done.stdout


@pytest.mark.parametrize("name", shoal.__all__)
def test_all_that_is_named_is_there_and_documented(name: str) -> None:
    assert (getattr(shoal, name).__doc__ or "").strip()


def test_what_is_not_there_is_told() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'train'; it has .*run"):
        _ = shoal.train  # type: ignore[attr-defined]


def test_a_run_shows_what_its_folder_holds(found: shoal.Run) -> None:
    again = shoal.load("latest")
    assert again.path == found.path
    assert again.state == "finished"
    assert "finished, 1 rounds" in repr(again)
    assert again.settings.method.name == "kmeans"
    assert again.metrics["silhouette"] == again.result.quality["silhouette"]
    pd.testing.assert_frame_equal(again.clusters, pd.read_parquet(found.path / "clusters.parquet"))
    assert (len(again.rounds), len(again.clients)) == (1, 1)
    assert {"bytes", "clusters/cluster-00"} <= again.figures.keys()
    assert all(path.is_file() for path in again.figures.values())
    again.report.unlink()
    assert "K-means on pooled samples: mine" in again.report.read_text()
    assert "3</b><br>clusters" in again._repr_html_()


def test_new_images_and_arrays_get_the_same_clusters(place: Path, found: shoal.Run) -> None:
    own = found.clusters
    cluster_of = dict(zip(own["file"].map(kind_of), own["cluster"], strict=True))
    of_files = found.predict(place / "new")
    assert of_files["cluster"].tolist() == [cluster_of[kind_of(file)] for file in of_files["file"]]
    assert of_files.attrs["skipped"] == []
    rng = np.random.default_rng(5)
    assign_array = found.predict(np.stack([np.asarray(draw(kind, rng)) for kind in KINDS]))
    assert assign_array["cluster"].tolist() == [cluster_of[kind] for kind in KINDS]
    with pytest.raises(shoal.ShoalError, match=r"shape \(2, 5\), expected \(n, 1, 12, 12\)"):
        found.predict(np.zeros((2, 5), np.uint8))
    with pytest.raises(shoal.ShoalError, match="float64, expected images as uint8"):
        found.predict(np.zeros((2, 12, 12)))


def test_embeddings_are_what_distances_are_taken_in(place: Path, found: shoal.Run) -> None:
    table, columns = (found.predict(place / "new", embedding=how) for how in (False, True))
    names = [name for name in columns if name.startswith("embedding_")]
    assert names == [f"embedding_{place}" for place in range(144)]
    pd.testing.assert_frame_equal(columns.drop(columns=names), table)
    h = columns[names].to_numpy()
    from safetensors.numpy import load_file

    centres = load_file(found.path / "centres.safetensors")["centres"]
    distance = np.linalg.norm(h - centres[table["cluster"]], axis=1)
    np.testing.assert_allclose(distance, table["distance"], rtol=1e-4)


@pytest.mark.long
def test_the_command_line_writes_the_same_embeddings(place: Path, found: shoal.Run) -> None:
    def predict(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "shoal.cli.main", "predict", found.name, "new", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=place, env={**os.environ}, timeout=240)

    done = predict("--out", "rows.parquet", "--embedding")
    assert done.returncode == 0, done.stderr
    written = pd.read_parquet(place / "rows.parquet")
    pd.testing.assert_frame_equal(written, found.predict(place / "new", embedding=True))


def test_a_cluster_is_explained(found: shoal.Run) -> None:
    cluster = found.explain(1)
    assert cluster.clients["samples"].sum() == (found.clusters["cluster"] == 1).sum()
    assert set(cluster.shown["file"]) <= set(found.clusters["file"])


@pytest.mark.long
def test_runs_are_listed_and_compared(found: shoal.Run) -> None:
    other = shoal.run(found.settings, seed=7, progress=False)
    listed = shoal.runs(data="mine")
    assert listed.index.tolist() == [other.name, found.name]
    assert listed.loc[found.name, "state"] == "finished"
    assert shoal.runs(method="fedcc").empty
    beside = shoal.compare(found, other.name)
    assert beside.index.tolist() == [found.name, other.name]
    assert beside.loc[found.name, "silhouette"] == found.metrics["silhouette"]
    with pytest.raises(shoal.ShoalError, match="1 runs cannot be compared"):
        shoal.compare(found)
    with pytest.raises(shoal.ShoalError, match=f"run {other.name} is named twice"):
        shoal.compare("latest", found.name, other.name)


def test_an_interrupted_run_is_resumed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(event: Event) -> None:
        if event.kind == "round_finished" and event.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shoal.run(SMALL, rounds=2, method="fedavg", partition={"kind": "iid", "validation": 0.2},
                  data={"limit": 60}, progress=False, observers=[stop])  # fmt: skip
    assert "continues the run" in capsys.readouterr().err
    halted = shoal.load(unfinished=True)
    assert halted.state == "interrupted"
    with pytest.raises(shoal.ShoalError, match="no cluster table"):
        _ = halted.clusters
    assert shoal.resume(halted, progress=False).result.rounds == 2


@pytest.mark.long
def test_a_search_gives_settings_that_a_run_takes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.lifecycle.driving.show", lambda *_: None)
    about = {
        "name": "from-python",
        "settings": {**SMALL, "method": "kmeans", "rounds": 1, "model": {"clusters": 3}},
        "vary": {"partition.clients": {"choices": [2, 3, 4]}},
        "sampler": "grid",
    }
    found = shoal.search(about, trials=2, progress=False)
    assert list(found.trials["state"]) == ["finished"] * 2
    assert found.score == found.trials["score"].max()
    assert found.judged_by == "neighbours"
    assert any("how far scores differ by the seed" in sentence for sentence in found.caveats)
    assert found.page.read_text().startswith("<!doctype html>")
    again = shoal.run(found.best, progress=False)
    best = found.trials.loc[found.trials["score"].idxmax()]
    assert again.settings.partition.clients == best["partition.clients"]
    assert shoal.load(best["runs"]).result.weights_sha256 == again.result.weights_sha256
    # The same search again goes on, with those trials; a file says the same.
    file = place / "search.yaml"
    file.write_text(json.dumps(about))
    more = shoal.search(file, trials=3, progress=False)
    assert more.trials.head(2).equals(found.trials)
    with pytest.raises(shoal.ShoalError, match="vary"):
        shoal.search({"name": "nothing"})


def test_settings_may_be_given_in_many_ways(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("rounds: 4\nmethod: fedcc\ndata: {name: digits, limit: 100}\n")
    expected = load_settings(file, ["rounds=5", "data.limit=50"])
    made: list[Callable[[], Any]] = [
        lambda: settings_of(file, {"rounds": 5, "data": {"limit": 50}}),
        lambda: settings_of(load_settings(file), {"rounds": 5, "data.limit": 50}),
        lambda: settings_of({"method.name": "fedcc", "data.limit": 50}, {"rounds": 5, "data": "digits"}),
    ]
    for make in made:
        assert make() == expected
    other = settings_of(load_settings(file), {"method": "fedsimclr"})
    assert other.local.optimiser == "sgd", "the defaults of the method that is meant"
    assert nested({"a.b": 1, "a.c": {"d": 2}}) == {"a": {"b": 1, "c": {"d": 2}}}
    with pytest.raises(shoal.ShoalError, match="rouds: there is no such setting; did you mean rounds"):
        settings_of(None, {"rouds": 3})
