"""`shoal runs` and `shoal open`: what lies there is listed and filtered, and nothing else."""

from __future__ import annotations

import json
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.console import out
from shoal.cli.open_report import open_report
from shoal.cli.run import run
from shoal.cli.runs import runs
from shoal.core.errors import ShoalError
from shoal.engine.settings import places
from shoal.engine.store.run_folder import RunFolder
from shoal.review.results import runs as runs_list
from shoal.review.results.result import run_result, shown_metrics
from shoal.review.results.runs import at_work, listed_runs, main_score
from tests.runs import stopped, straight

Make = Callable[..., Any]


@pytest.fixture
def three(home: Path, small: Make) -> list[RunFolder]:
    """A finished run of FedPNP, an interrupted one of FedCC, and one whose settings were edited."""
    finished = straight(small(rounds=1))
    interrupted = stopped(small(method={"name": "fedcc"}, rounds=2), "round_finished", 1)
    edited = straight(small(rounds=1, seed=3))
    with (edited.path / "settings.yaml").open("a") as file:
        file.write("# mine\n")
    return [finished, interrupted, edited]


def told(call: Callable[..., None], *given: Any, **more: Any) -> str:
    with out.capture() as captured:
        call(*given, **more)
    return captured.get()


@pytest.mark.long
def test_a_narrow_terminal_shows_the_whole_name_of_a_run(three: list[RunFolder], monkeypatch: Any) -> None:
    monkeypatch.setattr(out, "width", 80)
    text = told(runs)
    columns = zip(*(line.split("│")[1:] for line in text.splitlines() if "│" in line), strict=True)
    words = "".join(cell.strip() for cell in next(columns))
    assert all(run.name in words for run in three)
    assert "…" not in text
    assert "seconds" not in text
    monkeypatch.setattr(out, "width", 140)
    assert "seconds" in told(runs)


def test_runs_are_listed_newest_first_with_what_is_wrong(three: list[RunFolder]) -> None:
    found = listed_runs(places.runs())
    assert [run.name for run in found] == [run.name for run in reversed(three)]
    assert [run.state for run in found] == ["unreadable", "interrupted", "finished"]
    assert [run.method for run in found] == ["", "fedcc", "fedpnp"]
    assert found[2].rounds == 1
    assert found[2].metric == "acc"
    assert "settings.yaml has been changed" in found[0].why
    text = told(runs)
    assert text.index(three[2].name) < text.index(three[0].name)
    assert "settings.yaml has been changed" in text


@pytest.mark.long
def test_runs_are_filtered(three: list[RunFolder], capsys: pytest.CaptureFixture[str]) -> None:
    def names(**given: Any) -> list[str]:
        runs(**given, as_json=True)
        return [run["name"] for run in json.loads(capsys.readouterr().out)]

    assert names(method="fedcc") == [three[1].name]
    assert names(data="mnist") == []
    assert names(data="digits", states=["finished", "interrupted"]) == [three[1].name, three[0].name]
    assert names(last=1) == [three[2].name]
    assert "no such run in" in told(runs, method="ssd")
    with pytest.raises(ShoalError, match="no run is in state 'done': expected one of running, finished"):
        runs(states=["done"])


def test_a_run_at_work_is_said_to_run(three: list[RunFolder]) -> None:
    run = three[1]
    run.set_status("running", 1)
    assert listed_runs(places.runs(), method="fedcc")[0].state == "interrupted", "nobody works on it"
    with RunFolder(run.path).locked():
        assert at_work(run)
        assert listed_runs(places.runs(), method="fedcc")[0].state == "running"


@pytest.mark.long
def test_a_report_is_made_where_it_is_missing_and_opened(
    three: list[RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address))
    path = three[0].path / "report.html"
    assert not path.exists()
    assert path.as_uri() in told(open_report, three[0].name, show=False).replace("\n", "")
    assert path.exists()
    assert not opened
    assert "no browser could be opened" in told(open_report, three[0].name, show=True)
    assert opened == [path.as_uri()]


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "score"),
    [({"name": "fedsimclr_kmeans", "kmeans_rounds": 3, "starts": 2}, "acc"), ({"name": "fedsimclr"}, "probe")],
)
def test_a_run_stands_by_what_it_is_for(home: Path, small: Make, method: dict[str, Any], score: str) -> None:
    """Not by the first number that a round had."""
    run = straight(small(method=method, rounds=4, evaluate={"every": 1}))
    [listed] = listed_runs(places.runs())
    assert (listed.metric, listed.score) == (score, run_result(run).metrics[score])
    shown = list(shown_metrics(run_result(run)))
    assert shown[:3] == ["acc", "purity", "nmi"] if score == "acc" else shown[0] == "acc"
    assert shown.index("alignment") > shown.index("acc")


def test_what_clusters_and_features_are_known_by() -> None:
    features = {"alignment": 0.4, "knn": 0.9, "clusters_used": 4.0}
    assert main_score({**features, "acc": 0.6, "probe": 0.95}, of_features=False) == ("acc", 0.6)
    assert main_score({"purity": 0.9, "neighbour_agreement": 0.8}, of_features=False) == (
        "neighbour_agreement",
        0.8,
    )
    assert main_score({**features, "acc": 0.6, "probe": 0.95}, of_features=True) == ("probe", 0.95)
    assert main_score({**features, "acc": 0.6}, of_features=True) == ("knn", 0.9)
    assert main_score({"perplexity": 80.0}, of_features=True) == ("perplexity", 80.0)
    assert main_score({}, of_features=False) is None
    assert main_score({"clusters_used": 5.0, "loss": 0.2}, of_features=False) is None, (
        "a count and a loss are no scores"
    )


@pytest.mark.long
def test_only_the_runs_that_are_asked_for_are_read(three: list[RunFolder], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    inner = runs_list.list_run
    monkeypatch.setattr(runs_list, "list_run", lambda run: made.append(run.name) or inner(run))
    assert [run.name for run in listed_runs(places.runs(), method="fedcc", last=1)] == [three[1].name]
    assert made == [three[2].name, three[1].name]


def test_a_dry_run_says_what_it_would_do_and_keeps_nothing(home: Path) -> None:
    wanted = ["method.name=fedcc", "data.limit=60", "partition.clients=3", "rounds=4"]
    with out.capture() as said:
        run(overrides=wanted, dry_run=True)
    words = " ".join(said.get().split())
    assert words.startswith("fedcc learns from digits without labels, in at most 4 rounds: 60 image samples held by 3")
    assert not listed_runs(places.runs())
    with pytest.raises(ShoalError, match="rounds"):
        run(overrides=["rounds=-1"], dry_run=True)
    with pytest.raises(ShoalError, match="give no --resume"):
        run(resume="latest", dry_run=True)
