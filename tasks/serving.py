"""The final model as an MLflow pyfunc: images in; cluster, soft assignment and embedding out.

The logged model carries the server state, the settings and the code it needs, so it loads in a fresh process.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from mlflow.pyfunc import PythonModel

from data.prepared import DTYPES, DataSpec
from methods.base import Context, MethodError, Prediction
from methods.registry import METHODS
from tasks.checkpoint import SERVER, newest_valid, round_folder
from tasks.codec import load_server
from tasks.runfolder import RunFolder
from tasks.settings import make_settings
from tasks.world import World

ROOMS = ("data", "models", "methods", "tasks")
NEEDS = ("torch", "torchvision", "numpy", "pandas", "scipy", "scikit-learn", "safetensors", "pydantic", "pyyaml")


class FederatedModel(PythonModel):
    """A trained server state as a pyfunc.

    Input: an array (n, *shape) of the set's stored dtype (images: uint8, channels first), or nested lists of it.
    Output: a frame with `cluster` (int), `soft` (list of c floats) and `embedding` (list of d floats).
    """

    def load_context(self, context: Any) -> None:
        """Read settings, data manifest and server state from the logged files."""
        about = json.loads(Path(context.artifacts["model"]).read_text())
        settings = make_settings(about["settings"])
        spec = DataSpec(**{**about["spec"], "shape": tuple(about["spec"]["shape"])})
        self.shape = spec.shape
        self.kind = spec.kind
        method = METHODS[settings.method.name](
            settings.dataclass("method"),
            Context(
                spec,
                settings.dataclass("model"),
                settings.dataclass("local"),
                settings.dataclass("augment"),
                settings.seed,
            ),
        )
        self.predictor = method.predictor(load_server(Path(context.artifacts["server"])))

    # Without annotations: MLflow would read them as a schema, and the signature says it better.
    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """Cluster, soft assignment and embedding of each image.

        Raises:
            ValueError: the images have another shape than the model was trained on.
        """
        x = self.tensor(model_input)
        parts = [self.predictor(part) for part in x.split(512)]
        found = Prediction(*(torch.cat(p).cpu() for p in zip(*parts, strict=True)))
        columns = {
            "cluster": found.cluster.tolist(),
            "soft": found.soft.float().tolist(),
            "embedding": found.embedding.float().tolist(),
        }
        return pd.DataFrame(columns)

    def tensor(self, given: Any) -> torch.Tensor:
        """The input as float32 (n, *shape), images in [0, 1]."""
        array = np.asarray(given.to_numpy() if isinstance(given, pd.DataFrame) else given)
        if array.dtype == object:
            array = np.stack([np.asarray(list(row), dtype=np.float64).reshape(-1) for row in array])
        size = int(np.prod(self.shape))
        count = len(array) if array.ndim else 0
        if not count or array.size != count * size:
            raise ValueError(f"expected samples of shape {self.shape} each, given an array of shape {array.shape}")
        x = torch.from_numpy(array.astype(np.float32).reshape(count, *self.shape))
        return x / 255 if self.kind == "image" else x


def log_final_model(run: RunFolder, client: Any, run_id: str, uri: str) -> bool:
    """Log the newest state of a run as a pyfunc artifact `model` of its MLflow run.

    Args:
        run: the run's folder.
        client: an MlflowClient of `uri`.
        run_id: the MLflow run.
        uri: the tracking server.

    Returns:
        False where the method's server holds no model.
    """
    from mlflow.models import ModelSignature
    from mlflow.pyfunc import save_model
    from mlflow.types import Schema, TensorSpec

    checkpoint = newest_valid(run)
    world = World(run)
    if checkpoint is None:
        return False
    try:
        world.method.predictor(checkpoint.server)
    except MethodError as error:
        run.event("model_skipped", message=str(error))
        return False
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        about = {"settings": run.settings().plain(), "spec": asdict(world.prepared.spec)}
        (folder / "model.json").write_text(json.dumps(about))
        server = round_folder(run, checkpoint.server.round) / SERVER
        spec = world.prepared.spec
        takes = Schema([TensorSpec(np.dtype(DTYPES[spec.kind]), (-1, *spec.shape))])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice on examples and annotations; the signature is given
            save_model(
                folder / "model",
                python_model=str(Path(__file__).with_name("served.py")),  # from code: nothing is pickled
                artifacts={"model": str(folder / "model.json"), "server": str(server)},
                code_paths=[str(path) for path in copy_code(folder / "code")],
                pip_requirements=["mlflow", *NEEDS],
                signature=ModelSignature(inputs=takes),
            )
        client.log_artifacts(run_id, str(folder / "model"), "model")
    return True


def copy_code(target: Path) -> list[Path]:
    """Copies of the packages' Python files and templates alone: data/store must not travel."""
    root = Path(__file__).parent.parent
    for room in ROOMS:
        skip = shutil.ignore_patterns("store", "__pycache__", "*.pyc")
        shutil.copytree(root / room, target / room, ignore=skip)
    return [target / room for room in ROOMS]
