"""From clusters back to files: the table of a run, its quality without labels, its sheets, and new samples."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from shoal.core.errors import DataError
from shoal.core.records import record_to_json
from shoal.data.partition.table import load_partition
from shoal.data.sets.prepared import DataSpec, PreparedSet, open_prepared
from shoal.engine.messages.wire import Answer, Request
from shoal.engine.settings import places
from shoal.engine.store.codec import StoreError
from shoal.engine.store.run_events import Event, is_warning
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.engine.workers.worker import Worker
from shoal.engine.workers.worker_processes import WorkerLost
from shoal.lifecycle.starting import new_run
from shoal.methods.scores.clustering import cluster_balance, crossed, table_scores
from shoal.review.pages import report
from shoal.review.pages.cluster_sheets import MAX_CERTAIN, MAX_UNSURE, by_certainty, draw_cluster_sheets
from shoal.review.pages.contact_sheet import thumbnail
from shoal.review.pages.report import write_report
from shoal.review.results.clusters import (
    CENTRES,
    FACTS,
    QUALITY,
    TABLE,
    cluster_facts,
    keep_clusters,
    label_names,
    quality,
)
from shoal.review.results.result import run_result, shown_metrics
from shoal.review.served.predict import check_array, predict, predicted_sheet, write_table
from tests.added_sets import add_set
from tests.planted_images import KINDS, draw, kind_of, write_clients, write_new
from tests.runs import go_on, numbers, straight

Make = Callable[..., Any]
OWN = {"data": {"name": "mine", "limit": None}, "partition": {"kind": "by_column", "column": "client", "clients": 0}}


def judged(settings: Any) -> RunFolder:
    """A finished run with its table."""
    worker = Worker()
    run = straight(settings, worker.handle)
    assert keep_clusters(run, worker.handle)
    return run


def table_of(run: RunFolder) -> pd.DataFrame:
    return pd.read_parquet(run.path / TABLE)


@pytest.fixture
def own(home: Path) -> Path:
    """A folder of images in planted kinds, added as the set `mine` with a test part."""
    write_clients(home / "pictures")
    add_set(home / "pictures", "mine", places.store(), test=0.25)
    return home / "pictures"


@pytest.fixture
def planted(own: Path, small: Make) -> RunFolder:
    return judged(small(**OWN, method={"name": "kmeans"}, model={"clusters": 3}))


# --- the table --------------------------------------------------------------------------------------------------------


def test_every_file_is_in_the_cluster_of_its_planted_kind(own: Path, planted: RunFolder) -> None:
    table = table_of(planted)
    files = {path.relative_to(own).as_posix() for path in own.rglob("*.png")}
    assert len(files) == 63
    assert set(table["file"]) == files
    assert len(table) == len(files)
    kinds = table["file"].map(kind_of)
    assert table["cluster"].groupby(kinds).nunique().to_dict() == dict.fromkeys(KINDS, 1)
    assert table["cluster"].nunique() == 3
    # Whose a file is stands in its path, in the test part too; part and number lead to the bytes in the store.
    assert (table["client_name"] == table["file"].str.split("/").str[0]).all()
    names = sorted(("north", "süd", "lab 3"))
    assert [names[k] for k in table["client"]] == table["client_name"].tolist()
    assert set(table["part"]) == {"train", "test"}
    prepared = open_prepared(planted.folder_of("data"))
    arrays = {"train": prepared.train_x, "test": prepared.test_x}
    for row in table.itertuples():
        assert np.array_equal(arrays[row.part][row.sample][0], np.asarray(Image.open(own / row.file)))
    assert "label" not in table


@pytest.mark.long
def test_a_set_without_file_names_has_labels_and_numbers(home: Path, small: Make) -> None:
    run = judged(small(method={"name": "fedcc"}, rounds=2))
    table = table_of(run)
    assert table["file"].isna().all()
    assert (len(table), (table["part"] == "train").sum()) == (240 + 360, 240)
    assert sorted(table["client"].dropna().unique()) == [0, 1, 2]
    assert table["client"].isna().equals(table["part"] == "test")
    # From the table alone: the scores that the last round was given.
    last = run.table("rounds").iloc[-1]
    scores = table_scores(crossed(table["label"].astype(int).to_numpy(), table["cluster"].to_numpy()))
    assert scores == pytest.approx({name: last[name] for name in scores})
    assert cluster_balance(np.bincount(table["cluster"], minlength=10)) == pytest.approx(last["balance"])


def test_a_label_beyond_the_names_of_the_classes_is_an_error(home: Path, small: Make) -> None:
    run = new_run(small(method={"name": "fedcc"}))
    prepared = open_prepared(run.folder_of("data"))
    partition = load_partition(run.folder_of("partition"))
    order = np.arange(len(partition.sample))

    def with_names(*names: str) -> PreparedSet:
        return replace(prepared, manifest=replace(prepared.manifest, class_names=names))

    found = label_names(with_names(*"abcdefghij"), partition, order)
    assert found is not None
    assert set(found) == set("abcdefghij")
    with pytest.raises(DataError, match="'digits' has samples with label 9, and names for 9 classes"):
        label_names(with_names(*"abcdefghi"), partition, order)


def test_of_a_method_that_pools_all_data_each_sample_still_has_its_client(home: Path, small: Make) -> None:
    run = judged(small(method={"name": "kmeans"}, partition={"kind": "iid", "clients": 4}))
    table = table_of(run)
    scores = table_scores(crossed(table["label"].astype(int).to_numpy(), table["cluster"].to_numpy()))
    assert scores["acc"] == pytest.approx(run_result(run).metrics["acc"])
    assert set(table["client"].dropna()) == {0, 1, 2, 3}


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedsimclr", "uifca", "kfed"])
def test_the_run_is_the_same_with_its_table_and_the_table_after_resuming(home: Path, small: Make, method: str) -> None:
    changes: dict[str, Any] = {"method": {"name": method}}
    if method == "uifca":
        changes["method"] |= {"cluster_rounds": 3, "comm_rounds": 1, "steps": 3}
        changes["data"] = {"name": "gaussian", "limit": None, "options": {"samples": 60, "clusters": 3}}
    settings = small(**changes)
    without = straight(settings)
    before = numbers(without)
    run = judged(settings)
    assert numbers(run) == before
    assert keep_clusters(without, Worker().handle)  # a run that was finished earlier gets it when it is taken up
    assert numbers(without) == before
    assert (without.path / TABLE).read_bytes() == (run.path / TABLE).read_bytes()
    assert cluster_facts(without) == cluster_facts(run)

    if method == "kfed":
        return  # one round

    class Stop(KeyboardInterrupt):
        pass

    def stop(event: Event) -> None:
        if event.kind == "round_finished" and event.round == 2:
            raise Stop

    from shoal.lifecycle.starting import new_run

    halted = new_run(settings)
    with pytest.raises(KeyboardInterrupt):
        go_on(halted, observers=[stop])
    assert not keep_clusters(halted, Worker().handle), "it is not finished"
    go_on(halted)
    assert keep_clusters(halted, Worker().handle)
    assert cluster_facts(halted) == cluster_facts(run)
    assert table_of(halted).equals(table_of(run))


@pytest.mark.long
def test_it_is_made_once_and_again_where_it_is_missing_or_of_another_state(planted: RunFolder) -> None:
    def refuse(request: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError("nothing is left to do")

    assert keep_clusters(planted, refuse)
    content = (planted.path / TABLE).read_bytes()
    (planted.path / TABLE).unlink()
    assert keep_clusters(planted, Worker().handle)
    assert (planted.path / TABLE).read_bytes() == content
    facts = cluster_facts(planted)
    (planted.path / FACTS).write_text(json.dumps(record_to_json(replace(facts, weights_sha256="another"))))
    assert keep_clusters(planted, Worker().handle)
    assert cluster_facts(planted) == facts


@pytest.mark.parametrize("method", ["single", "fedavg"])
def test_a_method_without_clusters_of_samples_says_so_once(home: Path, small: Make, method: str) -> None:
    validated = {"kind": "iid", "clients": 3, "validation": 0.3}
    run = straight(small(method={"name": method}, rounds=1, partition=validated))
    for _ in range(2):
        assert not keep_clusters(run, Worker().handle)
    told = [event for event in run.events() if event.kind == "clusters_skipped"]
    assert len(told) == 1
    assert method in told[0].message
    assert not is_warning(told[0]), "nothing is missing"
    assert not (run.path / TABLE).exists()
    assert run_result(run).quality == {}
    with pytest.raises(RunError, match=r"cannot give new samples a cluster: .*" + method):
        predict(run, run.path)


@pytest.mark.long
def test_a_lost_worker_is_asked_again_and_a_finished_run_stays_finished(home: Path, small: Make) -> None:
    run = straight(small(method={"name": "kmeans"}))
    worker, lost = Worker(), [2]

    def call(request: Request) -> Answer:
        lost[0] -= 1
        if lost[0] >= 0:
            raise WorkerLost("worker slot 0 ended")
        return worker.handle(request)

    assert not keep_clusters(run, call)
    assert "worker slot 0 ended" in run.events()[-1].message
    assert run.status().state == "finished"
    lost[0] = 1
    assert keep_clusters(run, call)


def test_unknown_number_of_clusters_is_said(own: Path, small: Make) -> None:
    run = straight(small(**OWN, method={"name": "fedsimclr"}, rounds=1))
    assert not keep_clusters(run, Worker().handle)
    assert "model.clusters" in run.events()[-1].message


# --- quality without labels -------------------------------------------------------------------------------------------


def test_quality_of_a_planted_set_without_labels(planted: RunFolder) -> None:
    found = quality(planted)
    assert found["silhouette"] > 0.7
    assert found["smallest_cluster"] == found["largest_cluster"] == pytest.approx(1 / 3)
    assert found["empty_clusters"] == 0
    shown = list(shown_metrics(run_result(planted)))
    assert shown[-1] == "balance"
    assert [name for name in shown if name in QUALITY] == [name for name in QUALITY if name in found]


# --- contact sheets and the report ------------------------------------------------------------------------------------


def test_the_most_and_the_least_certain_come_first() -> None:
    rows = pd.DataFrame({"confidence": np.linspace(0, 1, 200)})
    certain, unsure = by_certainty(rows)
    assert (len(certain), len(unsure)) == (MAX_CERTAIN, MAX_UNSURE)
    assert certain["confidence"].iloc[0] == 1
    assert certain["confidence"].is_monotonic_decreasing
    assert unsure["confidence"].iloc[0] == 0
    assert unsure["confidence"].is_monotonic_increasing
    for count in (0, 1, 2, 10, 50, 51):
        certain, unsure = by_certainty(rows[:count])
        assert len(certain) + len(unsure) == min(count, MAX_CERTAIN + MAX_UNSURE)
        assert not set(certain.index) & set(unsure.index)


@pytest.mark.long
def test_a_sheet_per_cluster_shows_its_files(own: Path, planted: RunFolder) -> None:
    stale = planted.figures / "clusters" / "cluster-99.png"
    stale.parent.mkdir()
    stale.write_bytes(b"of an earlier table")
    drawn = draw_cluster_sheets(planted)
    assert [path.name for path in drawn] == [f"cluster-{k:02d}.png" for k in range(3)]
    assert not stale.exists()
    table = table_of(planted)
    for cluster, path in enumerate(drawn):
        rows = table[table["cluster"] == cluster]
        first = rows.loc[rows["confidence"].idxmax(), "file"]
        shown = thumbnail(np.asarray(Image.open(own / first))[None])
        others = [thumbnail(np.asarray(Image.open(own / f))[None]) for f in table["file"]]
        sheet = np.asarray(Image.open(path).convert("RGB"))
        left = find(sheet, shown)
        assert left is not None, "the most certain image is not on its sheet"
        places = [find(sheet, other) for other in others]
        found = zip(places, table["file"], strict=True)
        assert all((place is not None) <= (kind_of(f) == kind_of(first)) for place, f in found)
        assert min(place for place in places if place is not None) == left, "it is not the first"


def find(sheet: np.ndarray, image: np.ndarray) -> tuple[int, int] | None:
    """Where the image is on the sheet: row, then column of its upper left corner."""
    height, width = image.shape[:2]
    for top, left in np.argwhere((sheet[:-height, :-width] == image[0, 0]).all(2)):
        if np.array_equal(sheet[top : top + height, left : left + width], image):
            return int(top), int(left)
    return None


def test_sets_of_vectors_have_a_table_and_no_sheets(home: Path, small: Make) -> None:
    run = judged(small(method={"name": "kmeans"}, data={"name": "gaussian", "limit": 100}, partition={"clients": 2}))
    assert "distance" in table_of(run)
    assert draw_cluster_sheets(run) == []
    assert "Images of each cluster" not in write_report(run).read_text()


def test_the_report_shows_clusters_names_and_quality(planted: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_cluster_sheets(planted)
    page = write_report(planted).read_text()
    assert page.count("data:image/jpeg;base64,") == 3
    assert all(name in page for name in ("silhouette", "süd", "lab 3", "mean confidence"))
    counts = pd.crosstab(table_of(planted)["cluster"], table_of(planted)["client_name"])
    assert f">{counts.loc[0, 'lab 3']}</td>" in page
    monkeypatch.setattr(report, "SHEETS_BYTES", 60_000)
    page = write_report(planted).read_text()
    shown = page.count("data:image/jpeg;base64,")
    assert shown < 3
    assert f"figures/clusters/ of the run holds {3 - shown} more" in page


# --- new samples ------------------------------------------------------------------------------------------------------


def test_new_files_of_the_same_kinds_get_the_same_clusters(home: Path, planted: RunFolder) -> None:
    table = table_of(planted)
    cluster_of = dict(zip(table["file"].map(kind_of), table["cluster"], strict=True))
    write_new(home / "new")
    (home / "new" / "broken.png").write_bytes(b"no image")
    rng = np.random.default_rng(2)
    draw("left", rng).convert("RGB").save(home / "new" / "left-colour.png")
    draw("right", rng, 20).save(home / "new" / "right-large.png")
    found = predict(planted, home / "new")
    assert {each.path: each.reason.split()[0] for each in found.skipped} == {
        "broken.png": "unreadable",
        "right-large.png": "odd-sized:",
    }
    assert found.intake.seen == {"files": 12}
    assert found.intake.taken == {"files": 10}
    assert found.intake.adapted == {"made grey, as the set is": {"left-colour.png": ""}}
    assert {reason: list(names) for reason, names in found.intake.left_out.items()} == {
        "unreadable or truncated": ["broken.png"],
        "not 12x12 (height x width)": ["right-large.png"],
    }
    assert set(found.table["file"]) >= {"left-colour.png", "below/dark-new1.png"}
    assert len(found.table) == 10
    assert found.table["cluster"].tolist() == [cluster_of[kind_of(file)] for file in found.table["file"]]
    resized = predict(planted, home / "new", "resize")
    assert resized.intake.adapted["resized to 12x12 (height x width)"] == {"right-large.png": "from 20x20"}
    assert len(resized.table) == 11
    assert resized.table["cluster"].tolist() == [cluster_of[kind_of(file)] for file in resized.table["file"]]
    sheet = np.asarray(Image.open(predicted_sheet(found, home / "new", home / "sheet.png")).convert("RGB"))
    image = thumbnail(np.asarray(Image.open(home / "new" / "below" / "dark-new1.png"))[None])
    assert find(sheet, image) is not None


@pytest.mark.parametrize("method", ["kmeans", "fedsimclr", "fedcc"])
def test_what_was_trained_on_is_predicted_as_the_table_says(own: Path, small: Make, method: str) -> None:
    """With centres of K-means and with a cluster head; the data set need not be there any more."""
    run = judged(small(**OWN, method={"name": method}, model={"clusters": 3}, local={"batch": 8}))
    os.rename(run.lineage().data.folder, own.parent / "gone")
    known = table_of(run).set_index("file")
    found = predict(run, own).table.set_index("file").loc[known.index]
    assert found["cluster"].tolist() == known["cluster"].tolist()
    columns = ["confidence", "distance"] if method != "fedcc" else ["confidence"]
    assert (run.path / CENTRES).exists() == (method != "fedcc")
    for column in columns:
        assert found[column].to_numpy() == pytest.approx(known[column].to_numpy(), abs=1e-4)


def test_what_the_command_shows(home: Path, planted: RunFolder) -> None:
    from shoal.cli.console import err, out
    from shoal.cli.predict import predict as predict_command

    write_new(home / "new", each=12)
    with out.capture() as printed, err.capture() as warned:
        predict_command(planted.name, home / "new")
    shown = printed.get()
    assert "below/dark-new1.png" in shown
    assert "and 6 more; --out FILE" in shown
    assert "36 samples" in shown
    assert not warned.get()
    for table, sheet in ((Path("found.xlsx"), None), (None, Path("found.jpg"))):
        with pytest.raises(DataError, match="expected a name that ends in"):
            predict_command("no such run", home / "new", table, sheet)


def test_tables_are_read_by_the_names_of_their_columns(home: Path, small: Make, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    truth = np.arange(60) % 3
    x = 8 * np.eye(3)[truth] + rng.normal(0, 0.3, (60, 3))
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(client=np.arange(60) % 2)
    frame.to_csv(tmp_path / "mine.csv", index=False)
    add_set(tmp_path / "mine.csv", "mine", places.store())
    run = judged(small(**OWN, method={"name": "kmeans"}, model={"clusters": 3}))
    table = table_of(run)
    assert table["file"].tolist() == [f"mine.csv:{row}" for row in range(60)]
    cluster_of = dict(zip(truth, table["cluster"], strict=True))
    new = pd.DataFrame(8 * np.eye(3)[[2, 0, 1, 2]], columns=["a", "b", "c"])
    new[["c", "a", "b"]].assign(other="x").to_parquet(tmp_path / "new.parquet")
    found = predict(run, tmp_path / "new.parquet").table
    assert found["cluster"].tolist() == [cluster_of[k] for k in (2, 0, 1, 2)]
    assert list(found.columns) == ["row", "cluster", "confidence", "distance"]
    for name in ("out.csv", "out.parquet"):
        write_table(found, tmp_path / name)
    assert pd.read_csv(tmp_path / "out.csv")["cluster"].tolist() == found["cluster"].tolist()
    assert pd.read_parquet(tmp_path / "out.parquet").equals(found)
    new[["a", "c"]].to_csv(tmp_path / "few.csv", index=False)
    with pytest.raises(DataError, match="lacks 1 of the 3 columns of 'mine': b"):
        predict(run, tmp_path / "few.csv")
    new.to_csv(tmp_path / "semicolons.csv", index=False, sep=";")
    with pytest.raises(DataError, match=r"It seems to separate values with ';': save it with commas$"):
        predict(run, tmp_path / "semicolons.csv")
    with pytest.raises(DataError, match="is not a table"):
        predict(run, tmp_path)
    with pytest.raises(DataError, match=r"\.parquet, \.csv"):
        write_table(found, tmp_path / "out.txt")


def test_wrong_number_of_features_of_a_set_without_names(home: Path, small: Make, tmp_path: Path) -> None:
    run = judged(small(method={"name": "kmeans"}, data={"name": "gaussian", "limit": 100}, partition={"clients": 2}))
    pd.DataFrame(np.zeros((3, 7))).to_csv(tmp_path / "seven.csv", index=False)
    with pytest.raises(DataError, match=r"has 7 columns, expected only the \d+ features of"):
        predict(run, tmp_path / "seven.csv")


def test_arrays_that_hold_no_samples_are_refused() -> None:
    spec = DataSpec("columns", "vector", (2,), None, 10, 0)
    check_array(np.array([[1, 2]]), spec)
    for array, words in (
        (np.zeros((3, 1)), r"shape \(3, 1\), expected \(n, 2\)"),
        (np.array([["a", "b"]]), "expected numbers"),
        (np.array([[np.nan, 0.0]]), "values that are not finite: replace"),
    ):
        with pytest.raises(DataError, match=words):
            check_array(array, spec)


def test_predict_says_what_is_wrong(own: Path, small: Make, planted: RunFolder, tmp_path: Path) -> None:
    from shoal.lifecycle.starting import new_run

    begun = new_run(small(**OWN, method={"name": "kmeans"}, model={"clusters": 3}))
    with pytest.raises(RunError, match=r"is not finished .*--resume"):
        predict(begun, own)
    with pytest.raises(DataError, match="does not exist"):
        predict(planted, tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no image in"):
        predict(planted, tmp_path / "empty")
    (tmp_path / "empty" / "bad.png").write_bytes(b"x")
    with pytest.raises(DataError, match=r"(?s)none of the 1 images .*bad.png: unreadable"):
        predict(planted, tmp_path / "empty")
    (planted.path / FACTS).unlink()
    with pytest.raises(StoreError, match=r"clusters\.json is missing; .*--resume"):
        predict(planted, own)
