"""A home that is moved between two rounds, and between a run and what is asked of it, gives the same bits."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow.tracking._tracking_service.utils import _artifact_repos_cache
from PIL import Image

from shoal.core.records import record_to_json
from shoal.data.sets.prepared import open_prepared
from shoal.engine.settings import places
from shoal.engine.store.relocation import located, stored_path
from shoal.engine.store.run_events import Event
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run
from shoal.review.mlflow_log.embedded_store import FILE, ready_store, recorded_uri, store_uri
from shoal.review.mlflow_log.experiments import experiment_of
from shoal.review.pages.report import write_report
from shoal.review.served.explain import explain
from shoal.review.served.predict import predict
from tests.added_sets import add_set
from tests.runs import numbers

Make = Callable[..., Any]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of two clients with twelve images each."""
    rng = np.random.default_rng(0)
    for client in "ab":
        (tmp_path / "photos" / client).mkdir(parents=True)
        for k in range(12):
            pixels = rng.integers(0, 256, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / client / f"{k}.png")
    return tmp_path / "photos"


def live_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv(places.HOME_VARIABLE, str(folder))
    monkeypatch.chdir(folder)
    return folder


OWN_SET: dict[str, Any] = {
    "data": {"name": "mine", "limit": None},
    "partition": {"kind": "by_column", "clients": 0},
    "model": {"clusters": 2},
    "rounds": 2,
}


def begun(photos: Path, settings: Any) -> RunFolder:
    """A new run on the photos in the present home."""
    add_set(photos, "mine", places.store())
    return new_run(settings)


def stop(entry: Event) -> None:
    if entry.kind == "round_finished" and entry.round == 1:
        raise KeyboardInterrupt


def move_home(home: Path, target: Path, run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """Rename the home and live in it there; return the run at its new place."""
    os.rename(home, target)
    _artifact_repos_cache.clear()  # of this process; a home is not moved while one lives
    live_in(target, monkeypatch)
    return RunFolder(target / "runs" / run.name)


def check_mlflow(run: RunFolder, mlflow_run: str, images: np.ndarray) -> None:
    """Check that the store in the present home has the run with its files, and that its model serves."""
    from mlflow import MlflowClient, set_tracking_uri
    from mlflow.pyfunc import load_model

    uri = store_uri(places.mlflow_store())
    client = MlflowClient(tracking_uri=uri)
    found = client.get_run(mlflow_run)
    assert found.data.tags["shoal.run_folder"] == f"runs/{run.name}"
    assert {each.path for each in client.list_artifacts(mlflow_run)} >= {"Report.html", "settings.yaml", "lineage.json"}
    (version,) = client.search_model_versions(f"run_id = '{mlflow_run}'")
    set_tracking_uri(uri)
    try:
        served = load_model(f"models:/{version.name}/{version.version}")
    finally:
        set_tracking_uri(None)
    assert len(served.predict(images)) == len(images)


@pytest.mark.long
def test_a_home_moved_between_two_rounds_and_before_the_report_gives_the_same_bits(
    tmp_path: Path, photos: Path, small: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SHOAL_DATA_MIRROR", "MLFLOW_TRACKING_URI", "PREFECT_API_URL"):
        monkeypatch.delenv(name, raising=False)
    settings = small(**OWN_SET, tracking={"mlflow": True})
    live_in(tmp_path / "straight", monkeypatch)
    whole = begun(photos, settings)
    drive(whole)

    first = live_in(tmp_path / "first", monkeypatch)
    run = begun(photos, settings)
    with pytest.raises(KeyboardInterrupt):
        drive(run, observers=[stop])
    mlflow_run = run.status().tracking.mlflow_run
    assert mlflow_run is not None

    # Another place between two rounds.
    second = tmp_path / "second"
    run = move_home(first, second, run, monkeypatch)
    drive(run)
    assert numbers(run) == numbers(whole)
    assert not first.exists()
    assert run.status().tracking.mlflow_run == mlflow_run

    # And between the run and what is asked of it.
    third = tmp_path / "third"
    run = move_home(second, third, run, monkeypatch)
    report = run.path / "report.html"
    report.unlink()
    write_report(run)
    assert report.exists()
    table = predict(run, photos).table
    whole_table = predict(whole, photos).table
    assert table.drop(columns="run", errors="ignore").equals(whole_table.drop(columns="run", errors="ignore"))
    assert explain(run, int(table["cluster"].iloc[0])).samples > 0

    ready_store(places.mlflow_store())
    images = np.array(open_prepared(third / "data" / "store" / "own" / "mine").train_x[:4])
    check_mlflow(run, mlflow_run, images)
    again = new_run(settings)
    drive(again)
    assert numbers(again) == numbers(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos", "straight", "third"]


def test_records_name_folders_relative_to_the_home(home: Path, tmp_path: Path, photos: Path, small: Make) -> None:
    run = begun(photos, small(**OWN_SET))
    lineage = run.lineage()
    assert lineage.data.folder == "data/store/own/mine"
    assert lineage.partition.folder.startswith("data/store/partitions/mine-by_column-")
    assert str(tmp_path) not in json.dumps(record_to_json(lineage))
    assert run.folder_of("data") == home / "data" / "store" / "own" / "mine"
    assert stored_path(Path("/somewhere/else")) == "/somewhere/else"


def test_a_folder_outside_the_home_is_where_it_was(home: Path) -> None:
    assert located("/no/such/home/data/store/own/mine", home / "runs" / "one") == Path(
        "/no/such/home/data/store/own/mine"
    )


def addresses(store: Path) -> set[str]:
    with sqlite3.connect(store / FILE) as opened:
        return {address for (address,) in opened.execute("select artifact_location from experiments")}


def test_addresses_follow_a_copy_too_and_those_that_a_person_chose_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    store = tmp_path / "old home, 100%" / "mlflow"
    monkeypatch.setenv("SHOAL_HOME", str(store.parent))
    ready_store(store)
    client = MlflowClient(tracking_uri=store_uri(store))
    number = experiment_of(client, "shoal")
    client.log_text(client.create_run(number).info.run_id, "kept", "note.txt")
    client.create_experiment("elsewhere", artifact_location="s3://bucket/elsewhere")
    chosen = (tmp_path / "big" / "artifacts" / "chosen").as_uri()
    client.create_experiment("chosen", artifact_location=chosen)
    before = addresses(store)
    new = tmp_path / "new" / "mlflow"
    shutil.copytree(store, new)
    shutil.rmtree(store / "artifacts")
    for _ in range(2):
        ready_store(new)
        assert {"s3://bucket/elsewhere", chosen, (new / "artifacts" / "shoal").as_uri()} <= addresses(new)
    ready_store(store)
    assert addresses(store) == before
    client = MlflowClient(tracking_uri=store_uri(new))
    (run,) = client.search_runs([number])
    assert [artifact.path for artifact in client.list_artifacts(run.info.run_id)] == ["note.txt"]


def test_the_record_of_the_embedded_store_does_not_say_where_it_lies(home: Path) -> None:
    assert recorded_uri(store_uri(home / "mlflow")) == "sqlite:///mlflow/mlflow.db"
    assert recorded_uri("http://host:5000") == "http://host:5000"
