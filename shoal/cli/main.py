"""The command line, installed as `shoal`."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from shoal.cli.console import err, execute, out, show_result, show_study
from shoal.cli.groups import Commands
from shoal.cli.init import init
from shoal.cli.leaving import leave
from shoal.cli.log import log
from shoal.cli.memory import is_out_of_memory, out_of_memory
from shoal.core.errors import ShoalError
from shoal.engine.settings.addresses import masked

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Federated clustering and representation learning without labels, as a tracked pipeline.",
)

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""Of an OSError: the disk is full, or its place is not to be written."""

Json = Annotated[bool, typer.Option("--json", help="only JSON on standard output")]
Round = Annotated[
    int | None, typer.Option(min=1, help="use the state after this round, where it is kept; by default the last")
]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="override a setting; repeatable")]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"shoal {version('shoal')}")
        raise typer.Exit


@app.callback()
def _main(
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="show the version and exit", is_eager=True, callback=_version)
    ] = False,
) -> None:
    if debug:
        os.environ["SHOAL_DEBUG"] = "1"


@app.command(epilog="Example: shoal run --set method.name=fedcc --set data.name=mnist --set data.limit=20000")
def run(
    settings: Annotated[Path | None, typer.Argument(help="a settings file (YAML); every key has a default")] = None,
    overrides: Set = None,
    resume: Annotated[str | None, typer.Option(help="go on with this run: its folder, name, or latest")] = None,
    partition: Annotated[Path | None, typer.Option(help="use this stored partition", hidden=True)] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="only say what it would do, how many bytes it would send and how long")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run one federation, from data to reviewed result; prints the run's folder and final metrics."""
    if resume is not None and (settings is not None or overrides):
        raise ShoalError("--resume goes on with the settings the run was started with: give no others")
    if settings is not None and "=" in settings.name and not settings.exists():
        raise ShoalError(f"there is no settings file {settings}: to override a setting write --set {settings}")
    from shoal.engine.workers.worker_processes import warm

    if not dry_run:
        warm()
    from shoal.engine.settings.run_settings import load_settings

    wanted = load_settings(settings, overrides or ()) if resume is None else None
    if dry_run:
        from shoal.cli.plan import plan_command

        plan_command(out, wanted, partition, as_json)
        return
    # After the settings, which may be wrong: the rest takes as long again to import.
    from shoal.engine.settings import places
    from shoal.engine.store.run_folder import RunFolder
    from shoal.lifecycle.starting import new_run

    folder = new_run(wanted, partition) if wanted is not None else RunFolder.find(resume or "", places.runs())
    err.print(f"run [bold]{folder.path}[/]", highlight=False)
    result = execute(folder)
    if as_json:
        print(json.dumps(result.to_json()))
        return
    show_result(result)


@app.command(epilog="Example: shoal study fedpnp-table1 --scale cpu --seeds 3")
def study(
    name: Annotated[str, typer.Argument(help="see shoal/studies/; `shoal study list` names them")],
    scale: Annotated[str, typer.Option(help="cpu: fits two cores; paper: as in the paper")] = "cpu",
    seeds: Annotated[int | None, typer.Option(min=1, help="runs a cell; by default what the study says")] = None,
    row: Annotated[list[str] | None, typer.Option(help="key or caption of the only row to compute; repeatable")] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="key or caption of the only column to compute; repeatable")
    ] = None,
    gather: Annotated[
        bool, typer.Option("--gather", help="run nothing; put together the runs that are finished")
    ] = False,
    overrides: Set = None,
    as_json: Json = False,
) -> None:
    """Reproduce one table or figure of a paper: ours beside the paper's, and its claims with verdicts."""
    from shoal.engine.settings.run_settings import nested
    from shoal.lifecycle.progress import progress
    from shoal.studies.definition import load_study, study_names
    from shoal.studies.runner import run_study

    if name == "list":
        for each in study_names():
            out.print(f"{each}: {load_study(each).title}", highlight=False)
        return
    with progress(err) as observe:

        def watch(label: str, folder: Any) -> Any:
            err.print(label, highlight=False)
            return observe

        wanted = nested(overrides or ())
        result = run_study(name, scale, seeds, wanted, watch, rows=row or (), columns=column or (), gather=gather)
    if as_json:
        print(json.dumps(result.to_json()))
        return
    show_study(result)


@app.command(epilog="Example: shoal search search.yaml --trials 50")
def search(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="a search file, see docs/search-over-settings.md")],
    trials: Annotated[
        int | None, typer.Option(min=1, help="how many trials, those that are there counted; by default as in the file")
    ] = None,
    as_json: Json = False,
) -> None:
    """Search over settings; the same command again goes on. By default no label is used; a score like acc uses them."""
    from shoal.engine.workers.worker_processes import warm

    warm()
    from shoal.cli.search import search_command

    search_command(out, err, path, trials, as_json)


@app.command(epilog="Example: shoal claims --keep cfl-toy-paths --write")
def claims(
    names: Annotated[list[str] | None, typer.Argument(metavar="STUDY...", help="studies; by default all")] = None,
    keep: Annotated[str, typer.Option(metavar="STUDY", help="keep this study's newest result in docs/results")] = "",
    scale: Annotated[str, typer.Option(help="of the result to keep")] = "cpu",
    write: Annotated[bool, typer.Option("--write", help="make docs/results.md and its pages anew")] = False,
    docs: Annotated[
        Path | None, typer.Option(help="folder of the kept results and pages; by default this installation's docs")
    ] = None,
    as_json: Json = False,
) -> None:
    """The papers' claims with the verdicts of the results that are kept."""
    from shoal.cli.claims import claims_command

    claims_command(out, err, names or (), keep, scale, write, as_json, docs)


@app.command(epilog="Example: shoal enroll latest --client mnist-late --give best --out model.safetensors")
def enroll(
    name: Annotated[str, typer.Argument(metavar="RUN", help="a run of cfl: folder, name, latest")],
    client: Annotated[
        str, typer.Option(help="the new client's data: a prepared set, or PARTITION_FOLDER:K for its client K")
    ],
    give: Annotated[str, typer.Option(help="which model: leaf, root, best (by its validation samples), or a node")] = (
        "leaf"
    ),
    validation: Annotated[
        float, typer.Option(min=0, max=0.9, help="share of a prepared set held out to choose the best model by")
    ] = 0.2,
    limit: Annotated[int | None, typer.Option(min=2, help="samples of a prepared set to use")] = None,
    out_file: Annotated[Path | None, typer.Option("--out", help="where the model goes")] = None,
    round: Round = None,
    as_json: Json = False,
) -> None:
    """Find a new client's place in the cluster tree of a CFL run, and write its model."""
    from shoal.cli.enroll import enroll_command

    enroll_command(out, name, client, give, validation, limit, out_file, as_json, round)


@app.command(epilog="Example: shoal predict latest new-images/ --out clusters.csv --sheet clusters.png")
def predict(
    name: Annotated[str, typer.Argument(metavar="RUN", help="a finished run: folder, name, latest")],
    source: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="images at any depth; of a run on vectors a Parquet or CSV table")
    ],
    out_file: Annotated[Path | None, typer.Option("--out", help="where the table goes: .parquet or .csv")] = None,
    sheet: Annotated[Path | None, typer.Option(help="where a contact sheet goes: .png")] = None,
    on_odd: Annotated[
        str, typer.Option(help="images of another size: skip, resize, or as-set: resize where the set was made so")
    ] = "as-set",
    embedding: Annotated[
        str,
        typer.Option(help="add what the model makes of each sample: columns embedding_0 to embedding_N, or one list"),
    ] = "none",
    round: Round = None,
    as_json: Json = False,
) -> None:
    """Give new images, or rows of a table, the clusters that a run found."""
    from shoal.cli.predict import predict_command

    predict_command(out, err, name, source, out_file, sheet, on_odd, embedding, as_json, round)


@app.command(epilog="Example: shoal explain latest --cluster 3 --out sheet.png")
def explain(
    name: Annotated[str, typer.Argument(metavar="RUN", help="a finished run: folder, name, latest")],
    cluster: Annotated[int, typer.Option(min=0, help="which cluster; its number in the run's report")],
    sheet: Annotated[
        Path | None, typer.Option("--out", help="of images: where the contact sheet goes, .png; a row a client")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show one cluster over the clients: whose samples are in it, how surely, and which they are."""
    from shoal.cli.explain import explain_command

    explain_command(out, name, cluster, sheet, as_json)


@app.command(epilog="Example: shoal compare 20260131-120000_fedpnp_mnist_1a2b3c4d latest")
def compare(
    names: Annotated[list[str] | None, typer.Argument(metavar="RUN...", help="runs: folders, names, latest")] = None,
    study: Annotated[str | None, typer.Option(help="all runs of this study that are there")] = None,
    scale: Annotated[str, typer.Option(help="scale of the study")] = "cpu",
    rate: Annotated[
        float | None,
        typer.Option(
            help="bits per second of every link: adds the delay of messages at that rate and of choosing samples"
        ),
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="also write a page: numbers, curves, what differs")
    ] = None,
    log: Annotated[
        str | None, typer.Option(metavar="NAME", help="also log it to MLflow: a run of this name, with the runs nested")
    ] = None,
    as_json: Json = False,
) -> None:
    """A table of runs side by side."""
    from shoal.cli.compare import compare_command

    compare_command(out, names, study, scale, rate, page, as_json, log=log)


@app.command(epilog="Example: shoal runs --method fedpnp --state finished")
def runs(
    method: Annotated[str | None, typer.Option(help="only runs of this method")] = None,
    data: Annotated[str | None, typer.Option(help="only runs on this data set")] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(help="only running, finished, interrupted, stopped, failed or unreadable; repeatable"),
    ] = None,
    last: Annotated[int | None, typer.Option(min=1, help="only so many, the newest")] = None,
    remove: Annotated[
        list[str] | None, typer.Option(metavar="RUN", help="remove this run: folder, name, latest; repeatable")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="with --remove: do not ask")] = False,
    as_json: Json = False,
) -> None:
    """The runs that are there, the newest first; or remove some."""
    from shoal.cli.runs import remove_command, runs_command

    if remove:
        remove_command(out, err, remove, sure=yes)
    else:
        runs_command(out, method, data, state or (), last, as_json)


@app.command(name="open", epilog="Example: shoal open latest")
def open_run(
    name: Annotated[str, typer.Argument(metavar="RUN", help="a run: folder, name, latest")] = "latest",
    show: Annotated[
        bool, typer.Option("--browser/--no-browser", help="open a browser, or only say where it is")
    ] = True,
) -> None:
    """Open the report of a run."""
    from shoal.cli.runs import open_command

    open_command(out, name, show=show)


@app.command(epilog="Example: shoal serve --port 4200 --mlflow-port 5000")
def serve(
    port: Annotated[int, typer.Option(help="of the Prefect server")] = 4200,
    mlflow_port: Annotated[int, typer.Option(help="of the MLflow page")] = 5000,
    host: Annotated[
        str, typer.Option(help="address to listen on; others than 127.0.0.1 let other hosts in: see docs/operations.md")
    ] = "127.0.0.1",
    reset: Annotated[
        bool,
        typer.Option("--reset-schedules", help="take schedules and parameters from prefect.yaml again"),
    ] = False,
) -> None:
    """Prefect server, a worker, the deployments of prefect.yaml and the MLflow page, until Ctrl-C."""
    from shoal.serving.serve import serve as start

    start(port, mlflow_port, out, reset=reset, host=host)


@app.command(epilog="Example: shoal doctor --json")
def doctor(as_json: Json = False) -> None:
    """What is installed, which devices, which stores answer, what is wrong and how to mend it."""
    from shoal.cli.doctor import doctor_command

    if not doctor_command(out, as_json):
        raise typer.Exit(1)


app.command(epilog="Example: MLFLOW_TRACKING_URI=https://mlflow.example.org shoal log --all")(log)


app.command(epilog="Example: shoal init trial && cd trial && shoal run params.yaml")(init)


@app.command(hidden=True)
def demo() -> None:
    """What five clients find together in scikit-learn's digits, and alone: what `make demo` runs."""
    from shoal.cli.demo import demo as start

    start(out, err)


app.add_typer(typer.Typer(), name="data", help="Data sets and partitions: list, prepare, partition, show, add.")
app.add_typer(typer.Typer(), name="stage", hidden=True, help="The stages of dvc.yaml.")


def main() -> None:
    """Run the command line; one clear message and a non-zero exit code on failure."""
    # A polite stop is an interruption too; and a shell may have started us with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app(standalone_mode=True)
    except ShoalError as error:
        if os.environ.get("SHOAL_DEBUG"):
            raise
        err.print("[red]error[/]", Text(masked(str(error))), soft_wrap=True)
        sys.exit(1)
    except OSError as error:
        # A folder or disk that cannot be written, met where nobody said it better; anything else is a fault of ours.
        if not os.environ.get("SHOAL_DEBUG") and is_out_of_memory(error):
            print("error", out_of_memory(error), file=sys.stderr)
            sys.exit(1)
        if os.environ.get("SHOAL_DEBUG") or error.errno not in DISK:
            raise
        where = f"{error.filename}: " if error.filename else ""
        err.print(
            "[red]error[/]",
            Text(f"{where}{error.strerror}; free some space, or set SHOAL_HOME to a folder that you may write to"),
            soft_wrap=True,
        )
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if os.environ.get("SHOAL_DEBUG") or not is_out_of_memory(error):
            raise
        print("error", out_of_memory(error), file=sys.stderr)
        sys.exit(1)


def entry() -> None:
    """The `shoal` command: `main`, then out at once."""
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    leave(code)


if __name__ == "__main__":
    entry()
