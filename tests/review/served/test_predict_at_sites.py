"""New samples of sites that differ by offsets: less what is known of a site, or what its samples tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shoal.data.sets.prepare import prepare
from shoal.engine.settings import places
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.workers.worker import Worker
from shoal.methods.scores.clustering import accuracy
from shoal.review.mlflow_log.pyfunc import FederatedModel, save_final_model, servable
from shoal.review.results.clusters import FACTS, keep_clusters
from shoal.review.served.drift import find_drift
from shoal.review.served.judging import held_out_samples, judge
from shoal.review.served.predict import PredictedClusters, predict
from tests.added_sets import add_set
from tests.runs import straight

SITES = ("east", "north", "west")
KINDS = 3
OWN = {
    "data": {"name": "shifted", "limit": None},
    "partition": {"kind": "by_column", "column": "client", "clients": 0},
    "model": {"clusters": KINDS},
    "method": {"name": "fedkmeans", "standardise": False},
    "rounds": 20,
}
CENTRES = np.random.default_rng(1).normal(scale=4, size=(KINDS, 6))
OFFSETS = np.random.default_rng(2).normal(scale=8, size=(len(SITES) + 1, 6))


def rows(site: str, count: int, seed: int, share: float = 1.0) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows of three kinds at a site, moved by a share of its offset."""
    rng = np.random.default_rng(seed)
    kind = np.arange(count) % KINDS
    x = CENTRES[kind] + share * OFFSETS[[*SITES, "south"].index(site)] + rng.normal(scale=0.5, size=(count, 6))
    return pd.DataFrame(x, columns=list("abcdef")).assign(client=site), kind


@pytest.fixture
def run(home: Path, small: Callable[..., Any]) -> RunFolder:
    return made_run(home, small(**OWN))


def made_run(home: Path, settings: Any, share: float = 1.0) -> RunFolder:
    parts = [rows(site, 90, number, share) for number, site in enumerate(SITES)]
    pd.concat([part.assign(kind=kind) for part, kind in parts]).to_csv(home / "rows.csv", index=False)
    add_set(home / "rows.csv", "shifted", places.store(), test=0.2, label_column="kind")
    worker = Worker()
    made = straight(settings, worker.handle)
    assert keep_clusters(made, worker.handle)
    return made


def predicted(run: RunFolder, home: Path, *parts: tuple[pd.DataFrame, np.ndarray]) -> tuple[PredictedClusters, float]:
    pd.concat([part for part, _ in parts]).to_csv(home / "new.csv", index=False)
    found = predict(run, home / "new.csv")
    return found, accuracy(np.concatenate([kind for _, kind in parts]), found.table["cluster"].to_numpy())


def test_new_rows_are_assigned_less_the_offset_of_their_site(run: RunFolder, home: Path) -> None:
    found, acc = predicted(run, home, rows("east", 12, 10), rows("south", 60, 11))
    assert acc == 1.0, "of east the run knows the offset, and the rows of south tell theirs"
    assert set(found.intake.adapted) == {
        "site whose offset was known and taken away",
        "site whose offset was estimated and taken away",
    }
    assert found.table["row"].tolist() == list(range(72))

    few, acc = predicted(run, home, rows("south", 12, 12))
    assert acc < 1.0
    assert list(few.intake.noted) == ["site without a name or 50 samples, whose offset is not known"]


def test_new_rows_lose_the_offset_of_their_site_before_landmarks(home: Path, small: Callable[..., Any]) -> None:
    method = {"name": "fedkmeans", "standardise": False, "landmarks": 40}
    run = made_run(home, small(**OWN | {"method": method}), share=0.4)
    found, acc = predicted(run, home, rows("east", 12, 10, 0.4), rows("south", 60, 11, 0.4))
    assert acc > 0.9
    assert set(found.intake.adapted) == {
        "site whose offset was known and taken away",
        "site whose offset was estimated and taken away",
    }


def test_a_night_judges_held_out_samples_less_the_offset_of_their_site(run: RunFolder) -> None:
    samples = held_out_samples(prepare("shifted", places.store()))
    assert set(samples.clients if samples.clients is not None else ()) == set(SITES)
    judged, _ = judge(run, samples)
    assert judged.scores["acc"] == 1.0
    unknown, _ = judge(run, replace(samples, clients=None))
    assert unknown.scores["acc"] < 1.0


def test_drift_is_looked_for_less_the_offset_of_each_site(run: RunFolder, home: Path) -> None:
    new = pd.concat([rows("north", 60, 10)[0], rows("east", 180, 11)[0][::KINDS]])  # of east one kind alone
    new.assign(kind=0).to_csv(home / "new.csv", index=False)
    grown = add_set(home / "new.csv", "shifted", places.store(), append=True, label_column="kind")
    assert [each.client for each in find_drift(run, grown.folder, 0.01, 0) if each.found] == ["", "east"]


def test_the_served_model_estimates_offsets_of_the_sites_in_a_request(run: RunFolder, tmp_path: Path) -> None:
    add_set(tmp_path / "rows.csv", "shifted", places.store(), force=True)  # after which the run is logged as before
    checkpoint = servable(run)
    assert checkpoint is not None
    logged = SimpleNamespace(artifact_location="place", model_id="m-1", source_run_id="0" * 32)
    folder = save_final_model(run, checkpoint, tmp_path, logged)
    assert "column 'client'" in (folder / "MLmodel").read_text()
    model = FederatedModel()
    files = {Path(file).stem: str(folder / "artifacts" / file) for file in ("model.json", "server.safetensors")}
    model.load_context(SimpleNamespace(artifacts=files))

    parts = [rows("south", 60, 11), rows("east", 12, 10)]
    table = pd.concat([part for part, _ in parts]).sample(frac=1, random_state=1)
    kind = table.index.to_numpy() % KINDS
    south = (table["client"] == "south").to_numpy()
    answer = model.predict(None, table)
    assert answer["offset"].tolist() == np.where(south, "estimated", "none").tolist()
    assert accuracy(kind[south], answer["cluster"].to_numpy()[south]) == 1.0
    pd.testing.assert_frame_equal(model.predict(None, table.to_dict("records")), answer)
    for unnamed in (table.drop(columns="client"), table.assign(client=None)):
        nobody = model.predict(None, unnamed)
        assert set(nobody["offset"]) == {"none"}
        assert accuracy(kind[south], nobody["cluster"].to_numpy()[south]) < 1.0
    (run.path / FACTS).unlink()
    assert servable(run) is None, "nothing tells the form of its samples any more"
