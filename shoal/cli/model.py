"""`shoal model`: the models of runs in MLflow, and their champions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.console import out, say, table_of
from shoal.cli.options import FinishedRun, Json, OutFile, Why
from shoal.core.errors import ShoalError
from shoal.engine.settings import places

if TYPE_CHECKING:
    from shoal.engine.store.run_folder import RunFolder

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Promote, roll back and log models, and enroll a client in one."
)


@app.command(epilog='Example: shoal model promote 20260131-120000_fedpnp_mnist_1a2b3c4d --why "fewer mixed clusters"')
def promote(name: FinishedRun, why: Why = "") -> None:
    """Make the model of a run the champion of its name in MLflow: approve a challenger of a night.

    MLflow and the run keep who did so and why; `shoal model rollback` takes it back.
    """
    from shoal.engine.store.run_folder import RunFolder
    from shoal.review.served.promotion import approve

    moved = approve(RunFolder.find(name, unfinished=False), why)
    already = " already" if moved.move is None else ""
    say(f"models:/{moved.name}/{moved.version} of run {moved.run} is the champion{already}")
    if moved.move is not None and moved.before is not None:
        say(f"before it was version {moved.before}; `shoal model rollback {moved.name}` returns to it")


@app.command(epilog='Example: shoal model rollback shoal-fedpnp-mnist --why "cluster 4 lost its lesions"')
def rollback(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="a model in MLflow; by default the only one"),
    ] = None,
    why: Why = "",
) -> None:
    """Make the champion before the present one the champion again.

    Promotions, approvals and changes on MLflow's page are taken back one by one; MLflow keeps who did so and why.
    """
    from shoal.review.served.promotion import roll_back

    moved = roll_back(name, places.runs(), why)
    say(f"models:/{moved.name}/{moved.version} of run {moved.run} is the champion again")
    say(f"before it was version {moved.before}; `shoal model promote RUN` brings back the model of a run")


@app.command(epilog="Example: MLFLOW_TRACKING_URI=https://mlflow.example.org shoal model log")
def log(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN...",
            help="runs: their folders, their names, or latest, the last finished one; by default every finished run",
        ),
    ] = None,
) -> None:
    """Log finished runs to MLflow again: after it was out of reach, or to the new store of MLFLOW_TRACKING_URI.

    MLflow keeps what it already has. `shoal run --resume` finishes an unfinished run, and logs it.
    """
    from shoal.engine.store.run_folder import RunFolder
    from shoal.engine.store.status import FINISHED
    from shoal.review.results.runs import UNREADABLE, listed_runs

    # Unreadable runs are named too: they may be finished.
    wanted = names or [run.name for run in reversed(listed_runs(places.runs(), states=(FINISHED, UNREADABLE)))]
    missing = 0
    for run in [RunFolder.find(name, unfinished=False) for name in wanted]:
        try:
            outcome = log_one(run)
        except ShoalError as error:
            outcome = f"not logged: {error}"
            missing += 1
        say(f"{run.name}: {outcome}")
    if missing:
        raise ShoalError(f"MLflow lacks {missing} of them: the same command logs what is missing")


def log_one(run: RunFolder) -> str:
    """Log one run, and return what became of it, in words.

    Raises:
        ShoalError: a file of the run is damaged, or MLflow lacks something of the run.
    """
    from shoal.engine.store.status import FINISHED
    from shoal.review.mlflow_log.tracking import check_whole, reason_of, register_model, shown_uri, sync

    settings = run.settings()
    if run.status().state != FINISHED:
        return "not finished: resume it with `shoal run --resume`"
    if not settings.tracking.mlflow:
        return "not logged: its setting tracking.mlflow is false"
    check_whole(run)
    with run.locked():
        try:
            sync(run, settings)
        except Exception as error:  # whatever MLflow raises
            raise ShoalError(f"MLflow at {shown_uri(settings)}: {reason_of(error, settings)}") from error
        version = register_model(run)
    named = f", version {version} of its model" if version else ""
    return f"logged to {shown_uri(settings)}{named}"


@app.command(epilog="Example: shoal model enroll latest --client mnist-late --out model.safetensors")
def enroll(
    name: Annotated[
        str, typer.Argument(metavar="RUN", help="a run of cfl: its folder, its name, or latest, the last finished one")
    ],
    client: Annotated[
        str, typer.Option(help="data of the new client: a prepared set, or PARTITION_FOLDER:K for its client K")
    ],
    out_file: OutFile = None,
    as_json: Json = False,
) -> None:
    """Find the cluster of a new client in a CFL run, and write its model."""
    from shoal.core.records import record_to_json
    from shoal.engine.store.run_folder import RunFolder
    from shoal.review.served.enroll import enroll as find_place
    from shoal.review.served.enroll import new_client

    run = RunFolder.find(name, unfinished=False)
    data = new_client(run, client, places.store(), places.mirror())
    place = find_place(run, data, out_file)
    if as_json:
        print(json.dumps(record_to_json(place)))
        return
    rows = []
    for step in place.path:
        similarities = ", ".join(f"{node}: {value:+.3f}" for node, value in step.similarities.items())
        rows.append((step.node, similarities, step.accuracy))
    out.print(table_of(("node", "nearest update of each branch", "validation accuracy"), rows))
    say(f"cluster {place.cluster} with clients {', '.join(map(str, place.clients))}")
    say(f"its model: {place.model}")
