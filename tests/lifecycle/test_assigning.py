"""New files of a folder, assigned by the champion: each once, whatever is killed, and all of them in MLflow."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient
from PIL import Image

from shoal.core.errors import DataError, ShoalError
from shoal.engine.settings import places
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store import codec
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle import assigning
from shoal.lifecycle.assign_settings import AssignSettings
from shoal.lifecycle.assigning import AssignError, assign_new
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run
from shoal.review.mlflow_log.embedded_store import store_uri
from shoal.review.pages.cluster_sheets import draw_cluster_sheets
from shoal.review.pages.report import parts_of
from shoal.review.results.clusters import cluster_facts, read_clusters
from shoal.review.results.stable_names import NIGHT
from shoal.review.served import predict as serving
from shoal.review.served.explain import explain
from shoal.review.served.predict import predict
from shoal.review.served.promotion import PromotionError
from tests.added_sets import add_set
from tests.conftest import SMALL, one_quick
from tests.planted_images import draw, kind_of, write_clients

Make = Callable[..., Any]
MODEL = "shoal-kmeans-mine"
OWN: dict[str, Any] = {
    "data": {"name": "mine", "limit": None},
    "partition": {"kind": "by_column", "column": "client", "clients": 0},
    "method": {"name": "kmeans"},
    "model": {"clusters": 3},
    "rounds": 1,
    "tracking": {"mlflow": True},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home whose champion knows planted kinds; it is the run of a night, so that its clusters have names."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("trained")
        patch.setenv("SHOAL_HOME", str(home))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.chdir(home)
        write_clients(home / "pictures")
        add_set(home / "pictures", "mine", places.store(), test=0.25)
        run = new_run(make_settings(merge(SMALL, OWN)))
        run.event(NIGHT)
        drive(run)
        yield home


@pytest.fixture
def place(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """That home with an empty watched folder."""
    monkeypatch.setenv("SHOAL_HOME", str(trained))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (trained / "incoming").mkdir()
    yield trained
    for name in ("incoming", "results/assigned"):
        shutil.rmtree(trained / name, ignore_errors=True)
    client = MlflowClient(tracking_uri=store_uri(places.mlflow_store()))
    for each in logged(client):
        client.delete_run(each.info.run_id)


SETTINGS = AssignSettings(model=MODEL, watch="incoming")


def logged(client: MlflowClient) -> list[Any]:
    experiment = client.get_experiment_by_name("shoal")
    return client.search_runs([experiment.experiment_id], "tags.`shoal.assignment` LIKE '%'")


def put(home: Path, *names: str, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    for name in names:
        path = home / "incoming" / name
        path.parent.mkdir(exist_ok=True)
        draw(kind_of(name), rng).save(path)


def all_tables(home: Path) -> pd.DataFrame:
    return pd.concat([pd.read_csv(path) for path in sorted(home.glob(f"results/assigned/{MODEL}/[0-9]*/clusters.csv"))])


@pytest.mark.long
def test_answers_and_pages_name_clusters_by_the_numbers_that_tables_keep(place: Path) -> None:
    """The second model numbers its clusters in another order; it answers with the names of the first one's."""
    put(place, "dark-1.png", "left-2.png", "right-3.png")
    first = RunFolder.find("latest")
    settings = make_settings(merge(SMALL, OWN, {"model": {"clusters": 4}, "tracking": {"register_as": "shoal-second"}}))
    second = new_run(settings)
    second.event(NIGHT, champion=first.name)
    drive(second)
    facts = cluster_facts(second)
    assert facts is not None
    assert facts.names is not None
    assert facts.names.names != (0, 1, 2, 3)
    images = np.stack([np.asarray(Image.open(path)) for path in sorted((place / "incoming").iterdir())])
    store = store_uri(places.mlflow_store())
    try:
        mlflow.set_tracking_uri(store)
        served = mlflow.pyfunc.load_model("models:/shoal-second/latest").predict(images[:, None])
    finally:
        mlflow.set_tracking_uri(None)
    expected = predict(second, place / "incoming").table
    assert served["cluster"].tolist() == expected["cluster"].tolist()
    assert served["cluster_id"].tolist() == expected["cluster_id"].tolist()
    assert served["cluster_id"].tolist() == predict(first, place / "incoming").table["cluster"].tolist()
    table = read_clusters(second)
    assert table is not None
    sizes = table["cluster_id"].value_counts()
    assert sizes.to_dict() != table["cluster"].value_counts().to_dict()
    assert parts_of(second)["table"]["cluster"].value_counts().to_dict() == sizes.to_dict()
    assert {int(path.stem.split("-")[1]) for path in draw_cluster_sheets(second)} == set(sizes.index)
    assert {k: explain(second, k).samples for k in sizes.index} == sizes.to_dict()
    shutil.rmtree(second.path)


@pytest.mark.long
def test_each_new_file_is_assigned_once_as_predict_does(place: Path) -> None:
    put(place, "dark-1.png", "below/left-2.png", "right-3.png")
    done = assign_new(SETTINGS)
    assert (done.samples, done.left_out, done.logged) == (3, (), True)
    assert done.message.startswith(f"3 samples of 3 new files assigned by {MODEL} version 1: ")
    run = RunFolder.find("latest")
    table = pd.read_csv(Path(done.folder) / "clusters.csv")
    expected = predict(run, place / "incoming").table
    assert table.columns[:3].tolist() == ["file", "cluster_id", "confidence"]
    merged = table.merge(expected, on="file", suffixes=("", "_predicted"))
    assert len(merged) == 3
    assert (merged["cluster_id"] == merged["cluster_id_predicted"]).all()
    assert merged["confidence"].to_numpy() == pytest.approx(merged["confidence_predicted"].to_numpy(), abs=1e-6)
    facts = cluster_facts(run)
    assert facts is not None
    assert facts.names is not None
    assert (Path(done.folder) / "sheet.png").exists()
    again = assign_new(SETTINGS)
    assert (again.samples, again.folder) == (0, "")
    assert again.message.startswith("nothing new in ")

    put(place, "dark-1.png", seed=1)  # other bytes under a known name
    put(place, "left-4.png")
    (place / "incoming" / "right-3.png").touch()  # the same bytes, written again
    (place / "incoming" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(9))
    second = assign_new(SETTINGS)
    assert second.samples == 2
    assert [each.split(":")[0] for each in second.left_out] == ["broken.png"]
    assert sorted(pd.read_csv(Path(second.folder) / "clusters.csv")["file"]) == ["dark-1.png", "left-4.png"]
    assert assign_new(SETTINGS).samples == 0  # a file that cannot be used is not read every time
    (place / "incoming" / "broken.png").unlink()
    put(place, "broken.png".replace("broken", "left-5"))
    assert assign_new(SETTINGS).samples == 1

    client = MlflowClient(tracking_uri=store_uri(places.mlflow_store()))
    runs = logged(client)
    assert sorted(run.data.metrics["assigned/samples"] for run in runs) == [1, 2, 3]
    newest = next(run for run in runs if run.data.metrics["assigned/samples"] == 3)
    assert newest.data.tags["shoal.model_version"] == "1"
    note = newest.data.tags["mlflow.note.content"]
    assert note.startswith(f"3 samples assigned by version 1 of {MODEL}; 0 files left out. ")
    with_bad = next(run for run in runs if run.data.metrics["assigned/samples"] == 2)
    assert "1 file left out" in with_bad.data.tags["mlflow.note.content"]
    assert {"clusters.csv", "sheet.png"} <= {each.path for each in client.list_artifacts(newest.info.run_id)}


@pytest.mark.parametrize("moment", ["read", "renamed", "logged", "marked"])
def test_a_kill_neither_repeats_nor_loses_a_file(place: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    put(place, "dark-1.png", "left-2.png")

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if moment == "read":
            patch.setattr(assigning, "write_sealed", killed)
        elif moment == "renamed":
            patch.setattr(assigning, "log_assignment", killed)
        elif moment == "logged":
            log = assigning.log_assignment
            patch.setattr(assigning, "log_assignment", lambda *a: log(*a) and killed())
        else:
            patch.setattr(Path, "touch", killed)
        with pytest.raises(KeyboardInterrupt):
            assign_new(SETTINGS)
    put(place, "right-3.png")
    assign_new(SETTINGS)
    assert sorted(all_tables(place)["file"]) == ["dark-1.png", "left-2.png", "right-3.png"]
    assert not list(place.glob(f"results/assigned/{MODEL}/.*.tmp"))
    runs = logged(MlflowClient(tracking_uri=store_uri(places.mlflow_store())))
    assert sum(run.data.metrics["assigned/samples"] for run in runs) == 3
    assert assign_new(SETTINGS).samples == 0


@pytest.mark.parametrize("moment", one_quick(["table", "sheet", "facts", "renamed"]))
def test_a_full_disk_loses_nothing(place: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    put(place, "dark-1.png")
    assign_new(SETTINGS)
    put(place, "left-2.png", "right-3.png")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if moment == "table":
            patch.setattr(serving, "write_csv", full)
        elif moment == "sheet":
            patch.setattr(assigning, "predicted_sheet", full)
        elif moment == "facts":
            patch.setattr(codec, "write_file", full)
        else:
            patch.setattr("shoal.core.durable.put_in_place", full)
        with pytest.raises((OSError, ShoalError), match=r"No space left on device|the disk is full"):
            assign_new(SETTINGS)
        assert not list(place.glob(f"results/assigned/{MODEL}/.*.tmp")), "what was half written takes no space"
    done = assign_new(SETTINGS)
    assert (done.samples, Path(done.folder).name) == (2, "0002")
    assert sorted(all_tables(place)["file"]) == ["dark-1.png", "left-2.png", "right-3.png"]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("batch.json", None, "batch.json is missing"),
        ("batch.json", "{", "batch.json is not JSON"),
        ("batch.json", '{"model": "other"}', "version"),
        ("batch.json", "changed", "batch.json cannot be trusted"),
        ("clusters.csv", "", "clusters.csv cannot be read"),
    ],
)
def test_a_damaged_batch_is_told_and_not_used(
    place: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str | None, why: str
) -> None:
    put(place, "dark-1.png")
    with monkeypatch.context() as patch:
        patch.setattr(assigning, "log_assignment", lambda *a: False)
        path = Path(assign_new(SETTINGS).folder) / name
    if content is None:
        path.unlink()
    elif content == "changed":
        path.write_text(path.read_text().replace("dark-1.png", "dark-9.png"))
    else:
        path.write_text(content)
    put(place, "left-2.png")
    with pytest.raises(AssignError, match=rf"^batch 0001 of .* is damaged: .*{why}.*move the folder .* elsewhere"):
        assign_new(SETTINGS)
    assert logged(MlflowClient(tracking_uri=store_uri(places.mlflow_store()))) == []
    path.parent.rename(place / "damaged")
    try:
        assign_new(SETTINGS)
        assert sorted(all_tables(place)["file"])[0] == "dark-1.png"
    finally:
        shutil.rmtree(place / "damaged")


def test_what_mlflow_lacks_is_logged_the_next_time(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(place, "dark-1.png")
    with monkeypatch.context() as patch:
        patch.setattr(assigning, "log_assignment", lambda *a: False)
        assert not assign_new(SETTINGS).logged
    client = MlflowClient(tracking_uri=store_uri(places.mlflow_store()))
    assert logged(client) == []
    assert assign_new(SETTINGS).logged
    assert len(logged(client)) == 1


def test_what_cannot_be_assigned_is_said(place: Path) -> None:
    with pytest.raises(AssignError, match=r"assignment\.watch names no folder"):
        assign_new(AssignSettings(model=MODEL))
    with pytest.raises(AssignError, match="MLflow has no champion of 'other'"):
        assign_new(AssignSettings(model="other", watch="incoming"))
    with pytest.raises(DataError, match=r"the watched folder .*nowhere does not exist"):
        assign_new(AssignSettings(model=MODEL, watch="nowhere"))
    folder = place / "results" / "assigned" / MODEL
    folder.mkdir(parents=True, exist_ok=True)
    with assigning.claimed_batches(folder), pytest.raises(AssignError, match="another process assigns files"):
        assign_new(SETTINGS)
    run = RunFolder.find("latest")
    hidden = run.path.with_name("elsewhere")
    shutil.move(run.path, hidden)
    try:
        with pytest.raises(PromotionError, match="whose folder is not in"):
            assign_new(SETTINGS)
    finally:
        shutil.move(hidden, run.path)


@pytest.mark.long
def test_tables_of_vectors_are_assigned_file_by_file(home: Path, small: Make) -> None:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"client": np.repeat(["a", "b"], 30), "x": np.tile([0.0, 9.0, 20.0], 20), "y": rng.random(60)})
    rows.to_csv(home / "mine.csv", index=False)
    add_set(home / "mine.csv", "mine", places.store())
    drive(new_run(small(**OWN)))
    (home / "incoming").mkdir()
    rows.drop(columns="client").head(6).to_csv(home / "incoming" / "monday.csv", index=False)
    (home / "incoming" / "tuesday.csv").write_text("z\n1\n")
    done = assign_new(SETTINGS)
    assert done.samples == 6
    assert [each.split(":")[0] for each in done.left_out] == ["tuesday.csv"]
    table = pd.read_csv(Path(done.folder) / "clusters.csv")
    assert (table["file"] == "monday.csv").all()
    assert table["row"].tolist() == list(range(6))
    assert table["cluster_id"].nunique() == 3
    assert json.loads((Path(done.folder) / "batch.json").read_text())["files"].keys() == {"monday.csv", "tuesday.csv"}


def test_a_file_that_cannot_be_read_is_told_and_assigned_once_it_can(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(place, "dark-1.png", "left-2.png")
    opened = Path.open

    def refuses(path: Path, *given: Any, **named: Any) -> Any:
        if path.name == "left-2.png":
            raise PermissionError(13, "Permission denied")
        return opened(path, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuses)
        done = assign_new(SETTINGS)
    assert done.samples == 1
    (told,) = done.left_out
    assert told.startswith("left-2.png: ")
    assert "Permission denied" in told
    done = assign_new(SETTINGS)
    assert (done.samples, done.left_out) == (1, ())
    assert set(all_tables(place)["file"]) == {"dark-1.png", "left-2.png"}
