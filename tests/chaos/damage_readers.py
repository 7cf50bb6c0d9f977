"""Finished runs whose files are damaged, and everything that reads them: each reader gives an answer as text."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.errors import ShoalError
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.run_folder import RunFolder

SET = "towns"
IMAGES = "fedcc"
TREE = "cfl"
SMALL: dict[str, Any] = {
    "rounds": 3,
    "workers": {"device": "cpu", "precision": "fp32", "slots": 1},
    "local": {"epochs": 1, "batch": 20},
    "model": {"encoder": "pooled-conv", "clusters": 3},
    "augment": {"recipe": "digits"},
    "data": {"name": SET},
    "tracking": {"mlflow": True, "prefect": "off", "checkpoints": "all"},
}


@dataclass(frozen=True)
class Subject:
    """What readers read.

    Args:
        home: SHOAL_HOME.
        run: the finished run on the own set, with a model and its clusters.
        other: a finished run of the same settings with another seed.
        tree: a finished run of CFL.
        store: the prepared own set.
        served: the files of the model that MLflow has.
        kept: what the DVC stage `federate` keeps.
    """

    home: Path
    run: Path
    other: Path
    tree: Path
    store: Path
    served: Path
    kept: Path

    def to_json(self) -> dict[str, str]:
        """As JSON."""
        return {name: str(value) for name, value in vars(self).items()}

    @classmethod
    def from_json(cls, entries: dict[str, str]) -> Subject:
        """From JSON."""
        return cls(**{name: Path(value) for name, value in entries.items()})


def prepare(home: Path) -> Subject:
    """Make an own set and finished runs below a home folder, which SHOAL_HOME names and the process stands in."""
    from shoal.lifecycle.adding import add_own
    from tests.planted_images import write_clients, write_new

    write_clients(home / "in")
    write_new(home / "new")
    added = add_own(home / "in", SET, test=0.3)
    runs = [finished({"method": {"name": IMAGES}}, seed) for seed in (0, 1)]
    tree = finished(
        {
            "method": {"name": TREE, "criterion": "schedule", "schedule": [2], "gamma_max": 0.0},
            "data": {"name": "digits", "limit": 200},
            "model": {"clusters": 10},
            "partition": {"kind": "iid", "clients": 4, "validation": 0.2},
            "tracking": {"mlflow": False},
        },
        0,
    )
    return Subject(
        home, runs[0].path, runs[1].path, tree.path, added.prepared.folder, served_model(home), keep(home, runs[0])
    )


def finished(changes: dict[str, Any], seed: int) -> RunFolder:
    """A run to its end, MLflow and figures included."""
    from shoal.engine.settings.merge import merge
    from shoal.lifecycle.driving import drive
    from shoal.lifecycle.starting import new_run

    base = {**SMALL, **{key: changes[key] for key in ("method", "data") if key in changes}}
    run = new_run(make_settings(merge(base, changes, {"seed": seed})))
    drive(run)
    return run


def served_model(home: Path) -> Path:
    """The files of the first model in the embedded MLflow store."""
    return next(iter(sorted((home / "mlflow" / "artifacts").rglob("model.json")))).parent


def keep(home: Path, run: RunFolder) -> Path:
    """What the stages `partition` and `federate` leave for `evaluate` and `report`."""
    from shoal.cli.stages import FEDERATION, PARTITION
    from shoal.cli.stages import keep as keep_run
    from shoal.review.results.result import run_result

    (home / PARTITION).parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(run.lineage().partition.folder, home / PARTITION)
    keep_run(run, run_result(run), home / FEDERATION)
    return home / FEDERATION


# --- readers ----------------------------------------------------------------------------------------------------------


def command(*words: str) -> None:
    """Do what the command line does."""
    from shoal.cli.main import main

    sys.argv = ["shoal", *words]
    main()


def predict(subject: Subject) -> None:
    """`shoal predict`."""
    command("predict", str(subject.run), str(subject.home / "new"), "--json")


def explain(subject: Subject) -> None:
    """`shoal explain`, of the largest cluster of the run, whichever files are damaged."""
    largest = json.loads((subject.home / "largest.json").read_text())
    command("explain", str(subject.run), "--cluster", str(largest), "--json")


def enroll(subject: Subject) -> None:
    """`shoal model enroll`."""
    command("model", "enroll", str(subject.tree), "--client", "digits", "--json", "--out", "enrolled.st")


def compare(subject: Subject) -> None:
    """`shoal compare`."""
    command("compare", str(subject.run), str(subject.other), "--json")


def log(subject: Subject) -> None:
    """`shoal model log`."""
    command("model", "log", str(subject.run))


def data_show(subject: Subject) -> None:
    """`shoal data show` of the own set, which answers with numbers of the manifest."""
    command("data", "show", SET)


def report(subject: Subject) -> None:
    """The report, written again: its whole text, but the size of the run's files."""
    from shoal.review.pages.report import write_report

    text = write_report(RunFolder(subject.run)).read_text()
    print(hashlib.sha256(text.encode()).hexdigest(), len(text))


def runs(subject: Subject) -> None:
    """The line of the run in `shoal runs`; one that is called unreadable, with its reason, counts as refused."""
    from shoal.review.results.runs import UNREADABLE, list_run

    found = list_run(RunFolder(subject.run))
    if found.state == UNREADABLE and found.why:
        raise ShoalError(found.why)
    print(found)


def serving(subject: Subject) -> None:
    """The model that MLflow has, loaded as MLflow loads it, and its answer."""
    import numpy as np

    from shoal.review.mlflow_log.pyfunc import FederatedModel

    model = FederatedModel()
    files = {"model": str(subject.served / "model.json"), "server": str(subject.served / "server.safetensors")}
    model.load_context(types.SimpleNamespace(artifacts=files))
    rng = np.random.default_rng(0)
    print(model.predict(None, rng.integers(0, 256, (4, *model.spec.shape), dtype=np.uint8)).to_json())


def scores(subject: Subject) -> None:
    """The score of a search that this run has."""
    from shoal.sweeps.search.runner import score_of

    print(score_of(RunFolder(subject.run), "neighbours"))


def champion(subject: Subject) -> None:
    """What a night reads of its champion: the state to start from, the decision, and the scores on new samples."""
    from shoal.data.sets.prepared import open_prepared
    from shoal.engine.store.warm_start import WarmStart
    from shoal.review.served.judging import held_out_samples, judge
    from shoal.review.served.promotion import decision_of

    run = RunFolder(subject.run)
    origin = WarmStart.from_run(run)
    samples = held_out_samples(open_prepared(subject.store))
    print(origin.run, origin.sha256, decision_of(run), judge(run, samples)[0].scores)


def stage(name: str) -> Callable[[Subject], None]:
    """A stage of dvc.yaml: what it writes."""

    def read(subject: Subject) -> None:
        from shoal.cli import stages
        from shoal.data.sets.prepare import stage_own
        from shoal.engine.settings import places

        stage_own(places.store(), SET)
        with contextlib.redirect_stdout(io.StringIO()):
            getattr(stages, name)()
        for path in ("metrics.json", "curves.csv") if name == "evaluate" else ("report.html",):
            content = (subject.home / "results" / path).read_bytes()
            print(path, hashlib.sha256(content).hexdigest())

    read.__doc__ = f"The DVC stage {name}."
    return read


READERS: dict[str, tuple[str, Callable[[Subject], None]]] = {
    "predict": ("run", predict),
    "explain": ("run", explain),
    "enroll": ("tree", enroll),
    "report": ("run", report),
    "compare": ("run", compare),
    "runs": ("run", runs),
    "log": ("run", log),
    "serving: load": ("served", serving),
    "scores of a search": ("run", scores),
    "a night's champion": ("run", champion),
    "stage evaluate": ("kept", stage("evaluate")),
    "stage report": ("kept", stage("report")),
    "data show, own set": ("store", data_show),
    "predict, own set": ("store", predict),
    "a night's champion, own set": ("store", champion),
}
"""What a reader is called, which files are damaged under it, and the reader."""
