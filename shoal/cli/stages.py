"""The stages of dvc.yaml as commands: each reads what its stage depends on, and writes what its stage declares.

What `federate` keeps in results/federation is a run folder with its last checkpoint. `evaluate` and `report` work on a
copy of it and on the data beside it, so that they run in any clone after `dvc pull`, whatever lies under runs/.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from shoal.data.prepared import Prepared
    from shoal.engine.settings.run_settings import Settings
    from shoal.engine.store.run_folder import RunFolder

app = typer.Typer(no_args_is_help=True)
Params = Annotated[Path, typer.Option(help="the settings file")]
PARTITION = Path("data/store/partitions/pipeline")
RESULTS = Path("results")
FEDERATION = RESULTS / "federation"
BYTES = ("bytes_up", "bytes_down", "bytes_d2d")


@app.callback()
def _here() -> None:
    """Refuse to write where DVC does not look: below a home folder that is not the one of dvc.yaml."""
    from shoal.core.errors import ShoalError
    from shoal.engine.settings import places

    if places.home().resolve() != Path.cwd().resolve():
        raise ShoalError(
            f"a stage of dvc.yaml writes below its own folder, {Path.cwd()}, and {places.HOME_VARIABLE} names "
            f"{places.home()}: unset {places.HOME_VARIABLE} for `dvc repro`"
        )


@app.command()
def prepare(params: Params = Path("params.yaml")) -> None:
    """Prepare the data set anew, or put a set of the user's own where the other stages look for it."""
    from shoal.core.errors import DataError
    from shoal.data.prepare import is_built_in, stage_own
    from shoal.engine.settings import places
    from shoal.engine.store.represent import PREFIX
    from shoal.lifecycle.progress import prepare_shown

    data = _settings(params).data
    check_name(params, data.name)
    if not is_built_in(data.name) and not data.name.startswith(PREFIX):
        print(stage_own(places.store(), data.name))
        return
    prepared = prepare_shown(data.name, force=True, options=data.options or None)
    if prepared.manifest.name != data.name:
        raise DataError(
            f"dvc.yaml names the folder of a set after data.name: in {params} write data.name as "
            f"{prepared.manifest.name}, with its options, instead of {data.name} and data.options"
        )
    print(prepared.folder)


def check_name(params: Path, name: str) -> None:
    """Refuse a name that DVC reads as another one: dvc.yaml names the folder of a set after it.

    Raises:
        DataError: says to write it in quotes.
    """
    from dvc.utils.serialize import parse_yaml

    from shoal.core.errors import DataError

    data = (parse_yaml(params.read_text(encoding="utf-8"), str(params)) or {}).get("data")
    given = data.get("name", name) if isinstance(data, dict) else name
    read = str(given).lower() if isinstance(given, bool) else str(given)
    if read != name:
        raise DataError(f"{params}: DVC reads data.name as {read} and not as {name}: write it in quotes, '{name}'")


@app.command()
def partition(params: Params = Path("params.yaml")) -> None:
    """Make the partition."""
    from shoal.data.partition.make import make_partition
    from shoal.data.partition.store import write_partition
    from shoal.review.pages.partition_figure import partition_figure

    settings = _settings(params)
    prepared = _data(settings)
    made = make_partition(settings.dataclass("partition"), prepared, limit=settings.data.limit, seed=settings.seed)
    PARTITION.parent.mkdir(parents=True, exist_ok=True)
    write_partition(made, prepared, PARTITION)
    partition_figure(made, prepared, PARTITION / "labels.png")


@app.command()
def federate(params: Params = Path("params.yaml")) -> None:
    """Run the federation, or go on with an unfinished one of the same settings; keep its final state."""
    from shoal.cli.console import execute
    from shoal.engine.store.codec import write_sealed
    from shoal.engine.store.kept_state import read_state
    from shoal.engine.store.relocation import stored_path
    from shoal.lifecycle.starting import find_like, new_run

    settings = _settings(params)
    unfinished = find_like(settings)
    if unfinished is not None and unfinished.is_finished():
        unfinished = None
    run = unfinished or new_run(settings, PARTITION)
    if unfinished is None:
        # The next `dvc repro` may put another partition in that place, and the run shall stay readable.
        shutil.copytree(PARTITION, run.path / "partition")
        lineage = run.lineage()
        run.set_lineage(partition=replace(lineage.partition, folder=stored_path(run.path / "partition")))
    result = execute(run)
    checkpoint = read_state(run)
    keep(run, checkpoint.server.round, checkpoint.memory_index.files(), FEDERATION)
    write_sealed(FEDERATION / "result.json", {**result.to_json(), "run": run.name})


@app.command()
def evaluate() -> None:
    """Write metrics.json, the scores of the final state, and the curves, as the federation found them."""
    from shoal.engine.store.codec import write_json
    from shoal.methods.scores.metrics import shown_in
    from shoal.review.results.result import run_result

    with kept_run() as run:
        result = run_result(run)
        write_json(RESULTS / "metrics.json", {**result.metrics, **result.quality})
        rounds = run.table("rounds")
    # A score that the method or a set without labels does not have is an empty column: plots ask for columns by name.
    curves = [metric.name for metric in shown_in("curves")]
    rounds.reindex(columns=["round", *curves, *BYTES]).to_csv(RESULTS / "curves.csv", index=False)


@app.command()
def report() -> None:
    """Write the report of the run; figures are drawn again where the code that draws them is other code now."""
    from shoal.lifecycle.run_views import make_figures
    from shoal.review.pages.report import write_report

    with kept_run() as run:
        make_figures(run)
        shutil.copy(write_report(run, beside=False), RESULTS / "report.html")


def _settings(params: Path) -> Settings:
    from shoal.engine.settings.run_settings import load_settings
    from shoal.lifecycle.preparing import settled

    return settled(load_settings(params))


def _data(settings: Settings) -> Prepared:
    """The data set in the folder that the stages declare, wherever else there is one of this name."""
    from shoal.data.prepare import prepared_folder
    from shoal.data.prepared import open_prepared
    from shoal.engine.settings import places

    return open_prepared(prepared_folder(places.store(), settings.data.name))


def keep(run: RunFolder, round: int, memories: set[str], folder: Path) -> None:
    """Copy what can be computed from in a run: its tables, figures, and one round with the memories that belong to it.

    The copy names data and partition where the stages declare them, relative to the home folder: the same anywhere.

    Args:
        run: the run.
        round: the round whose checkpoint is kept.
        memories: files of clients that the checkpoint names, relative to the run.
        folder: an older copy there is replaced.
    """
    from shoal.core.durable import new_version
    from shoal.engine.store.round_paths import RoundPaths
    from shoal.engine.store.run_folder import write_lineage

    with new_version(folder) as scratch:
        for path in run.path.iterdir():
            if path.is_file() and path.name not in ("lock", "report.html"):
                shutil.copy(path, scratch)
        if run.figures.is_dir():
            shutil.copytree(run.figures, scratch / run.figures.name)
        shutil.copytree(RoundPaths(run.path, round).checkpoint, scratch / "rounds" / f"{round:04d}")
        for name in memories:
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(run.path / name, scratch / name)
        lineage = run.lineage()
        kept = lineage.with_folders(f"data/store/prepared/{lineage.data.name}", PARTITION.as_posix())
        write_lineage(scratch / "lineage.json", kept)


@contextlib.contextmanager
def kept_run() -> Iterator[RunFolder]:
    """The run that `federate` kept, in a copy to write in, with its data and partition found below this folder.

    Raises:
        RunError: there is none.
    """
    from shoal.data.prepare import prepared_folder
    from shoal.engine.settings import places
    from shoal.engine.store.codec import read_sealed
    from shoal.engine.store.run_folder import RunError, RunFolder, write_lineage

    if not (FEDERATION / "result.json").is_file():
        raise RunError(f"there is no run in {FEDERATION}: run `dvc repro federate`, or `dvc pull`")
    with tempfile.TemporaryDirectory(prefix="shoal-stage-") as scratch:
        result: dict[str, Any] = read_sealed(FEDERATION / "result.json")
        run = RunFolder(Path(scratch) / Path(result["run"]).name)
        shutil.copytree(FEDERATION, run.path)
        for folder in (run.rounds, run.memory, run.figures):
            folder.mkdir(exist_ok=True)
        lineage = run.lineage()
        data = prepared_folder(places.store(), lineage.data.name).resolve()
        write_lineage(run.path / "lineage.json", lineage.with_folders(str(data), str(PARTITION.resolve())))
        yield run
