"""The DVC pipeline as a user has it: a clone under git and DVC, no activated environment, no variable of Shoal's."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from shoal.cli.stages import check_dependency, check_name
from shoal.core.errors import DataError
from shoal.data.sets.prepare import prepare
from shoal.data.sets.prepared import open_prepared
from shoal.data.sets.sample_files import sample_files
from shoal.engine.settings.run_settings import Settings, load_settings
from shoal.engine.store.lineage import dvc_hash
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.run_folder import RunFolder
from tests.conftest import SMALL
from tests.sources import sources

ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.executable).parent
SITES = ("aarhus", "bergen", "cork", "dover", "evora", "faro")
STAGES = ("prepare", "partition", "federate", "evaluate", "report")
PARAMS = {k: SMALL[k] for k in ("method", "model", "local", "workers", "tracking")} | {
    "data": {"name": "digits", "limit": 120},
    "partition": {"kind": "auto"},
    "choose": {"min_clusters": 2, "max_clusters": 15},
    "augment": {"recipe": "auto"},
    "participation": {"fraction": 1.0},
    "aggregation": {"rule": "mean"},
    "privacy": {"clip": None},
    "evaluate": {"every": 1},
    "rounds": 1,
    "seed": 0,
}


def test_what_decides_numbers_is_a_parameter_of_the_stage() -> None:
    """So that a change of it runs the federation again; params.yaml has a value of each."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    elsewhere = {"data", "partition"}  # of the stages before it, whose outputs it depends on
    shown = {"tracking", "checkpoint", "workers"}
    assert {item.name for item in fields(Settings)} - elsewhere - shown == set(stages["federate"]["params"])
    assert set(stages["federate"]["params"]) <= set(yaml.safe_load((ROOT / "params.yaml").read_text()))


class Clone:
    """A folder with the project's files under git, and its commands as in a shell that knows nothing of Shoal."""

    def __init__(self, path: Path) -> None:
        self.path = path
        git = Path(shutil.which("git") or "git").parent
        self.env = {
            "PATH": f"{git}{os.pathsep}/usr/bin{os.pathsep}/bin",
            "HOME": str(path.parent),
            "OMP_NUM_THREADS": "1",
            "DO_NOT_TRACK": "1",
            **{f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }
        assert not (Path(self.env["PATH"].split(os.pathsep)[0]) / "shoal").exists()

    def run(self, *command: str | Path, code: int = 0) -> str:
        done = subprocess.run(command, cwd=self.path, env=self.env, capture_output=True, text=True, timeout=600)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def dvc(self, *arguments: str | Path) -> str:
        return self.run(BIN / "dvc", *arguments)

    def shoal(self, *arguments: str | Path, code: int = 0) -> str:
        return self.run(BIN / "shoal", *arguments, code=code)

    def commit(self) -> None:
        self.run("git", "add", "-A")
        self.run("git", "commit", "-qm", "all")

    def params(self, **changes: Any) -> None:
        (self.path / "params.yaml").write_text(yaml.safe_dump({**PARAMS, **changes}))

    def json(self, path: str) -> Any:
        return json.loads((self.path / path).read_text())


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    """Copy the files that git tracks in this work tree, with what a DVC repository needs, and commit them."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in listed.decode().split("\0"):
        if (ROOT / name).is_file() or (ROOT / name).is_symlink():
            (tmp_path / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / "clone" / name, follow_symlinks=False)
    made = Clone(tmp_path / "clone")
    made.run("git", "init", "-q")
    made.params()
    made.commit()
    return made


def photos(folder: Path) -> Path:
    """Twelve small coloured images for each of six sites, among them one broken, one grey, a GIF and a larger one."""
    draw = np.random.default_rng(0)
    for k, site in enumerate(SITES):
        (folder / site).mkdir(parents=True)
        for i in range(12):
            pixels = draw.integers(0, 90, (8, 8, 3)) + 60 * (i % 2) + 10 * k
            Image.fromarray(pixels.astype(np.uint8)).save(folder / site / f"{i:02d}.png")
    some = Image.open(folder / "aarhus" / "00.png")
    (folder / "bergen" / "broken.png").write_bytes((folder / "aarhus" / "00.png").read_bytes()[:60])
    some.convert("L").save(folder / "cork" / "grey.png")
    some.save(folder / "dover" / "moving.gif", save_all=True, append_images=[some.rotate(90)])
    some.resize((20, 12)).save(folder / "evora" / "large.png")
    return folder


OWN_SET = "data/store/own/photos"


def add_photos(clone: Clone, source: Path) -> None:
    """Add a set of one's own, choose it in params.yaml and commit."""
    choices = ("--on-bad", "skip", "--on-odd", "resize")
    added = " ".join(clone.shoal("data", "add", source, "--name", "photos", *choices).split())
    for words in (
        "left out: unreadable or truncated",
        "bergen/broken.png",
        "resized to 8x8",
        "evora/large.png",
        "dover/moving.gif",
        "cork/grey.png",
        "own/photos.dvc to git",
    ):
        assert words in added
    clone.params(data={"name": "photos"}, model={"encoder": "tiny-conv", "clusters": 2})
    said = clone.run("sh", "shoal/cli/stage.sh", "prepare", ".gitkeep", code=1)
    assert "write own: photos in the vars of dvc.yaml" in " ".join(said.split())
    pipeline = clone.path / "dvc.yaml"
    pipeline.write_text(pipeline.read_text().replace("own: .gitkeep", "own: photos"))
    clone.commit()
    assert f"{OWN_SET}.dvc" in clone.run("git", "ls-files", "data/store")


def reproduce(clone: Clone) -> None:
    """Run the pipeline: once and not again, except after a change of code."""
    first = clone.dvc("repro")
    assert all(f"Running stage '{stage}'" in first for stage in STAGES)
    # Last it says how good the result is, and where to read more.
    assert re.search(r"verdict: (good|doubtful|chance)\. \S.+\nreport: results/report\.html\n", first), first[-600:]
    again = clone.dvc("repro")
    assert "Running stage" not in again
    assert "'data/store/own/photos.dvc' didn't change" in again
    inspection = clone.path / "shoal/engine/messages/inspection.py"
    code = inspection.read_text()
    inspection.write_text("raise SystemExit\n")
    assert "shoal/engine" in clone.dvc("status", "federate")
    inspection.write_text(code)
    assert "up to date" in clone.dvc("status", "federate")


def check_results(clone: Clone, home: Path) -> dict[str, Any]:
    """Check partition, lineage and metrics against each other and against DVC's lock; return the metrics."""
    partition = clone.json("data/store/partitions/pipeline/partition.json")
    assert partition["client_names"] == list(SITES)
    assert partition["settings"]["kind"] == "by_column"
    assert yaml.safe_load((clone.path / "results/federation/settings.yaml").read_text())["partition"]["clients"] == 0
    assert str(home) not in (clone.path / "results/federation/lineage.json").read_text()
    lineage = clone.json("results/federation/lineage.json")
    stages = yaml.safe_load((clone.path / "dvc.lock").read_text())["stages"].values()
    outs = {out["path"]: out["md5"] for stage in stages for out in stage.get("outs", [])}
    assert outs["data/store/prepared/photos"] == lineage["data"]["dvc"]
    assert outs["data/store/partitions/pipeline"] == lineage["partition"]["dvc"]
    metrics: dict[str, Any] = clone.json("results/metrics.json")
    result = clone.json("results/federation/result.json")
    assert metrics["balance"] == pytest.approx(result["metrics"]["balance"])
    clone.commit()
    assert "results/metrics.json" in clone.run("git", "ls-files", "results")
    return metrics


def colleague_of(clone: Clone, folder: Path) -> Clone:
    """Push to a remote, clone beside it and pull: nothing is left to run there."""
    clone.dvc("remote", "add", "-d", "store", folder / "remote")
    clone.commit()
    clone.dvc("push")
    other = Clone(folder / "colleague" / "clone")
    clone.run("git", "clone", "-q", clone.path, other.path)
    other.dvc("pull")
    assert "Running stage" not in other.dvc("repro")
    assert other.run("git", "status", "--porcelain") == ""
    (folder / "rows.csv").write_text("client,v\n" + "a,1.5\nb,2.5\n" * 4)
    other.shoal("data", "add", folder / "rows.csv", "--name", "rows")
    assert "up to date" in other.dvc("status"), "a set that params.yaml does not name repeats nothing"
    return other


def check_plots(clone: Clone, metrics: dict[str, Any], folder: Path) -> None:
    """Check what DVC shows of a changed metric, and its plots."""
    (clone.path / "results" / "metrics.json").write_text(json.dumps({**metrics, "balance": 2.0}))
    changed = json.loads(clone.dvc("metrics", "diff", "--json"))["results/metrics.json"]
    assert changed["balance"]["new"] == 2.0
    assert changed["balance"]["old"] == pytest.approx(metrics["balance"])
    assert "error" not in clone.dvc("plots", "diff", "--out", folder).lower()
    page = (folder / "index.html").read_text()
    assert all(title in page for title in ("scores over rounds", "bytes moved in each round"))
    assert page.count("var spec") == 2, "each plot once, and none that nobody asked for"


@pytest.mark.slow
def test_a_set_of_ones_own_survives_and_travels(clone: Clone, tmp_path: Path) -> None:
    add_photos(clone, photos(tmp_path / "photos"))
    before = open_prepared(clone.path / OWN_SET).manifest
    reproduce(clone)
    assert open_prepared(clone.path / OWN_SET, verify=True).manifest == before
    metrics = check_results(clone, tmp_path)

    other = colleague_of(clone, tmp_path)
    theirs = open_prepared(other.path / OWN_SET, verify=True)
    files = sample_files(theirs)
    assert theirs.manifest == before
    assert files is not None
    assert set(files["client"]) == set(SITES)

    # The first clone's run stays readable when the pipeline's partition is another one.
    (run,) = (clone.path / "runs").glob("[!.]*")
    shutil.rmtree(clone.path / "data/store/partitions")
    assert OpenedRun(RunFolder(run)).partition.client_names == SITES

    # The colleague evaluates and reports again from what was pulled: runs/ is empty there, and the first clone is gone.
    clone.path.rename(tmp_path / "gone")
    for name in ("shoal/cli/stages.py", "shoal/review/pages/report.py"):
        (other.path / name).write_text((ROOT / name).read_text() + "# changed\n")
    (other.path / "results" / "metrics.json").write_text("{}")
    judged = other.dvc("repro")
    assert [stage for stage in STAGES if f"Running stage '{stage}'" in judged] == ["evaluate", "report"]
    assert not (other.path / "runs").exists()
    assert other.json("results/metrics.json") == pytest.approx(metrics)
    assert 'alt="losses"' in (other.path / "results" / "report.html").read_text()
    check_plots(other, metrics, tmp_path / "plots")


def test_repro_follows_changes_of_a_built_in_set(clone: Clone) -> None:
    clone.dvc("repro", "partition")
    settings = clone.json("data/store/partitions/pipeline/partition.json")["settings"]
    assert (settings["kind"], settings["clients"]) == ("iid", 5)
    clone.params(seed=1)
    changed = clone.dvc("repro", "partition", "--dry")
    assert [stage for stage in STAGES if f"Running stage '{stage}'" in changed] == ["partition"]
    clone.params(rounds=2)
    assert "Running stage" not in clone.dvc("repro", "partition", "--dry")


@pytest.mark.long
def test_a_stage_refuses_another_home(clone: Clone, tmp_path: Path) -> None:
    clone.env["SHOAL_HOME"] = str(tmp_path)
    assert "unset SHOAL_HOME" in clone.run("sh", "shoal/cli/stage.sh", "prepare", code=1)


def test_a_change_of_any_module_that_computes_is_noticed() -> None:
    """Every file of these rooms is, or lies below, a dependency of a stage."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]

    def covered(path: Path, names: Iterable[str]) -> bool:
        deps = [ROOT / each for name in names for each in stages[name]["deps"]]
        return any(path == each or each in path.parents for each in deps)

    for room in ("core", "models", "methods", "engine", "lifecycle"):
        assert all(covered(path, ["federate"]) for path in sources(room)), room
    for path in sources("review"):
        assert covered(path, ["report"]), path
    # data/intake adds sets of your own, and what it makes is a dependency itself.
    unseen = {path.parent.name for path in sources("data") if not covered(path, stages)}
    assert unseen == {"data", "intake"}


@pytest.mark.long
def test_a_new_file_is_noticed(clone: Clone) -> None:
    """Of prepare, the one stage that the lock pins in a fresh clone."""
    assert "data/sets" not in clone.dvc("status", "prepare")
    (clone.path / "data" / "sets" / "new.py").write_text("")
    assert re.search(r"modified: +data/sets", clone.dvc("status", "prepare"))


def test_the_lock_pins_the_embedded_set(tmp_path: Path) -> None:
    """Without it `dvc status` says nothing in a fresh clone; `dvc repro prepare` writes the lock again."""
    locked = yaml.safe_load((ROOT / "dvc.lock").read_text())["stages"]["prepare"]
    made = prepare("digits", tmp_path).folder
    assert locked["outs"][0]["path"] == "data/store/prepared/digits"
    assert locked["outs"][0]["md5"] == dvc_hash(made)


def test_every_dependency_of_a_stage_is_there() -> None:
    """A module that moved is found here, before a stage fails on it."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    for name, stage in stages.items():
        for dependency in stage["deps"]:
            if not dependency.startswith(("results/", "data/store/")):
                assert (ROOT / dependency).exists(), (name, dependency)


def test_the_pipeline_depends_on_the_set_that_it_names() -> None:
    for name in ("digits", "gaussian-clusters3"):
        check_dependency(Path("params.yaml"), name, ".gitkeep")
    check_dependency(Path("params.yaml"), "mine", "mine")
    check_dependency(Path("params.yaml"), "mine", None)
    with pytest.raises(DataError, match=r"params\.yaml names your set 'mine', .* write own: mine in the vars"):
        check_dependency(Path("params.yaml"), "mine", "other")


def test_a_name_that_dvc_reads_otherwise_is_refused(tmp_path: Path) -> None:
    params = tmp_path / "params.yaml"
    for text, name in (("'007'", "007"), ("no", "no"), ("2024", "2024"), ("true", "true")):
        params.write_text(f"data: {{name: {text}}}\n")
        assert load_settings(params).data.name == name
        check_name(params, name)
    for text, read in (("007", "7"), ("1e3", "1000.0")):
        params.write_text(f"data: {{name: {text}}}\n")
        with pytest.raises(DataError, match=rf"DVC reads data\.name as {read} and not as {text}: write it in quotes"):
            check_name(params, load_settings(params).data.name)
