"""A run's states as models of MLflow: each kept checkpoint, and the final model that can be served.

A model in MLflow has the round as its step, and the metrics of that round are linked to it and to the data set, so that
`mlflow.search_logged_models` can order rounds by a score. A checkpoint is a single safetensors file: that costs
milliseconds, and `mlflow.pytorch.log_model` seconds.

A model is complete once MLflow calls it READY, which is set last: a model that a kill cut short is completed later.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.engine.settings.run_settings import Settings, flatten
from shoal.engine.store.checkpoint import has_server, load_manifest, load_state, rounds_done
from shoal.engine.store.codec import StoreError, load_server, save_server
from shoal.engine.store.round_paths import SERVER, RoundPaths
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.contract.base import Method
from shoal.methods.registry import METHODS
from shoal.review.mlflow_log.experiments import SETTINGS_SHOWN
from shoal.review.mlflow_log.rounds import metric_name, quality_metrics, round_stamp
from shoal.review.mlflow_log.run import data_sets
from shoal.review.mlflow_log.uploads import longer_timeout

MODEL = "model"
"""The name of a run's final model: `runs:/RUN/model`. A checkpoint's is `round-0007`."""
CHECKPOINT = "checkpoint"
FINAL = "final"
"""The types of models in MLflow's filters."""


def models_of(client: Any, found: Any) -> dict[str, Any]:
    """Return the models of an MLflow run by name, incomplete ones too.

    Args:
        client: an MlflowClient.
        found: the MLflow run.
    """
    models: dict[str, Any] = {}
    for model in _pages(client, found):
        earlier = models.get(model.name)
        if earlier is None or not is_ready(earlier):
            models[model.name] = model
    return models


def _pages(client: Any, found: Any) -> Iterator[Any]:
    token = None
    while True:
        page = client.search_logged_models(
            [found.info.experiment_id], f"source_run_id = '{found.info.run_id}'", page_token=token
        )
        yield from page
        token = page.token
        if not token:
            return


def is_ready(model: Any) -> bool:
    """Return whether a model of MLflow is complete."""
    return str(model.status) == "READY"


def log_models(client: Any, found: Any, run: RunFolder, settings: Settings, *, final: bool) -> None:
    """Log the checkpoints of a run that the settings ask for, and its final model, unless MLflow has them.

    Args:
        client: an MlflowClient.
        found: the MLflow run.
        run: the run's folder.
        settings: of the run.
        final: whether the run is finished.
    """
    full = [r for r in rounds_done(run) if has_server(run, r)]
    rounds = {"none": [], "final": full[-1:], "all": full}[settings.tracking.checkpoints]
    wanted = final and settings.tracking.model
    if not rounds and not wanted:
        return
    models = models_of(client, found)
    for round in rounds:
        known = models.get(f"round-{round:04d}")
        if known is None or not is_ready(known):
            log_checkpoint(client, found, run, settings, round, known)
    if wanted and (MODEL not in models or not is_ready(models[MODEL])):
        log_final_model(client, found, run, settings, models.get(MODEL))


def log_checkpoint(client: Any, found: Any, run: RunFolder, settings: Settings, round: int, known: Any | None) -> None:
    """Log the state of a round.

    Args:
        client, found, run, settings: as in `log_models`.
        round: the round.
        known: the model, if an earlier attempt began it.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        load_state(run, round)  # refuses a damaged state
        method = METHODS[settings.method.name]
        copy_checkpoint(RoundPaths(run.path, round), folder, method, settings.tracking.clients)
        model = known or create(client, found, run, settings, f"round-{round:04d}", CHECKPOINT, round)
        complete(client, found, run, settings, model, round, folder)


def log_final_model(client: Any, found: Any, run: RunFolder, settings: Settings, known: Any | None) -> None:
    """Log the newest state of a run as a pyfunc, unless the method's server holds no model.

    Args:
        client, found, run, settings, known: as in `log_checkpoint`.
    """
    # MLflow warns that `predict` has no annotations, whatever the filters; the signature is given.
    with warnings.catch_warnings(record=True):
        from shoal.review.mlflow_log.pyfunc import save_final_model, servable

    checkpoint = servable(run)
    if checkpoint is None:
        return
    round = checkpoint.server.round
    with tempfile.TemporaryDirectory() as scratch:
        model = known or create(client, found, run, settings, MODEL, FINAL, round)
        folder = save_final_model(run, checkpoint, Path(scratch), model)
        complete(client, found, run, settings, model, round, folder)


def create(client: Any, found: Any, run: RunFolder, settings: Settings, name: str, kind: str, round: int) -> Any:
    """Create a model in MLflow, not complete yet, with parameters that tell it apart from those of other runs."""
    flat = flatten(settings)
    params = {**{key: str(flat[key]) for key in SETTINGS_SHOWN if key in flat}, "round": str(round)}
    about = {"shoal.run": run.name, "shoal.round": str(round)}
    return client.create_logged_model(found.info.experiment_id, name, found.info.run_id, about, params, kind)


def complete(client: Any, found: Any, run: RunFolder, settings: Settings, model: Any, round: int, folder: Path) -> None:
    """Give a model its step, its files and the metrics of its round, and call it ready; repeating changes nothing.

    Args:
        client, found, run, settings: as in `log_models`.
        model: the model in MLflow.
        round: its round.
        folder: its files.
    """
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus, Metric

    outputs = getattr(found.outputs, "model_outputs", [])
    if all(output.model_id != model.model_id for output in outputs):
        client.log_outputs(found.info.run_id, [LoggedModelOutput(model.model_id, round)])
    with longer_timeout(folder):
        client.log_model_artifacts(model.model_id, str(folder))
    data, _ = data_sets(run, settings)
    stamp = round_stamp(run, round)
    linked = (model.model_id, data.name, data.digest)
    metrics = [Metric(name, value, stamp, round, *linked) for name, value in metrics_of(run, round).items()]
    client.log_batch(found.info.run_id, metrics=metrics)
    client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)


def metrics_of(run: RunFolder, round: int) -> dict[str, float]:
    """Return the metrics that judge the state of a round, by their names in MLflow."""
    found = {}
    try:
        record = load_manifest(run, round).record
    except StoreError:
        record = None
    if record is not None:
        found = {metric_name(name): float(value) for name, value in record.metrics.items()}
    judged, quality = quality_metrics(run)
    if judged == round:
        found |= quality
    return {name: value for name, value in found.items() if not math.isnan(value)}


def copy_checkpoint(paths: RoundPaths, folder: Path, method: type[Method], with_clients: bool) -> None:
    """Copy the server state of a round for MLflow; single clients' updates only where enrolment needs them.

    Args:
        paths: of the round.
        folder: takes the copy.
        method: of the run.
        with_clients: whether data of single clients may be logged (`tracking.clients`), the manifest too.
    """
    server = load_server(paths.server)
    logged = method.served(server, clients_told=with_clients)
    if logged.tensors.keys() == server.tensors.keys():
        shutil.copy(paths.server, folder)
    else:
        save_server(folder / SERVER, logged, sync=False)
    if with_clients:
        shutil.copy(paths.manifest, folder)
