"""The state of a round as it is judged: one network for metrics, clusters, prediction and the logged model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shoal.engine.store.checkpoint import load_round, newest_valid
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.round_paths import JUDGED, RoundPaths
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.workers.worker import Worker
from shoal.methods.scores.clustering import accuracy
from shoal.review.mlflow_log.pyfunc import FederatedModel
from shoal.review.results.clusters import TABLE, keep_clusters
from shoal.review.served.predict import Predictor
from tests.evaluation import evaluate_state
from tests.runs import straight

PNP: dict[str, Any] = {"method": {"name": "fedpnp"}, "rounds": 2, "data": {"limit": 200}}
SSD: dict[str, Any] = {"method": {"name": "ssd"}, "rounds": 2, "data": {"limit": 200}}


def last(run: RunFolder, metric: str) -> float:
    return float(run.table("rounds")[metric].iloc[-1])


@pytest.mark.long
def test_metrics_clusters_and_predictions_are_of_one_network(home: Path, small: Callable[..., Any]) -> None:
    import pandas as pd

    run = straight(small(**PNP))
    assert keep_clusters(run, Worker().handle)
    found = newest_valid(run)
    assert found is not None
    assert found.statistics
    table = pd.read_parquet(run.path / TABLE)
    truth = table["label"].astype("category").cat.codes.to_numpy()
    assert last(run, "acc") == pytest.approx(accuracy(truth, table["cluster"].to_numpy()))
    opened = OpenedRun(run)
    tested = table[table["part"] == "test"]
    images = opened.data.test_x.numpy()[tested["sample"].to_numpy()]
    assert (Predictor(run).assign(images)["cluster"] == tested["cluster"].to_numpy()).all()
    averaged = opened.method.predictor(found.server)(torch.from_numpy(images).float() / 255)
    judged = opened.method.predictor(found.judged)(torch.from_numpy(images).float() / 255)
    assert not torch.allclose(averaged.embedding, judged.embedding, atol=1e-2), "the statistics matter here"
    # Judged again, it is the same.
    assert evaluate_state(run) == {name: pytest.approx(last(run, name)) for name in evaluate_state(run)}


def test_weights_do_not_depend_on_it(home: Path, small: Callable[..., Any]) -> None:
    recalibrated = straight(small(**SSD))
    reference = straight(small(**SSD, evaluate={"recalibrate": 0}))
    assert recalibrated.status().weights_sha256 == reference.status().weights_sha256
    assert recalibrated.settings().digest() != reference.settings().digest()
    assert last(recalibrated, "uniformity") != last(reference, "uniformity")
    assert not (RoundPaths(reference.path, 2).judged).exists()


def test_what_a_state_was_judged_with_lies_beside_it_and_goes_with_it(home: Path, small: Callable[..., Any]) -> None:
    run = straight(small(**PNP, checkpoint={"keep": 1}))
    first, second = RoundPaths(run.path, 1), RoundPaths(run.path, 2)
    assert second.judged.exists()
    assert first.manifest.exists()
    assert not first.judged.exists()
    assert not list(run.rounds.rglob(f".*/{JUDGED}"))
    statistics = load_round(run, 2).statistics
    assert all(name.endswith(("running_mean", "running_var")) for name in statistics)


def test_the_logged_model_is_the_judged_one(home: Path, small: Callable[..., Any]) -> None:
    """What `shoal.review.mlflow_log.pyfunc` packs, read back as MLflow reads it."""
    from shoal.review.mlflow_log.pyfunc import save_final_model, servable

    run = straight(small(**PNP))
    checkpoint = servable(run)
    assert checkpoint is not None
    (home / "logged").mkdir()
    logged = SimpleNamespace(artifact_location="elsewhere", model_id="m-1", source_run_id="1")
    folder = save_final_model(run, checkpoint, home / "logged", logged)
    artifacts = {p.stem: str(p) for p in (folder / "artifacts").iterdir()}
    assert json.loads(Path(artifacts["model"]).read_text())
    model = FederatedModel()
    model.load_context(type("Context", (), {"artifacts": artifacts}))
    opened = OpenedRun(run)
    x = opened.data.test_x[:20]
    found = newest_valid(run)
    assert found is not None
    expected = opened.method.predictor(found.judged)(x.float() / 255)
    served = model.predict(None, x.numpy())
    torch.testing.assert_close(torch.tensor(served["soft"].tolist()), expected.soft)
    averaged = opened.method.predictor(found.server)(x.float() / 255)
    assert not torch.allclose(torch.tensor(served["soft"].tolist()), averaged.soft, atol=1e-3)
