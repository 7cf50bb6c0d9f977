"""The final model as an MLflow pyfunc: images in; cluster, its stable number, soft assignment and embedding out.

The logged model holds the server state, the settings and the code that it needs, so that it loads in a new process.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from mlflow.pyfunc.model import PythonModel
from torch import Tensor

from shoal.core.errors import ShoalError, short_text
from shoal.core.records import record_from_json, record_to_json
from shoal.core.seal import BrokenSeal, sealed, unsealed
from shoal.data.sets.prepared import DataSpec
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.checkpoint import Checkpoint
from shoal.engine.store.codec import StoreError, changed_error, load_server, save_server, server_digest
from shoal.engine.store.kept_state import read_state_if_any
from shoal.engine.store.lineage import method_version
from shoal.engine.store.run_facts import RunFacts
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.contract.base import Method, Server
from shoal.methods.contract.prediction import Prediction
from shoal.models.frozen import EncoderVersion, source_of
from shoal.review.mlflow_log.pyfunc_input import samples, takes, without_clients
from shoal.review.results.clusters import cluster_facts
from shoal.review.results.served_method import CLIENT, SITE_SAMPLES, served_method, site_by_site, tell_offset
from shoal.review.results.stable_names import NAME, NAME_MEANING

ROOMS = ("core", "data", "models", "methods", "engine", "review")
"""The rooms whose code a logged model holds."""
REQUIREMENTS = (
    "mlflow",
    "torch",
    "torchvision",
    "numpy",
    "pandas",
    "pyarrow",
    "pillow",
    "scipy",
    "scikit-learn",
    "safetensors",
    "pydantic",
    "pyyaml",
)
"""The packages that this code imports to load and to predict."""
REMEDY = "log the model again, or serve another version"
COLUMNS = {
    "cluster": "the number of the sample's cluster in this model alone; -1 of a method without clusters",
    NAME: NAME_MEANING,
    "soft": "the probability of each cluster, in the order of `cluster`",
    "embedding": "the model's features of the sample",
}
"""The columns of an answer, and what they are."""
OFFSET = "offset"
SITE_COLUMNS = {
    **COLUMNS,
    OFFSET: f"estimated and taken away, of the {SITE_SAMPLES} or more samples of one `client` in a request; else none",
}
"""Those of a model of sites that differ by offsets."""


class FederatedModel(PythonModel):
    """A trained server state as a pyfunc.

    Input: samples in their stored form, or images as base64 strings (`shoal.review.mlflow_log.pyfunc_input.samples`).
    Output: a frame with `cluster` (int), `cluster_id` (int), `soft` (list of c floats) and `embedding` (list of d
    floats); `COLUMNS` says what they are.
    """

    def load_context(self, context: Any) -> None:
        """Read settings, data manifest and server state from the logged files."""
        about, server = read_model(context.artifacts)
        self.cluster_ids: dict[int, int] = dict(enumerate(about["cluster_ids"] or ()))
        self.spec = record_from_json(DataSpec, about["spec"])
        method = served_method(make_settings(about["settings"]), self.spec, about["encoder_sha256"])
        self.predictor = method.predictor(server)
        self.has_offsets = method.uses_offsets(server)
        self.site_predictor = partial(method.site_predictor, server, memory={})

    # Without annotations: MLflow would read them as a schema instead of the signature.
    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """Return the `COLUMNS` of each sample, or the `SITE_COLUMNS`.

        Raises:
            InputError: the input does not hold samples of the kind and shape that the model was trained on.
        """
        names = None
        if self.has_offsets:
            model_input, names = without_clients(model_input)
        x = torch.from_numpy(samples(model_input, self.spec).astype("float32"))
        if self.spec.kind == "image":
            x = x / 255
        if not self.has_offsets:
            return self.answer(x, self.predictor)
        clients = np.full(len(x), "") if names is None else names
        return site_by_site(clients, lambda client, rows: self.answer_at_site(client, x[rows]))

    def answer_at_site(self, client: str, x: Tensor) -> pd.DataFrame:
        """Return the `SITE_COLUMNS` of samples of one client; without a name they may be of several."""
        if not tell_offset(client, len(x)):
            return self.answer(x, self.predictor).assign(**{OFFSET: "none"})
        return self.answer(x, self.site_predictor(x)).assign(**{OFFSET: "estimated"})

    def answer(self, x: Tensor, predictor: Callable[[Tensor], Prediction]) -> pd.DataFrame:
        """Return the `COLUMNS` of samples by a model."""
        answer = Prediction(*map(torch.cat, zip(*map(predictor, x.split(512)), strict=True)))
        table = pd.DataFrame({"cluster": answer.cluster.tolist()})
        table[NAME] = table["cluster"].replace(self.cluster_ids)
        table["soft"] = answer.soft.float().tolist()
        table["embedding"] = answer.embedding.float().tolist()
        return table


def read_model(artifacts: Mapping[str, str]) -> tuple[dict[str, Any], Server]:
    """Read the description of a served model (settings, data, and the digest of its state) and the state.

    Args:
        artifacts: the paths of both files, as MLflow gives them.

    Raises:
        StoreError: a file was changed or damaged since the model was logged.
    """
    try:
        about = unsealed(json.loads(Path(artifacts["model"]).read_text()))
        server = load_server(Path(artifacts["server"]))
        if about["server_sha256"] != server_digest(server):
            raise changed_error(Path(artifacts["server"]))
    except (BrokenSeal, StoreError, ValueError, KeyError, TypeError, OSError) as error:
        raise StoreError(f"the logged model is damaged ({short_text(error)}): {REMEDY}") from error
    return about, server


def servable(run: RunFolder) -> Checkpoint | None:
    """Return the newest state of a run; None where it has none, or no model: an event says why.

    Args:
        run: the run's folder.
    """
    checkpoint = read_state_if_any(run)
    if checkpoint is None:
        return None
    try:
        method_of(run).predictor(checkpoint.server)
    except ShoalError as error:
        run.event_once("model_skipped", f"MLflow gets no model: {error}")
        return None
    return checkpoint


def method_of(run: RunFolder) -> Method:
    """Return the method of a run as it serves; with a cluster table, whatever became of its data set since.

    Raises:
        ShoalError: its table is damaged; or it has none, and its data set is another one now, or is gone.
    """
    facts = cluster_facts(run)
    spec = RunFacts(run).spec if facts is None else facts.data.spec
    return served_method(run.settings(), spec, run.lineage().encoder_sha256)


def save_final_model(run: RunFolder, checkpoint: Checkpoint, scratch: Path, logged: Any) -> Path:
    """Write a state of a run as a pyfunc.

    Args:
        run: the run's folder.
        checkpoint: the state.
        scratch: an empty folder.
        logged: its model in MLflow; the id and the run of that model are written beside the pyfunc.

    Returns:
        The pyfunc's folder, below `scratch`.
    """
    from mlflow.models import Model
    from mlflow.pyfunc import save_model

    method = method_of(run)
    spec = method.context.spec
    facts = cluster_facts(run)
    lineage = run.lineage()
    about = {
        "settings": run.settings().to_json(),
        "spec": record_to_json(spec),
        "server_sha256": server_digest(checkpoint.judged),
        "encoder_sha256": lineage.encoder_sha256,
        "cluster_ids": None if facts is None or facts.names is None else list(facts.names.names),
    }
    packages = requirements(lineage.encoder)
    columns = COLUMNS
    accepted = takes(spec)
    if method.uses_offsets(checkpoint.judged):
        columns = SITE_COLUMNS
        accepted += f"; in frames a column {CLIENT!r} may name the site of each sample"
    packages += [f"{name}=={number}" for name, number in method_version(run.settings().method.name).items()]
    (scratch / "model.json").write_text(json.dumps(sealed(about)))
    # The evaluated state: the served model is the one that the metrics describe.
    save_server(scratch / "server.safetensors", checkpoint.judged, sync=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on examples and annotations; the signature is given
        save_model(
            scratch / "model",
            python_model=str(Path(__file__).with_name("pyfunc_code.py")),  # from code: nothing is pickled
            artifacts={"model": str(scratch / "model.json"), "server": str(scratch / "server.safetensors")},
            code_paths=[str(copy_code(scratch / "code"))],
            pip_requirements=packages,
            signature=answers(columns),
            metadata={"input": accepted, "output": columns, "shoal_run": run.name},
            mlflow_model=Model(
                artifact_path=logged.artifact_location,
                model_uuid=logged.model_id,
                run_id=logged.source_run_id,
                model_id=logged.model_id,
            ),
        )
    return scratch / "model"


def answers(columns: Mapping[str, str]) -> Any:
    """Return the signature: the columns of a prediction.

    It leaves the input open. MLflow has no schema that admits both arrays and columns of text, and its error for wrong
    input repeats all the values that were sent; `samples` says in one sentence what is wrong.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema
    from mlflow.types.schema import Array

    numbers = Array("double")
    types: dict[str, Any] = {"cluster": "long", NAME: "long", "soft": numbers, "embedding": numbers, OFFSET: "string"}
    return ModelSignature(outputs=Schema([ColSpec(types[column], column) for column in columns]))


def requirements(encoder: EncoderVersion | None = None) -> list[str]:
    """Return the installed versions, pinned, without a build's local part (+cu130), which no index has.

    Args:
        encoder: the pretrained encoder that the model needs, whose packages are needed too.
    """
    packages = list(REQUIREMENTS)
    if encoder is not None:
        packages += source_of(encoder.name).packages
    return [f"{name}=={version(name).split('+')[0]}" for name in dict.fromkeys(packages)]


def copy_code(target: Path) -> Path:
    """Copy the package's Python files and templates alone, without data/store; return the folder of the copy."""
    package = Path(__file__).resolve().parents[2]
    copy = target / package.name
    copy.mkdir(parents=True)
    shutil.copy(package / "__init__.py", copy)
    for room in ROOMS:
        # `engine/store` is code, `data/store` holds data.
        patterns = ["__pycache__", "store"] if room == "data" else ["__pycache__"]
        shutil.copytree(package / room, copy / room, ignore=shutil.ignore_patterns(*patterns))
    return copy
