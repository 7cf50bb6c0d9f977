"""The stages of dvc.yaml as commands: each reads what its stage depends on, and writes what its stage declares.

`federate` keeps a run folder with its last checkpoint in results/federation. `evaluate` and `report` work on a copy of
it and on the data beside it, so that they run in any clone after `dvc pull`, whatever lies under runs/.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from dvc.utils.serialize import parse_yaml

from shoal.cli.console import err, say
from shoal.core.digests import file_digest
from shoal.core.durable import new_version
from shoal.core.errors import DataError, ShoalError
from shoal.data.partition.make import make_partition
from shoal.data.partition.store import write_partition
from shoal.data.partition.table import load_partition
from shoal.data.sets.prepare import is_built_in, prepared_folder, stage_own
from shoal.data.sets.prepare import prepare as prepare_set
from shoal.data.sets.prepared import open_prepared
from shoal.engine.settings import places
from shoal.engine.settings.run_settings import Settings, load_settings
from shoal.engine.store.codec import StoreError, check_digest, read_sealed, write_json, write_sealed
from shoal.engine.store.kept_state import read_state
from shoal.engine.store.relocation import stored_path
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_folder import RunError, RunFolder, write_lineage
from shoal.flows.execute import complete
from shoal.lifecycle.embedding import embed as embed_images
from shoal.lifecycle.preparing import with_known_choices
from shoal.lifecycle.run_views import make_figures
from shoal.lifecycle.starting import new_run, runs_like
from shoal.methods.scores.metrics import shown_in
from shoal.review.pages.report import write_report
from shoal.review.results.result import RunResult, run_result

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Run a stage of dvc.yaml.")
Params = Annotated[Path, typer.Option(help="the settings file")]
PARTITION = Path("data/store/partitions/pipeline")
RESULTS = Path("results")
FEDERATION = RESULTS / "federation"
AGAIN = "make it again with `dvc repro --force federate`, or fetch it with `dvc checkout`"
NOT_KEPT = ("lock", "report.html", "partition", "rounds", "memory", "work")
"""What `federate` does not copy from a run's folder as it is."""
BYTES = ("bytes_up", "bytes_down", "bytes_d2d")


@app.callback()
def _here() -> None:
    """Refuse to write where DVC does not look: below a home folder other than that of dvc.yaml."""
    if places.home().resolve() != Path.cwd().resolve():
        raise ShoalError(
            f"a stage of dvc.yaml writes below its own folder, {Path.cwd()}, but {places.HOME_VARIABLE} names "
            f"{places.home()}: unset {places.HOME_VARIABLE} for `dvc repro`"
        )


@app.command()
def prepare(
    own: Annotated[str | None, typer.Argument(help="the set in data/store/own that the stage depends on")] = None,
    params: Params = Path("params.yaml"),
) -> None:
    """Prepare the data set again, or copy a set of the user's own to where the other stages look for it."""
    data = _settings(params).data
    check_name(params, data.name)
    check_dependency(params, data.name, own)
    if not is_built_in(data.name):
        print(stage_own(places.store(), data.name))
        return
    prepared = prepare_set(data.name, places.store(), mirror=places.mirror(), force=True, options=data.options)
    if prepared.manifest.name != data.name:
        raise DataError(
            f"dvc.yaml names the folder of a set after data.name: in {params} write data.name: "
            f"{prepared.manifest.name}, which contains the options, instead of {data.name} and data.options"
        )
    print(prepared.folder)


@app.command()
def embed(images: str, encoder: Annotated[str, typer.Option()], name: Annotated[str, typer.Option()]) -> None:
    """Make vectors of the images of a set of the user's own: a stage that docs/encoders.md shows."""
    print(embed_images(images, encoder, name).message)


def check_name(params: Path, name: str) -> None:
    """Refuse a data set's name that DVC reads as another one: dvc.yaml names the folder of a set after it.

    Raises:
        DataError: says to write it in quotes.
    """
    data = (parse_yaml(params.read_text(encoding="utf-8"), str(params)) or {}).get("data")
    value = data.get("name", name) if isinstance(data, dict) else name
    read = str(value)
    if isinstance(value, bool):
        read = read.lower()
    if read != name:
        raise DataError(f"{params}: DVC reads data.name as {read} and not as {name}: write it in quotes, '{name}'")


def check_dependency(params: Path, name: str, own: str | None) -> None:
    """Refuse a set of the user's own that the stage does not depend on: its changes would not repeat the pipeline.

    Args:
        params: the settings file, for the error.
        name: of the data set.
        own: what dvc.yaml names; None in a dvc.yaml that depends on all sets of the user's own.

    Raises:
        DataError: says what to write in dvc.yaml.
    """
    if own not in (None, name) and not is_built_in(name):
        raise DataError(
            f"{params} names your set {name!r}, and dvc.yaml depends on another one: write own: {name} in the vars of "
            "dvc.yaml"
        )


@app.command()
def partition(params: Params = Path("params.yaml")) -> None:
    """Make the partition."""
    settings = _settings(params)
    # In the folder that the stages declare, whatever other folders hold a set of this name.
    prepared = open_prepared(prepared_folder(places.store(), settings.data.name))
    made = make_partition(settings.partition, prepared, limit=settings.data.limit, seed=settings.seed)
    PARTITION.parent.mkdir(parents=True, exist_ok=True)
    write_partition(made, prepared, PARTITION)


@app.command()
def federate(params: Params = Path("params.yaml")) -> None:
    """Run the federation, or resume an unfinished one with the same settings and data; keep its final state."""
    settings = _settings(params)
    alike = runs_like(settings, data=load_partition(PARTITION).data_digest)
    run = next((run for run in alike if not run.is_finished()), None)
    if run is None:
        run = new_run(settings, PARTITION)
        # The next `dvc repro` may replace the partition, and the run must stay readable.
        shutil.copytree(PARTITION, run.path / "partition")
        lineage = run.lineage()
        run.set_lineage(partition=replace(lineage.partition, folder=stored_path(run.path / "partition")))
    keep(run, complete(run, err), FEDERATION)


@app.command()
def evaluate() -> None:
    """Write metrics.json, the scores of the final state, and curves.csv, the scores over rounds."""
    with kept_run() as run:
        result = run_result(run)
        write_json(RESULTS / "metrics.json", {**result.metrics, **result.quality})
        rounds = run.table("rounds")
    # A score that the method, or a set without labels, does not have is an empty column: plots name their columns.
    curves = [metric.name for metric in shown_in("curves")]
    rounds.reindex(columns=["round", *curves, *BYTES]).to_csv(RESULTS / "curves.csv", index=False)


@app.command()
def report() -> None:
    """Write the report of the run; figures are drawn again if the code that draws them has changed."""
    with kept_run() as run:
        make_figures(run)
        shutil.copy(write_report(run, in_run_folder=False), RESULTS / "report.html")
        verdict = run_result(run).verdict
    if verdict is not None:
        say(f"verdict: {verdict.word}. {verdict.reason}")
    say(f"report: {RESULTS / 'report.html'}")


def _settings(params: Path) -> Settings:

    return with_known_choices(load_settings(params))


def keep(run: RunFolder, result: RunResult, folder: Path) -> None:
    """Copy the part of a run that later stages need: tables, figures, and the last round with its clients' memories.

    The copy names the folders of data and partition that the stages declare, relative to the home folder. Its
    result.json has a digest of each file.

    Args:
        run: the finished run.
        result: of the run.
        folder: of the copy, which replaces an older one.
    """
    checkpoint = read_state(run)
    round = checkpoint.server.round
    with new_version(folder) as scratch:
        shutil.copytree(run.path, scratch, ignore=shutil.ignore_patterns(*NOT_KEPT), dirs_exist_ok=True)
        shutil.copytree(RoundPaths(run.path, round).checkpoint, scratch / "rounds" / f"{round:04d}")
        for name in checkpoint.memory_index.files():
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(run.path / name, scratch / name)
        lineage = run.lineage()
        kept = lineage.with_folders(f"data/store/prepared/{lineage.data.name}", PARTITION.as_posix())
        write_lineage(scratch / "lineage.json", kept)
        files = sorted(path for path in scratch.rglob("*") if path.is_file())
        digests = {path.relative_to(scratch).as_posix(): file_digest(path) for path in files}
        write_sealed(scratch / "result.json", {**result.to_json(), "run": run.name, "files": digests})


def kept_name() -> str:
    """Return the name of the run that `federate` kept, once all its files are as they were kept.

    Raises:
        StoreError: a file is damaged or missing, or another one lies in its place.
    """
    path = FEDERATION / "result.json"
    result = read_sealed(path)
    if not {"run", "files"} <= result.keys():
        raise StoreError(f"{path} is not the result of a run: {AGAIN}")
    for file, sha256 in result["files"].items():
        try:
            check_digest(FEDERATION / file, sha256)
        except StoreError as error:
            raise StoreError(f"{error}: {AGAIN}") from None
    return Path(result["run"]).name


@contextlib.contextmanager
def kept_run() -> Iterator[RunFolder]:
    """Open a writable copy of the run that `federate` kept, with its data and partition below this folder.

    Raises:
        RunError: `federate` has kept no run.
    """
    if not (FEDERATION / "result.json").is_file():
        raise RunError(
            f"there is no run in {FEDERATION}: make it with `dvc repro federate`, or fetch it with `dvc pull`"
        )
    with tempfile.TemporaryDirectory(prefix="shoal-stage-") as scratch:
        run = RunFolder(Path(scratch) / kept_name())
        shutil.copytree(FEDERATION, run.path)
        for folder in (run.rounds, run.memory, run.figures):
            folder.mkdir(exist_ok=True)
        lineage = run.lineage()
        data = prepared_folder(places.store(), lineage.data.name).resolve()
        write_lineage(run.path / "lineage.json", lineage.with_folders(str(data), str(PARTITION.resolve())))
        yield run
