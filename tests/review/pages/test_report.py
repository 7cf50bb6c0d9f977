"""The report of a run: what it says of labelled, unlabelled and broken runs, against the run's own tables."""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from sklearn.manifold import trustworthiness
from sklearn.metrics import confusion_matrix

from shoal.core.errors import ShoalError
from shoal.engine.settings import places
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import load_settings, make_settings
from shoal.engine.settings.sections import PrivacySection
from shoal.engine.store.choice import Choice
from shoal.engine.store.codec import load_tensors
from shoal.engine.store.lineage import StartingState
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.workers.worker import Worker
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run
from shoal.methods.scores.clustering import crossed, table_scores
from shoal.methods.scores.no_groups import Groups
from shoal.methods.scores.shown import COMPONENTS, SAMPLES, shown_features
from shoal.methods.scores.verdict import Verdict, in_words
from shoal.review.mlflow_log.descriptions import model_card
from shoal.review.pages import figures, report
from shoal.review.pages.cluster_sheets import draw_cluster_sheets
from shoal.review.pages.comparison_page import write_comparison
from shoal.review.pages.embedding_figure import draw_embedding, draw_groups, plane
from shoal.review.pages.figures import draw_figures, draw_spread
from shoal.review.pages.provenance import changed_rows, repeat_command
from shoal.review.pages.report import write_report
from shoal.review.results import next_step as next_steps
from shoal.review.results.clusters import FEATURES, TABLE, cluster_facts, keep_clusters
from shoal.review.results.cross_tables import (
    MAX_CROSSED,
    clusters_by_clients,
    confusion,
    cross_table,
)
from shoal.review.results.next_step import NextStep, leading_baseline, next_step, simple_command
from shoal.review.results.result import run_result
from shoal.review.results.summary import duration, size, summary_of
from tests.added_sets import add_set
from tests.conftest import SMALL, at_home
from tests.planted_images import write_clients
from tests.runs import straight

Make = Callable[..., Any]


def judged(settings: Any) -> RunFolder:
    """A finished run with whatever clusters, figures and sheets it has."""
    worker = Worker()
    run = straight(settings, worker.handle)
    keep_clusters(run, worker.handle)
    draw_figures(run)
    draw_embedding(run)
    draw_cluster_sheets(run)
    return run


@pytest.fixture(scope="module")
def home_of_digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with one finished run."""
    with at_home(tmp_path_factory.mktemp("digits")) as folder:
        judged(make_settings(merge(SMALL, {"rounds": 2, "data": {"limit": 300}, "partition": {"clients": 4}})))
    return folder


@pytest.fixture
def digits_run(home_of_digits_run: Path, home: Path) -> RunFolder:
    """The run in a copy of that home, which a test may change."""
    shutil.copytree(home_of_digits_run, home, symlinks=True, dirs_exist_ok=True)
    return RunFolder.find("latest")


def links(page: str) -> list[str]:
    return re.findall(r'href="([^"]*)"', page)


def test_it_begins_with_the_task_and_the_outcome(digits_run: RunFolder) -> None:
    summary, last = summary_of(digits_run), digits_run.table("rounds").iloc[-1]
    assert summary.task == (
        "fedpnp learns from digits without labels, in at most 2 rounds: "
        "300 image samples held by 4 clients (iid partition)."
    )
    sizes = pd.read_parquet(digits_run.path / TABLE)["cluster"].value_counts()
    names = [number.name for number in summary.numbers]
    assert names == ["clusters" if len(sizes) > 1 else "cluster", "ACC", "NMI", "sent", "time"]
    values = [number.value for number in summary.numbers]
    assert values[:3] == [str(len(sizes)), f"{last['acc']:.3f}", f"{last['nmi']:.3f}"]
    assert f"of {sizes.min()} to {sizes.max()} samples" in summary.outcome
    assert summary.outcome.startswith("It finished after 2 rounds: ")
    moved = digits_run.table("rounds")[["bytes_up", "bytes_down", "bytes_d2d"]].sum().sum()
    assert values[3] == f"{moved / 1e6:.1f} MB"
    page = write_report(digits_run).read_text()
    mean = cluster_facts(digits_run).comparison.by_client["silhouette_by_client"]
    assert f"<td>silhouette, mean by client ({mean.clients} clients)</td><td>{mean.value:.4f}</td>" in page
    assert page.index(summary.task) < page.index(summary.outcome) < page.index("<h2>")
    assert not [event for event in digits_run.events() if event.kind == "not_shown"]


def test_it_says_what_to_do_next_before_anything_else(digits_run: RunFolder) -> None:
    result = run_result(digits_run)
    assert result.verdict is not None
    assert result.verdict.word != "good"  # two rounds are too few
    found = next_step(digits_run, result)
    comparison = cluster_facts(digits_run).comparison
    best = max(comparison.baseline_acc, key=comparison.baseline_acc.get)
    assert leading_baseline(comparison) == best
    assert in_words(best) in found.words
    assert found.command == (
        "shoal run --set data.name=digits --set partition.kind=iid --set data.limit=300 --set partition.clients=4 "
        f"--set method.name=fedkmeans --set model.encoder={best}"
    )
    page = write_report(digits_run).read_text()
    assert page.index(result.verdict.reason) < page.index(found.command) < page.index(summary_of(digits_run).task)
    unfinished = next_step(digits_run, replace(result, status="interrupted"))
    assert unfinished.command == f"shoal run --resume {digits_run.name}"
    good = next_step(digits_run, replace(result, verdict=Verdict("good", "")))
    assert good.command == f"shoal predict {digits_run.name} NEW_SAMPLES --out found.csv"


def doubted(run: RunFolder, patch: pytest.MonkeyPatch, **changes: Any) -> NextStep:
    """What is advised for the run if its verdict is doubtful, with changes to its comparison with null baselines."""
    facts = cluster_facts(run)
    changed = replace(facts, comparison=replace(facts.comparison, **changes))
    patch.setattr(next_steps, "cluster_facts", lambda _: changed)
    return next_step(run, replace(run_result(run), verdict=Verdict("doubtful", "")))


def test_samples_without_groups_need_other_columns(digits_run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [doubted(digits_run, monkeypatch, groups=Groups(gain, 10, 300)) for gain in (3.9, 4.0)]
    assert steps[0].command == "shoal data show digits"
    assert "other columns" in steps[0].words
    assert steps[1].command != steps[0].command


def test_without_labels_neighbours_are_a_hint_and_no_proof(
    digits_run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = doubted(digits_run, monkeypatch, acc=None, neighbours=0.5, baseline_neighbours={"pixels": 0.9})
    assert found.words.startswith("By neighbours K-means on pixels may do better than this run: only the samples can")
    assert found.command.endswith("--set method.name=fedkmeans --set model.encoder=pixels")


def test_the_simple_run_has_the_same_samples_and_is_as_private() -> None:
    data = ("data.name=gaussian", "data.options.clusters=10", "partition=dirichlet", "partition.beta=0.3", "seed=3")
    own = load_settings(None, (*data, "method=fedsimclr", "privacy.clip=1", "privacy.noise=2"))
    made = load_settings(None, simple_command(own, []).split()[3::2])
    assert made == replace(own, method=made.method, local=made.local, model=made.model)


def test_the_same_run_but_for_the_number_of_clusters_is_advised(
    digits_run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(digits_run.path.parent.parent)
    words = doubted(digits_run, monkeypatch, baseline_acc={}).command.split()
    assert words == ["shoal", "run", f"runs/{digits_run.name}/settings.yaml", "--set", "model.clusters=auto"]
    own = digits_run.settings().to_json()
    own["model"]["clusters"] = "auto"
    assert load_settings(Path(words[2]), words[4:]).to_json() == own
    monkeypatch.chdir(digits_run.rounds)
    assert doubted(digits_run, monkeypatch, baseline_acc={}).command.split()[2] == str(
        digits_run.path / "settings.yaml"
    )
    digits_run.set_lineage(clusters_chosen=Choice(10, "", 2, 20, 1, 0, "samples", 300, (), "", "", ""))
    assert doubted(digits_run, monkeypatch, baseline_acc={}).command.endswith("=NUMBER"), "auto chose this number"
    digits_run.set_lineage(clusters_chosen=None)
    private = replace(digits_run.settings(), privacy=PrivacySection(clip=1.0))
    monkeypatch.setattr(RunFolder, "settings", lambda _: private)
    assert doubted(digits_run, monkeypatch, baseline_acc={}).command.endswith("=NUMBER"), "auto is refused"


def test_tables_have_names_and_units_for_people(digits_run: RunFolder) -> None:
    page = write_report(digits_run).read_text()
    heads = re.findall(r"<th[^>]*>([^<]*)</th>", page)
    assert not [head for head in heads if "_" in head]
    names = re.findall(r"<tr><td>([^<]*)</td><td>", page)
    assert {"ACC", "sent to the server"} <= set(names)
    assert not [name for name in names if "_" in name]


def test_a_jump_of_the_loss_is_explained(digits_run: RunFolder) -> None:
    page = write_report(digits_run).read_text()
    note = "has the first weight in round 1 and the other from round 2 on."
    assert page.index("<h2>Over rounds</h2>") < page.index(note)


def test_the_page_holds_all_that_it_shows(digits_run: RunFolder) -> None:
    path = write_report(digits_run)
    page = path.read_text()
    sources = re.findall(r'src="([^"]{12})', page)
    assert len(sources) == len(list(digits_run.figures.rglob("*.png")))
    assert set(sources) <= {"data:image/p", "data:image/j"}
    assert path.stat().st_size < 3_000_000
    assert page.count("<table") == page.count('<div class="wide"><table'), "a table that a phone cannot scroll"
    assert [link for link in links(page) if not link.startswith("file://")]
    for link in links(page):
        there = Path(link.removeprefix("file://")) if link.startswith("file://") else digits_run.path / link
        assert there.exists(), link
    assert repeat_command(digits_run) in page
    assert load_settings(Path(repeat_command(digits_run).split()[-1])) == digits_run.settings()
    copied = write_report(digits_run, in_run_folder=False).read_text()
    assert all(link.startswith("file://") for link in links(copied))
    assert str(digits_run.path) not in copied


def test_a_run_that_went_on_from_another_is_not_repeated_by_its_settings(digits_run: RunFolder) -> None:
    digits_run.set_lineage(origin=StartingState("before", 3, "0a1b"))
    assert "give the same numbers" not in (page := write_report(digits_run).read_text())
    assert "run before, round 3" in page
    other = RunFolder(shutil.copytree(digits_run.path, digits_run.path.with_name("other")))
    assert "numbers will be others" in model_card(digits_run, digits_run.settings())
    both = write_comparison([other, digits_run], digits_run.path / "both.html").read_text()
    assert "A started from the state of run before" in both


def test_clusters_stand_beside_labels_and_clients(digits_run: RunFolder) -> None:
    table = pd.read_parquet(digits_run.path / TABLE)
    confused = confusion(table)
    assert confused is not None
    counts = confused.counts.to_numpy()
    truth, found = table["label"].astype(int), table["cluster"]
    both = confusion_matrix(truth, found, labels=range(10))
    assert (counts == both[:, [int(name) for name in confused.counts]]).all()
    scores = table_scores(crossed(truth.to_numpy(), found.to_numpy()))
    assert np.trace(counts) / len(table) == pytest.approx(scores["acc"]), "matched clusters are not on the diagonal"
    by_clients = clusters_by_clients(table)
    assert by_clients is not None
    assert list(by_clients.counts) == ["0", "1", "2", "3"]
    assert by_clients.counts.to_numpy().sum() == 300
    page = write_report(digits_run).read_text()
    assert "Clusters and true labels" in page


def test_labels_stand_in_the_order_of_numbers() -> None:
    table = pd.DataFrame({"label": ["10", "9", "2", "cat", None], "cluster": [0, 1, 2, 3, 3]})
    found = confusion(table)
    assert found is not None
    assert list(found.counts.index) == ["2", "9", "10", "cat"]
    assert list(found.counts) == [2, 1, 0, 3]
    assert found.counts.to_numpy().sum() == 4
    assert confusion(table.drop(columns="label")) is None


@pytest.mark.long
def test_without_labels_it_says_what_needs_none(home: Path, small: Make) -> None:
    write_clients(home / "pictures")
    add_set(home / "pictures", "mine", places.store())
    own = {
        "data": {"name": "mine", "limit": None},
        "partition": {"kind": "by_column", "column": "client", "clients": 0},
    }
    run = judged(small(**own, rounds=2, model={"clusters": 3}))
    summary = summary_of(run)
    assert [number.name for number in summary.numbers][1:3] == ["neighbour agreement", "silhouette"]
    page = write_report(run).read_text()
    for left_out in ("Clusters and true labels", ">ACC<"):
        assert left_out not in page
    for shown in (
        "Images of each cluster",
        "Samples by cluster and client",
        ">süd</th>",
        "the client (normalised mutual information",
        "Compared with null baselines",
    ):
        assert shown in page
    verdict, clusters, images, numbers, rank = map(
        page.index,
        ('<p class="verdict', ">largest client</th>", "Images of each", "<details><summary>All", "effective rank"),
    )
    assert verdict < clusters < images < numbers < rank


@pytest.mark.long
def test_a_method_that_gives_samples_no_clusters(home: Path, small: Make) -> None:
    method = {"name": "cfl", "criterion": "schedule", "schedule": [1], "gamma_max": 0.0}
    partition = {"kind": "iid", "clients": 4, "validation": 0.3}
    run = judged(small(method=method, partition=partition, rounds=2))
    summary = summary_of(run)
    assert "with labels" in summary.task
    assert "2 clusters of clients" in summary.outcome
    page = write_report(run).read_text()
    assert "<h2>Clusters</h2>" not in page
    assert page.count("<figure>") == len(list(run.figures.glob("*.png")))


def test_a_run_whose_data_are_elsewhere(digits_run: RunFolder) -> None:
    for what in ("data", "partition"):
        shutil.rmtree(digits_run.folder_of(what))
    page = write_report(digits_run).read_text()
    assert "from digits without labels, in at most 2 rounds." in page
    assert "Clusters and true labels" in page
    assert not [link for link in links(page) if link.startswith("file://")]


def test_other_data_in_the_place_of_its_own_are_not_shown(digits_run: RunFolder) -> None:
    digits_run.set_lineage(partition=replace(digits_run.lineage().partition, digest="another"))
    page = write_report(digits_run).read_text()
    assert "from digits without labels, in at most 2 rounds." in page


def test_a_run_that_was_never_started(home: Path, small: Make) -> None:
    run = new_run(small())
    page = write_report(run).read_text()
    assert "It is interrupted after 0 of 3 rounds" in page
    for left_out in ("<h2>Clusters</h2>", "<h2>Events</h2>", "<h2>Over rounds</h2>"):
        assert left_out not in page


@pytest.mark.long
def test_no_view_that_fails_makes_the_run_fail(home: Path, small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("of a figure")

    run = new_run(small(rounds=1))
    with monkeypatch.context() as patch:
        patch.setattr(figures, "draw_method_figures", broken)
        patch.setattr(report, "confusion", broken)
        for _ in range(2):
            assert drive(run).status == "finished"
    told = [event.message for event in run.events() if event.kind == "not_shown"]
    assert told == [
        "figures left out: ZeroDivisionError: of a figure",
        "the report left out: ZeroDivisionError: of a figure",
    ]
    drive(run)
    assert "Clusters and true labels" in (run.path / "report.html").read_text()


def test_settings_that_were_chosen_stand_before_the_others(home: Path, small: Make) -> None:
    run = new_run(small(local={"lr": 0.002}, participation={"dropout": 0.25}))
    chosen = {key: (value, default) for key, value, default in changed_rows(run.settings())}
    assert chosen["method.name"] == ("fedpnp", "auto")
    assert chosen["participation.dropout"] == ("0.25", "0.0")
    assert chosen["local.lr"][0] == "0.002"
    assert "seed" not in chosen
    assert "local.momentum" not in chosen
    page = write_report(run).read_text()
    assert page.index("<td>participation.dropout</td>") < page.index("<summary>All settings</summary>")


def test_losses_are_drawn_with_their_spread() -> None:
    losses = np.random.default_rng(0).random((3, 9))
    values = pd.DataFrame(
        [{"round": r + 1, "client": k, "loss": losses[r, k]} for r in range(3) for k in range(9)],
    )
    axes = Figure().subplots()
    draw_spread(axes, values, "loss", [])
    (median,) = [line for line in axes.lines if line.get_label() == "median"]
    assert np.allclose(np.array(median.get_ydata(), dtype=float), np.median(losses, axis=1))
    (band,) = axes.collections
    edges = np.array(band.get_paths()[0].vertices, dtype=float)
    for r in range(3):
        heights = edges[edges[:, 0] == r + 1][:, 1]
        assert np.allclose([heights.min(), heights.max()], np.quantile(losses[r], [0.25, 0.75]))
    few = Figure().subplots()
    draw_spread(few, values[values["client"] < 3], "loss", ["a", "b", "c"])
    assert few.get_legend_handles_labels()[1] == ["a", "b", "c"]
    assert not few.collections


def test_large_tables_show_the_largest() -> None:
    counts = pd.DataFrame(np.ones((MAX_CROSSED + 5, 2), dtype=int))
    counts.iloc[0] = 0
    table = cross_table(counts, "label", "client")
    assert table is not None
    assert len(table.counts) == MAX_CROSSED
    assert table.counts.index[0] == 1
    assert table.left_out == (5, 0)
    assert cross_table(counts.iloc[:0], "label", "client") is None


def test_units() -> None:
    assert [duration(seconds) for seconds in (9.4, 90, 9000)] == ["9.4 s", "1.5 min", "2.5 h"]
    assert size(1000) == "1.0 kB"


@pytest.mark.long
def test_features_are_drawn_by_cluster_client_and_label(digits_run: RunFolder) -> None:
    """The points are of the rows that were kept, and the page shows them once."""
    kept = load_tensors(digits_run.path / FEATURES)[0]
    table = pd.read_parquet(digits_run.path / TABLE)
    rows = kept["rows"].numpy()
    assert (np.diff(rows) > 0).all()
    assert len(rows) == min(SAMPLES, len(table)) == len(kept["features"])
    (path,) = draw_embedding(digits_run)
    page = write_report(digits_run).read_text()
    assert page.count(base64.b64encode(path.read_bytes()).decode()) == 1
    # Neighbours in the features are neighbours in the plane, as far as a plane can show it.
    features = kept["features"].numpy().astype(np.float64)
    points = plane(features)
    assert points is not None
    assert trustworthiness(features, points, n_neighbors=8) > 0.9
    assert trustworthiness(features, np.roll(points, 1, axis=0), n_neighbors=8) < 0.7, "the measure sees a shuffle"
    damaged = (digits_run.path / FEATURES).read_bytes()
    path.unlink()
    (digits_run.path / FEATURES).write_bytes(damaged[:-1] + bytes([damaged[-1] ^ 1]))
    with pytest.raises(ShoalError, match=FEATURES.replace(".", r"\.")):
        draw_embedding(digits_run)


def test_features_that_are_kept_are_few(home: Path) -> None:
    rng = np.random.default_rng(0)
    wide = rng.normal(size=(SAMPLES + 50, 80)) * np.linspace(9, 0.01, 80)
    found = shown_features(wide, np.random.default_rng(1))
    assert found is not None
    rows, features = found
    assert features.shape == (SAMPLES, COMPONENTS)
    distances = [np.linalg.norm(each[:50, None] - each[None, :50], axis=2) for each in (wide[rows], features)]
    assert np.abs(distances[0] - distances[1]).max() < 0.3 * distances[0].max()
    again = shown_features(wide @ np.diag([-1.0] * 80), np.random.default_rng(1))
    assert again is not None
    assert again[1] == pytest.approx(-features, abs=1e-4), "the sign of a direction is its own"
    assert shown_features(np.array([[1.0], [np.nan]]), rng) is None
    assert shown_features(wide[:1], rng) is None
    narrow = shown_features(wide[:20, :3], rng)
    assert narrow is not None
    assert narrow[1] == pytest.approx(wide[:20, :3] - wide[:20, :3].mean(0), abs=1e-5)


def test_samples_that_are_all_alike_are_not_drawn(digits_run: RunFolder) -> None:
    assert plane(np.ones((50, 4))) is None
    assert plane(np.ones((3, 4))) is None


def test_samples_with_equal_features_are_drawn_side_by_side() -> None:
    """Landmarks give hundreds of samples the same features, and t-SNE draws them as one dot."""
    few = np.eye(3).repeat([100, 60, 1], axis=0)
    points = plane(few)
    assert points is not None
    assert len(np.unique(points.round(3), axis=0)) > 150
    assert (points == plane(few)).all(), "the same figure each time"


@pytest.mark.long
def test_what_others_named_is_no_html(home: Path, small: Make) -> None:
    """Sites, files and messages may be called anything; the page shows the words."""
    write_clients(home / "pictures")
    (home / "pictures" / "north").rename(home / "pictures" / "<script>alert(1)<")
    add_set(home / "pictures", "mine", places.store())
    run = judged(
        small(
            method={"name": "kmeans"},
            data={"name": "mine", "limit": None},
            partition={"kind": "by_column", "column": "client", "clients": 0},
            model={"clusters": 3},
        )
    )
    run.event("told", message="<img src=x onerror=alert(2)>")
    page = write_report(run).read_text()
    assert "<script" not in page
    assert "<img src=x" not in page
    assert "&lt;script&gt;alert(1)&lt;" in page
    assert "&lt;img src=x onerror=alert(2)&gt;" in page


def test_a_client_whose_name_begins_with_an_underscore_is_in_the_legend() -> None:
    axes = Figure().subplots()
    draw_groups(axes, np.zeros((4, 2)), pd.Series(["_north", "south"] * 2, dtype=object), "client")
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text().strip() for text in legend.get_texts()] == ["_north", "south"]
