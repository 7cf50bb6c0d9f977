"""The stages of dvc.yaml as commands: each reads params.yaml and writes what its stage declares."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True)
Params = Annotated[Path, typer.Option(help="the settings file")]
PARTITION = Path("data/store/partitions/pipeline")
RESULTS = Path("results")


@app.command()
def prepare(params: Params = Path("params.yaml")) -> None:
    """Prepare the data set."""
    from flows.launch import prepare_data
    from tasks.settings import load_settings

    print(prepare_data(load_settings(params)).folder)


@app.command()
def partition(params: Params = Path("params.yaml")) -> None:
    """Make the partition."""
    from data.partition.make import make_partition
    from data.partition.store import write_partition
    from flows.launch import prepare_data
    from tasks.partition_figure import partition_figure
    from tasks.settings import load_settings

    settings = load_settings(params)
    prepared = prepare_data(settings)
    made = make_partition(settings.dataclass("partition"), prepared, limit=settings.data.limit, seed=settings.seed)
    PARTITION.parent.mkdir(parents=True, exist_ok=True)
    write_partition(made, prepared, PARTITION)
    partition_figure(made, prepared, PARTITION / "labels.png")


@app.command()
def federate(params: Params = Path("params.yaml")) -> None:
    """Run the federation, or go on with an unfinished one of the same settings; keep its final state."""
    from flows.cli import carry_out
    from flows.launch import find_like, new_run
    from tasks.checkpoint import SERVER, newest_valid, round_folder
    from tasks.codec import StoreError, write_json
    from tasks.runfolder import FINISHED
    from tasks.settings import load_settings

    settings = load_settings(params)
    unfinished = find_like(settings)
    if unfinished is not None and unfinished.status()["state"] == FINISHED:
        unfinished = None
    run = unfinished or new_run(settings, PARTITION)
    result = carry_out(run)
    checkpoint = newest_valid(run)
    if checkpoint is None:
        raise StoreError(f"run {run.name} left no readable checkpoint")
    folder = RESULTS / "federation"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(round_folder(run, checkpoint.server.round) / SERVER, folder)
    for name in ("settings.yaml", "lineage.json", "rounds.parquet", "clients.parquet"):
        shutil.copy(run.path / name, folder)
    write_json(folder / "result.json", result)


@app.command()
def evaluate() -> None:
    """Judge the final state again; write metrics.json and the curves."""
    from flows import places
    from tasks.evaluate import evaluate_state
    from tasks.runfolder import RunFolder

    run = RunFolder.find(json.loads((RESULTS / "federation" / "result.json").read_text())["run"], places.runs())
    (RESULTS / "metrics.json").write_text(json.dumps(evaluate_state(run), indent=1) + "\n")
    rounds = run.table("rounds")
    kept = [c for c in ("round", "acc", "nmi", "ari", "purity", "bytes_up", "bytes_down", "bytes_d2d") if c in rounds]
    rounds[kept].to_csv(RESULTS / "curves.csv", index=False)


@app.command()
def report() -> None:
    """Write the report of the run."""
    from flows import places
    from tasks.figures import draw_figures
    from tasks.report import write_report
    from tasks.runfolder import RunFolder

    run = RunFolder.find(json.loads((RESULTS / "federation" / "result.json").read_text())["run"], places.runs())
    draw_figures(run)
    shutil.copy(write_report(run), RESULTS / "report.html")
