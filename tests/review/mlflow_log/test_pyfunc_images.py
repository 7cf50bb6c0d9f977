"""The served model of an embedded set: it takes vectors, and images where their encoder is."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from shoal.data.sets.prepared import open_prepared
from shoal.engine.settings import places
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.driving import drive
from shoal.lifecycle.embedding import embed
from shoal.lifecycle.starting import new_run
from shoal.models.frozen import frozen_encoder
from shoal.review.mlflow_log.pyfunc import FederatedModel, save_final_model, servable
from shoal.review.mlflow_log.pyfunc_input import InputError
from tests.added_sets import add_set
from tests.conftest import SMALL
from tests.planted_images import draw, write_clients
from tests.scripted_encoder import Patches, write_scripted

ENCODER = "file:parts.pt"
SETTINGS: dict[str, Any] = {
    "data": {"name": "made", "limit": None},
    "method": {"name": "fedkmeans"},
    "partition": {"kind": "auto", "clients": None},
    "model": {"clusters": 3, "encoder": None},
    "rounds": 8,
    "tracking": {"mlflow": False},
}
Load = Callable[[], FederatedModel]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunFolder]:
    """A finished run on vectors of images."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("vectors")
        patch.setenv("SHOAL_HOME", str(home))
        patch.chdir(home)
        write_scripted(home / "encoders" / "parts.pt", kind=Patches)
        write_clients(home / "pictures")
        add_set(home / "pictures", "mine", places.store())
        embed("mine", ENCODER, "made")
        made = new_run(make_settings(merge(SMALL, SETTINGS)))
        drive(made)
        yield made


@pytest.fixture(scope="module")
def load(run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Load the logged model as MLflow does."""
    checkpoint = servable(run)
    assert checkpoint is not None
    logged = SimpleNamespace(artifact_location="place", model_id="m-1", source_run_id="0" * 32)
    folder = save_final_model(run, checkpoint, tmp_path_factory.mktemp("saved"), logged)
    files = {name: str(folder / "artifacts" / file) for name, file in FILES.items()}

    def loaded() -> FederatedModel:
        model = FederatedModel()
        model.load_context(SimpleNamespace(artifacts=files))
        return model

    return loaded


FILES = {"model": "model.json", "server": "server.safetensors"}


def images(count: int = 6) -> np.ndarray:
    random = np.random.default_rng(5)
    kinds = ("dark", "left", "right")
    return np.stack([np.asarray(draw(kinds[k % 3], random))[None] for k in range(count)])


@pytest.mark.long
def test_images_and_their_vectors_have_the_same_clusters(run: RunFolder, load: Load) -> None:
    model = load()
    x = images()
    vectors = frozen_encoder(ENCODER)(torch.from_numpy(x).float() / 255).numpy()
    by_vector = model.predict(None, vectors)
    assert by_vector["cluster"].nunique() == 3
    assert by_vector["cluster"].tolist() == by_vector["cluster"].tolist()[:3] * 2, "three kinds, twice"
    pd.testing.assert_frame_equal(model.predict(None, x), by_vector)
    pd.testing.assert_frame_equal(model.predict(None, x.tolist()), by_vector)
    encoded = pd.DataFrame({"image": [png(image) for image in x]})
    pd.testing.assert_frame_equal(model.predict(None, encoded), by_vector)
    trained = np.asarray(open_prepared(run.folder_of("data")).train_x[:5])
    assert len(model.predict(None, pd.DataFrame(trained))) == 5


def png(image: np.ndarray) -> str:
    buffer = io.BytesIO()
    Image.fromarray(image[0]).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


@pytest.mark.long
def test_what_it_takes_is_said(load: Load) -> None:
    with pytest.raises(InputError) as told:
        load().predict(None, np.zeros((2, 7)))
    assert "the array has shape (2, 7): expected vectors of encoder file:parts.pt, arrays float32 (n, 48)" in str(
        told.value
    )
    assert "or, where that encoder is installed, images: arrays uint8 (n, 1, 12, 12), or a column 'image'" in str(
        told.value
    )
    with pytest.raises(InputError, match="image 0 is not base64"):
        load().predict(None, ["?"])


def test_without_the_encoder_it_takes_vectors_alone(run: RunFolder, load: Load, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_HOME", str(tmp_path))
        patch.chdir(tmp_path)
        model = load()
        assert len(model.predict(None, np.zeros((2, 48)))) == 2
        with pytest.raises(InputError, match=r"images cannot be encoded here .*is not installed.*or send vectors"):
            model.predict(None, images())
        write_scripted(tmp_path / "encoders" / "parts.pt", factor=2.0, kind=Patches)
        with pytest.raises(InputError, match="are not those that were used before"):
            load().predict(None, images())
