"""Thirty days, and six of them in the usual suite, with a real Prefect and a real MLflow: nothing touched by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient

from shoal.engine.settings import places
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.run_order import in_order
from shoal.review.mlflow_log.champions import ROLLED_BACK, last_move
from shoal.review.mlflow_log.embedded_store import store_uri
from shoal.review.results.clusters import read_clusters
from tests.flows.test_new_data import watching
from tests.flows.test_prefect import ROOT, Server
from tests.flows.thirty_days import MODEL, SPECIAL, Day, long_plan
from tests.planted_images import kind_of

Line = dict[str, Any]


def lived(server: Server, home: Path, *words: str) -> list[Line]:
    """The lines of the days, which a process of its own lives through."""
    watching(server, home, "incoming", "photos")
    done = subprocess.run(
        [sys.executable, "-m", "tests.flows.thirty_days", *words],
        env={**server.env, "SHOAL_HOME": str(home)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def check(home: Path, plan: list[Day], lines: list[Line]) -> None:
    """Check what is true of every plan with the special days."""
    assert [line["title"] for line in lines] == [day.title for day in plan]
    by_title = {line["title"]: (number, line) for number, line in enumerate(lines) if line["title"]}
    _, first = by_title["first"]
    assert (first["night"]["outcome"], first["champion"]) == ("promoted", "1")
    _, one_bad = by_title["one bad file"]
    assert one_bad["night"]["new"] == 9
    _, failed = by_title["mostly bad files"]
    assert failed["night"]["outcome"] == "failed"
    assert "cannot be used, more than 20%" in failed["night"]["why"]
    _, drift = by_title["drift"]
    assert any("cluster shares of client south differ" in each for each in drift["night"]["drift"])
    assert drift["night"]["new"] == 74  # the files of the bad day are among them, mended
    for day, line in zip(plan, lines, strict=True):
        if not (day.files or day.flood or day.broken or day.mended):
            assert line["night"]["outcome"] == "no night"
        elif not day.broken:
            assert line["night"]["outcome"] in ("promoted", "champion kept", "waits for approval")
    check_promotions(lines, by_title)
    check_told(home)
    check_assigned(home, plan, lines)
    check_names(home, lines)


def check_promotions(lines: list[Line], by_title: dict[str, tuple[int, Line]]) -> None:
    """Check the approval and the rollback, and that the registry alone tells of them."""
    number, approved = by_title["new kind"]
    assert approved["night"]["outcome"] == "waits for approval"
    assert approved["before morning"] == lines[number - 1]["champion"]
    assert approved["run"] == approved["night"]["run"]
    number, taken_back = by_title["another kind"]
    assert taken_back["night"]["outcome"] == "promoted"
    assert taken_back["before morning"] != taken_back["champion"] == lines[number - 1]["champion"]
    client = MlflowClient(tracking_uri=store_uri(places.mlflow_store()))
    versions = [str(version.version) for version in client.search_model_versions(f"name = '{MODEL}'")]
    moves = [move for version in versions if (move := last_move(client, MODEL, version))]
    # A version tells of its last move alone.
    assert [move.why for move in moves if move.kind == ROLLED_BACK] == ["the new cluster mixes two things"]


def check_told(home: Path) -> None:
    """Check that the person was told once of each thing that wants to be known."""
    kinds = [line.split("Z ", 1)[1].split(":")[0] for line in (home / "runs" / "told.log").read_text().splitlines()]
    assert kinds == ["files were left out", "a night failed", "a model waits for approval"]


def check_assigned(home: Path, plan: list[Day], lines: list[Line]) -> None:
    """Check that each new file was assigned once, and that a kind keeps the name of its cluster."""
    tables = [pd.read_csv(path) for path in sorted(home.glob(f"results/assigned/{MODEL}/[0-9]*/clusters.csv"))]
    table = pd.concat(tables, ignore_index=True)
    files = {path.name for path in (home / "inbox").iterdir()}
    assert sorted(table["file"]) == sorted(files)
    assert sum(line["assigned"] for line in lines) == len(files) == sum(len(day.files) for day in plan)
    approved = next(line for line in lines if line["title"] == "new kind")
    new = {int(each.split()[1]) for each in approved["night"]["clusters"] if "is new" in each}
    assert new
    assert new <= set(approved["names"])
    assert set(table[table["file"].map(kind_of) == "bright"]["cluster_id"]) <= new


def check_names(home: Path, lines: list[Line]) -> None:
    """Check that the table of files has the names, and the report the change."""
    for path in in_order(places.runs()):
        table = read_clusters(RunFolder(path.parent))
        assert table is not None
        assert table["file"].notna().all()
        assert table.groupby("cluster")["cluster_id"].nunique().max() == 1
    approved = next(line for line in lines if line["title"] == "new kind")
    page = (home / "runs" / approved["run"] / "report.html").read_text()
    assert all(each in page for each in approved["night"]["clusters"])


@pytest.mark.slow
def test_six_days(server: Server, home: Path) -> None:
    check(home, list(SPECIAL), lived(server, home))


@pytest.mark.slow
def test_thirty_days(server: Server, home: Path) -> None:
    plan = long_plan()
    assert len(plan) == 30
    check(home, plan, lived(server, home, "long"))


AUTO = """
import json, sys
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.settings import places
from shoal.flows.nightly import nightly
from shoal.lifecycle.adding import add_own
from shoal.lifecycle.night_settings import NightSettings
from pathlib import Path
settings = make_settings({"data": {"name": "mine"}, "model": {"clusters": 3}, "seed": 3,
    "workers": {"device": "cpu", "slots": 1}})
for name in ("few", "first", "more"):
    add_own(Path(f"{name}.csv"), "mine", test=0.2, force=name == "first", append=name == "more")
    try:
        found = nightly(settings, NightSettings())
        run = RunFolder(places.runs() / found["run"])
        method = run.lineage().method_chosen
        events = [event.message for event in run.events() if event.kind == "method_chosen"]
        print(json.dumps({**found, "name": run.settings().method.name, "chosen": method and method.method,
            "why": events}))
    except Exception as error:
        print(json.dumps({"error": str(error), "runs": len(list(places.runs().glob("*/settings.yaml")))}))
"""


@pytest.mark.slow
def test_nights_choose_a_method_once_and_want_enough_held_out_samples(server: Server, home: Path) -> None:
    rng = np.random.default_rng(0)
    for name, rows in (("few", 20), ("first", 90), ("more", 60)):
        kinds = rng.integers(0, 3, rows)
        table = pd.DataFrame({"client": np.resize(["a", "b"], rows), "x": 9.0 * kinds + rng.random(rows)})
        table["y"] = rng.random(rows)
        table.to_csv(home / f"{name}.csv", index=False)
    done = subprocess.run(
        [sys.executable, "-c", AUTO],
        env={**server.env, "SHOAL_HOME": str(home)},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    few, first, more = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    assert "holds out 4 samples, and a comparison needs at least 10" in few["error"]
    assert few["runs"] == 0  # nothing was trained
    assert first["outcome"] == "promoted"
    assert first["name"] == first["chosen"] != "auto"
    assert len(first["why"]) == 1
    assert more["name"] == first["name"]
    assert more["outcome"] in ("promoted", "champion kept")
