"""A run's states as models of MLflow: each kept checkpoint, and the final model that can be served.

A model in MLflow has the round as its step, and the metrics of that round are linked to it and to the data set, so that
`mlflow.search_logged_models` can order rounds by a score. A checkpoint is a single safetensors file: that costs
milliseconds, and `mlflow.pytorch.log_model` seconds.

A model is complete once MLflow calls it READY, which is set last: a model that a kill cut short is completed later.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from shoal.engine.settings.run_settings import Settings, flatten
from shoal.engine.store.checkpoint import has_server, load_manifest, load_state, rounds_done
from shoal.engine.store.codec import load_server, save_server
from shoal.engine.store.round_paths import SERVER, RoundPaths
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.registry import METHODS
from shoal.review.mlflow_log.experiments import SETTINGS_SHOWN
from shoal.review.mlflow_log.rounds import quality_metrics, round_metrics, round_stamp
from shoal.review.mlflow_log.run import data_sets

MODEL = "model"
"""The name of a run's final model: `runs:/RUN/model`. A checkpoint's is `round-0007`."""
CHECKPOINT = "checkpoint"
FINAL = "final"
"""The types of models in MLflow's filters."""


def models_of(client: Any, logged: Any) -> dict[str, Any]:
    """Return the models of an MLflow run by name, incomplete ones too.

    Args:
        client: an MlflowClient.
        logged: the MLflow run.
    """
    models: dict[str, Any] = {}
    token = None
    while True:
        page = client.search_logged_models(
            [logged.info.experiment_id], f"source_run_id = '{logged.info.run_id}'", page_token=token
        )
        models |= {model.name: model for model in page}
        token = page.token
        if not token:
            return models


def is_ready(model: Any) -> bool:
    """Return whether a model of MLflow is complete."""
    return model is not None and str(model.status) == "READY"


def log_models(client: Any, logged: Any, run: RunFolder, settings: Settings, *, final: bool) -> None:
    """Log the checkpoints of a run that the settings ask for, and its final model, unless MLflow has them.

    A method whose server holds no model has no final model.

    Args:
        client: an MlflowClient.
        logged: the MLflow run.
        run: the run's folder.
        settings: of the run.
        final: whether the run is finished.
    """
    full = [r for r in rounds_done(run) if has_server(run, r)]
    rounds = {"none": [], "final": full[-1:], "all": full}[settings.tracking.checkpoints]
    log = ModelLog(client, logged, run, settings, models_of(client, logged))
    for round in rounds:
        log.add(f"round-{round:04d}", CHECKPOINT, round, partial(write_checkpoint, run, settings, round))
    if not final or not settings.tracking.model or is_ready(log.models.get(MODEL)):
        return
    # MLflow warns that `predict` has no annotations, whatever the filters; the signature is given.
    with warnings.catch_warnings(record=True):
        from shoal.review.mlflow_log.pyfunc import save_final_model, servable
    checkpoint = servable(run)
    if checkpoint is not None:
        log.add(MODEL, FINAL, checkpoint.server.round, partial(save_final_model, run, checkpoint))


@dataclass(frozen=True)
class ModelLog:
    """The models of an MLflow run, to which models are added.

    Attributes:
        client: an MlflowClient.
        logged: the MLflow run.
        run: the run's folder.
        settings: of the run.
        models: those that MLflow has, by name.
    """

    client: Any
    logged: Any
    run: RunFolder
    settings: Settings
    models: Mapping[str, Any]

    def add(self, name: str, kind: str, round: int, write: Callable[[Path, Any], Path]) -> None:
        """Log a model, or complete one that an earlier attempt began, unless MLflow has it.

        Args:
            name: of the model.
            kind: CHECKPOINT or FINAL.
            round: of its state.
            write: writes its files below an empty folder, given the model in MLflow, and returns their folder.
        """
        model = self.models.get(name)
        if is_ready(model):
            return
        with tempfile.TemporaryDirectory() as scratch:
            if model is None:
                model = self._create(name, kind, round)
            folder = write(Path(scratch), model)
            self.client.log_model_artifacts(model.model_id, str(folder))
        self._complete(model, round)

    def _create(self, name: str, kind: str, round: int) -> Any:
        """Create a model, not complete yet, with parameters that tell it apart from those of other runs."""
        info = self.logged.info
        flat = flatten(self.settings)
        params = {**{key: str(flat[key]) for key in SETTINGS_SHOWN if key in flat}, "round": str(round)}
        tags = {"shoal.run": self.run.name, "shoal.round": str(round)}
        return self.client.create_logged_model(info.experiment_id, name, info.run_id, tags, params, kind)

    def _complete(self, model: Any, round: int) -> None:
        """Give a model its step and the metrics of its round, and call it ready; repeating changes nothing."""
        from mlflow.entities import LoggedModelOutput, LoggedModelStatus, Metric

        run_id = self.logged.info.run_id
        outputs = getattr(self.logged.outputs, "model_outputs", [])
        if all(output.model_id != model.model_id for output in outputs):
            self.client.log_outputs(run_id, [LoggedModelOutput(model.model_id, round)])
        data = data_sets(self.run, self.settings)[0].dataset
        metrics = round_metrics(load_manifest(self.run, round))
        judged, quality = quality_metrics(self.run)
        if judged == round:
            metrics |= quality
        stamp = round_stamp(self.run, round)
        linked = (model.model_id, data.name, data.digest)
        self.client.log_batch(
            run_id, metrics=[Metric(name, value, stamp, round, *linked) for name, value in metrics.items()]
        )
        self.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)


def write_checkpoint(run: RunFolder, settings: Settings, round: int, folder: Path, _: Any = None) -> Path:
    """Write the server state of a round to a folder; single clients' updates only where enrolment needs them.

    A damaged state is refused. With `tracking.clients` false, no data of single clients are written, nor the manifest.

    Args:
        run: the run's folder.
        settings: of the run.
        round: the round.
        folder: takes the copy.

    Returns:
        The folder.
    """
    load_state(run, round)
    paths = RoundPaths(run.path, round)
    server = load_server(paths.server)
    with_clients = settings.tracking.clients
    logged = METHODS[settings.method.name].served(server, clients_told=with_clients)
    if logged.tensors.keys() == server.tensors.keys():
        shutil.copy(paths.server, folder)
    else:
        save_server(folder / SERVER, logged, sync=False)
    if with_clients:
        shutil.copy(paths.manifest, folder)
    return folder
