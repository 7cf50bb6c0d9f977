"""Final models as they are served: by name, from arrays and from encoded images, by MLflow's own scoring server."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from fastapi.testclient import TestClient
from mlflow import MlflowClient
from mlflow.pyfunc import scoring_server
from PIL import Image

from shoal.core.seal import sealed
from shoal.data.sets.prepared import DataSpec, open_prepared
from shoal.engine.settings import places
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import SettingsError, make_settings
from shoal.engine.store.codec import StoreError, save_server
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run
from shoal.methods.contract.base import Server
from shoal.review.mlflow_log.model_registry import set_champion
from shoal.review.mlflow_log.models import models_of
from shoal.review.mlflow_log.pyfunc import read_model, requirements
from shoal.review.mlflow_log.pyfunc_input import InputError, samples
from shoal.review.mlflow_log.tracking import log_run, register_model
from tests.conftest import SMALL

NAME = "shoal-fedpnp-digits"
ON = {"tracking": {"mlflow": True}, "rounds": 1}


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunFolder]:
    """A finished run in a home of its own, which later tests add runs to."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("served")
        patch.setenv("SHOAL_HOME", str(home))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.chdir(home)
        yield run_with()


def run_with(**changes: Any) -> RunFolder:
    run = new_run(make_settings(merge(SMALL, ON, changes)))
    drive(run)
    return run


def store() -> str:
    return f"sqlite:///{places.mlflow_store()}/mlflow.db"


def stored_images(run: RunFolder, count: int) -> np.ndarray:
    return np.array(open_prepared(run.folder_of("data")).train_x[:count])


def png(image: np.ndarray) -> str:
    """An image (1 or 3, height, width) as base64 PNG."""
    pixels = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def aliases(name: str = NAME) -> dict[str, str]:
    found = MlflowClient(store()).get_registered_model(name).aliases
    return {key: str(value) for key, value in found.items()}


@pytest.fixture(scope="module")
def server(tracked: RunFolder) -> Iterator[Any]:
    """MLflow's scoring server over the newest model, called without a socket."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))  # a loaded model puts its code before the project's
        mlflow.set_tracking_uri(store())
        model = mlflow.pyfunc.load_model(f"models:/{NAME}@champion")
        patch.setenv("_MLFLOW_IS_IN_SERVING_ENVIRONMENT", "true")
        with TestClient(scoring_server.init(model)) as client:
            yield lambda body: client.post("/invocations", json=body)
        mlflow.set_tracking_uri(None)


@pytest.mark.long
def test_arrays_and_encoded_images_give_the_same_in_a_fresh_process(tracked: RunFolder, tmp_path: Path) -> None:
    images = stored_images(tracked, 3)
    np.save(tmp_path / "images.npy", images)
    (tmp_path / "png.json").write_text(json.dumps([png(image) for image in images]))
    code = (
        "import json, sys, numpy as np, pandas as pd, mlflow\n"
        "model = mlflow.pyfunc.load_model(sys.argv[1])\n"
        "raw = model.predict(np.load('images.npy'))\n"
        "encoded = model.predict(pd.DataFrame({'image': json.load(open('png.json'))}))\n"
        "assert len(raw) == 3\n"
        "pd.testing.assert_frame_equal(raw, encoded)\n"
        "assert np.allclose([sum(soft) for soft in raw['soft']], 1, atol=1e-5)\n"
    )
    env = {key: value for key, value in os.environ.items() if key not in ("SHOAL_HOME", "PYTHONPATH")}
    done = subprocess.run(
        [sys.executable, "-c", code, f"models:/{NAME}/latest"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**env, "MLFLOW_TRACKING_URI": store()},
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_a_repeated_sync_registers_nothing_and_a_new_run_is_the_newest(tracked: RunFolder) -> None:
    client = MlflowClient(store())
    for _ in range(2):
        assert log_run(tracked)
        assert register_model(tracked) == "1"
    (first,) = client.search_model_versions(f"name = '{NAME}'")
    assert first.run_id == tracked.status().tracking.mlflow_run
    assert first.tags["shoal.run"] == tracked.name
    second = run_with(seed=1)
    assert aliases() == {"champion": "1", "challenger": "2"}
    register_model(tracked)
    assert aliases() == {"champion": "1", "challenger": "2"}
    set_champion(client, NAME, "2")
    assert aliases() == {"champion": "2"}
    register_model(second)
    assert aliases() == {"champion": "2"}


@pytest.mark.long
def test_a_model_without_a_name_is_not_registered(tracked: RunFolder) -> None:
    client = MlflowClient(store())
    before = {model.name for model in client.search_registered_models()}
    run_with(seed=3, tracking={"register_as": "none"})
    assert {model.name for model in client.search_registered_models()} == before
    with pytest.raises(SettingsError, match=r"tracking\.register_as"):
        make_settings({"tracking": {"register_as": "a/b"}})


def logged(run: RunFolder) -> Path:
    """The folder of the run's logged model."""
    client = MlflowClient(store())
    model = models_of(client, client.get_run(run.status().tracking.mlflow_run))["model"]
    return Path(mlflow.artifacts.download_artifacts(model.artifact_location))


@pytest.mark.long
def test_requirements_are_pinned_to_public_versions(tracked: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (logged(tracked) / "requirements.txt").read_text().split()
    assert lines == requirements()
    assert all(re.fullmatch(r"[a-z-]+==[0-9][0-9a-z.]*", line) for line in lines), lines
    monkeypatch.setattr("shoal.review.mlflow_log.pyfunc.version", lambda name: "2.14.1+cu130")
    assert "torch==2.14.1" in requirements()


@pytest.mark.long
def test_the_scoring_server_takes_arrays_and_encoded_images(tracked: RunFolder, server: Any) -> None:
    images = stored_images(tracked, 2)
    encoded = [png(image) for image in images]
    answers = [
        server({"inputs": images.tolist()}),
        server({"instances": images.tolist()}),
        server({"inputs": encoded}),
        server({"inputs": {"image": encoded}}),
        server({"instances": [{"image": text} for text in encoded]}),
        server({"dataframe_records": [{"image": text} for text in encoded]}),
        server({"dataframe_split": {"columns": ["image"], "data": [[text] for text in encoded]}}),
        server({"dataframe_records": [{"image": image.tolist()} for image in images]}),
    ]
    for answer in answers:
        assert answer.status_code == 200, answer.text
        assert answer.json() == answers[0].json()
    first = answers[0].json()["predictions"][0]
    assert isinstance(first["cluster"], int)
    assert len(first["soft"]) == 10
    assert len(first["embedding"]) == 128


@pytest.mark.long
def test_what_does_not_fit_is_answered_in_a_sentence(tracked: RunFolder, server: Any) -> None:
    large = np.zeros((2, 1, 28, 28), dtype=int)
    ragged = [[[[0] * 8] * 8], [[[0] * 8] * 7]]
    for body, said in (
        ({"inputs": large.tolist()}, "(2, 1, 28, 28)"),
        ({"instances": large.tolist()}, "(2, 1, 28, 28)"),
        ({"inputs": ragged}, "inhomogeneous"),
        ({"dataframe_records": [{"image": image.tolist()} for image in large]}, "(2, 1, 28, 28)"),
        ({"dataframe_records": [{"picture": png(np.zeros((1, 8, 8), np.uint8))}]}, "'image'"),
        ({"inputs": ["not base64!"]}, "image 0 is not base64"),
        ({"inputs": [base64.b64encode(b"no image" * 1000).decode()]}, "image 0 cannot be read"),
        ({"inputs": (np.zeros((1, 1, 8, 8)) + 0.5).tolist()}, "values that uint8 cannot hold"),
        ({"inputs": []}, "no sample"),
    ):
        answer = server(body)
        assert answer.status_code == 400, (said, answer.text)
        assert said in answer.json()["message"]
        assert len(answer.text) < 500, answer.text


@pytest.mark.long
def test_the_signature_says_what_a_prediction_holds(tracked: RunFolder) -> None:
    about = mlflow.models.Model.load(logged(tracked))
    columns = {column.name: str(column.type) for column in about.signature.outputs}
    assert columns == {
        "cluster": "DataType.long",
        "cluster_id": "DataType.long",
        "soft": "Array(double)",
        "embedding": "Array(double)",
    }
    assert about.metadata["output"].keys() == columns.keys()
    assert "from night to night" in about.metadata["output"]["cluster_id"]
    assert about.metadata["input"].startswith("arrays uint8 (n, 1, 8, 8), or a column 'image' of base64")


GREY = DataSpec("own", "image", (1, 4, 6), 2, 10, 0)
COLOUR = DataSpec("own", "image", (3, 4, 6), 2, 10, 0)


def test_an_encoded_image_is_read_in_the_mode_and_size_of_the_set() -> None:
    colour = np.random.default_rng(0).integers(0, 256, (3, 4, 6), dtype=np.uint8)
    assert np.array_equal(samples([png(colour)], COLOUR)[0], colour)
    assert np.array_equal(samples([f"data:image/png;base64,{png(colour)}"], COLOUR)[0], colour)
    grey = samples([png(colour)], GREY)[0]
    assert grey.shape == (1, 4, 6)
    assert np.array_equal(samples([png(grey)], COLOUR)[0], grey.repeat(3, axis=0))
    halved = samples([png(np.full((1, 8, 12), 9, dtype=np.uint8))], GREY)
    assert np.array_equal(halved, np.full((1, 1, 4, 6), 9))


def test_a_table_of_values_is_read_row_by_row() -> None:
    vectors = DataSpec("own", "vector", (3,), None, 10, 0)
    given = pd.DataFrame([[0.5, 1.5, 2.5], [3.0, 4.0, 5.0]], columns=["a", "b", "c"])
    assert np.array_equal(samples(given, vectors), given.to_numpy(dtype=np.float32))
    with pytest.raises(InputError, match=r"shape \(2, 2\): expected arrays float32 \(n, 3\)"):
        samples(given[["a", "b"]], vectors)
    with pytest.raises(InputError, match="the request holds text"):
        samples(["aGVsbG8="], vectors)
    with pytest.raises(InputError, match=r"the samples are not numbers.* expected arrays float32 \(n, 3\)"):
        samples([[1, 2, 10**400]], vectors)


def test_the_description_of_something_else_is_refused(tmp_path: Path) -> None:
    save_server(tmp_path / "server", Server({}))
    (tmp_path / "model").write_text(json.dumps(sealed({"round": 1})))
    with pytest.raises(StoreError, match="the logged model is damaged"):
        read_model({name: str(tmp_path / name) for name in ("model", "server")})
