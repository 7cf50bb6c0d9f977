"""New files of a watched folder, assigned to the clusters of the champion: in batches, each file once.

    results/assigned/MODEL/0001/    clusters.csv (a row a sample), sheet.png, batch.json (files and digests), logged

A batch is written beside its place and renamed into it, and MLflow is told afterwards. So a process that is killed
leaves a whole batch or none, and batch.json names exactly the files that were assigned. `logged` says that MLflow has
the batch. A full disk leaves no batch, and a damaged file of a batch stops the assignment: no file is silently skipped.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from shoal.core.digests import file_digest
from shoal.core.durable import lock_if_free, new_version
from shoal.core.errors import DataError, ShoalError, short_text
from shoal.core.records import BadRecord, record_from_json, record_to_json
from shoal.data.intake.array_files import is_array_file
from shoal.data.intake.folder_files import CANNOT_BE_LISTED, files_below, find_images
from shoal.data.intake.images import RejectedFile
from shoal.data.intake.tables import SUFFIXES
from shoal.data.sets.intake_notes import Intake
from shoal.engine.settings import places
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.codec import StoreError, read_sealed, write_sealed
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.assign_settings import AssignSettings
from shoal.lifecycle.taking_in import watched_folder
from shoal.review.mlflow_log.overviews import log_assignment
from shoal.review.results.stable_names import NAME
from shoal.review.results.summary import counted
from shoal.review.served.predict import PredictedClusters, Predictor, no_samples, predict, predicted_sheet, write_table
from shoal.review.served.promotion import champion_with_version

TABLE = "clusters.csv"
SHEET = "sheet.png"
FACTS = "batch.json"
LOGGED = "logged"
"""Files of a batch; the last one is there once MLflow has the others."""
FIRST = ["file", NAME, "confidence"]
"""The first columns of the table of a batch; without a stable name of its cluster a sample has the cluster's number."""


class AssignError(ShoalError):
    """New files cannot be assigned."""


@dataclass(frozen=True)
class FileFacts:
    """A file as it was when it was assigned or left out.

    Args:
        sha256: of its bytes.
        left_out: why it has no cluster; empty where it has one.
    """

    sha256: str
    left_out: str = ""


@dataclass(frozen=True)
class Batch:
    """The content of batch.json.

    Args:
        model: the registered name.
        version: the version that was the champion.
        run: its run.
        files: facts by path below the watched folder.
    """

    model: str
    version: str
    run: str
    files: Mapping[str, FileFacts]


@dataclass(frozen=True)
class Assignment:
    """The result of an assignment of new files.

    Args:
        message: what became of the files, in a sentence.
        samples: number of samples that got a cluster.
        folder: of the batch; empty where nothing was new.
        left_out: files that cannot be used, with reasons.
        logged: whether MLflow has all batches.
    """

    message: str
    samples: int
    folder: str
    left_out: tuple[str, ...] = ()
    logged: bool = True


def assign_new(settings: AssignSettings) -> Assignment:
    """Assign the files of the watched folder that are new or were changed, and log what MLflow does not have yet.

    Raises:
        AssignError: no folder is named, there is no champion, or another process assigns. PromotionError: MLflow does
            not answer. DataError: the folder does not exist.
    """
    if settings.watch is None:
        raise AssignError("assignment.watch names no folder: set it to the folder with the new files")
    watch = watched_folder(settings.watch, "and put new files into it")
    folder = places.home() / Path(settings.into).expanduser() / settings.model
    with claimed_batches(folder):
        # Settings of a run that would register under the model's name, in the same MLflow.
        registry = make_settings({"tracking": {"register_as": settings.model, "uri": settings.uri}})
        run, version = champion_with_version(registry, places.runs())
        if run is None or version is None:
            raise AssignError(
                f"MLflow has no champion of {settings.model!r}: train a model that registers under this name, or set "
                "assignment.model to a registered name"
            )
        images = Predictor(run).takes_images(watch)
        known = {name: facts.sha256 for batch in batches(folder) for name, facts in read_batch(batch).files.items()}
        new, unreadable = new_files(watch, known, images=images)
        done = Assignment(f"nothing new in {watch}", 0, "")
        if new:
            predicted = predict_files(run, watch, list(new), settings.on_odd if images else None)
            reasons = {rejected.path: rejected.reason for rejected in predicted.skipped}
            files = {name: FileFacts(sha256, reasons.get(name, "")) for name, sha256 in new.items()}
            batch = Batch(settings.model, version, run.name, files)
            place = write_batch(folder, watch, predicted, batch, sheet=images)
            count = len(predicted.table)
            message = f"{counted(count, 'sample')} of {counted(len(new), 'new file')} assigned by {settings.model}"
            message += f" version {version}: {place / TABLE}"
            done = Assignment(message, count, str(place), tuple(f"{name}: {why}" for name, why in reasons.items()))
        logged = [log_batch(settings.model, batch) for batch in batches(folder) if not (batch / LOGGED).exists()]
        return replace(done, left_out=(*done.left_out, *unreadable), logged=all(logged))


@contextlib.contextmanager
def claimed_batches(folder: Path) -> Iterator[None]:
    """Claim a model's batches, and remove what a killed process left half written.

    Raises:
        AssignError: another process assigns.
    """
    with lock_if_free(folder / ".lock") as ours:
        if not ours:
            raise AssignError(f"another process assigns files into {folder}: wait for it")
        for left in folder.glob(".*.tmp"):
            shutil.rmtree(left)
        yield


def batches(folder: Path) -> list[Path]:
    """Return the folders of a model's whole batches, the oldest first."""
    return sorted(path for path in folder.iterdir() if path.name.isdecimal())


def read_batch(batch: Path) -> Batch:
    """Read batch.json of a batch.

    Raises:
        AssignError: it is missing or damaged.
    """
    try:
        return record_from_json(Batch, read_sealed(batch / FACTS))
    except (StoreError, BadRecord) as error:
        raise damage_error(batch, str(error)) from error


def damage_error(batch: Path, why: str) -> AssignError:
    """Return the error for a batch with a damaged file."""
    return AssignError(
        f"batch {batch.name} of {batch.parent} is damaged: {why}. Put the file back from a backup, or move the folder "
        f"{batch} elsewhere: its files are then assigned again"
    )


def new_files(watch: Path, known: Mapping[str, str], *, images: bool) -> tuple[dict[str, str], list[str]]:
    """Return the files that are new, or whose bytes have changed, and a sentence for each that cannot be read.

    What cannot be read is looked at again the next time.

    Args:
        watch: the watched folder.
        known: SHA-256 of the files that were assigned or left out before, by path below the folder.
        images: whether the model takes images; else tables and arrays of vectors.

    Returns:
        SHA-256 by path, in order; sentences.
    """
    intake = Intake()
    if images:
        names = find_images(watch, intake)
    else:
        below = files_below(watch, intake)
        names = [name for name in below if name.lower().endswith(SUFFIXES) or is_array_file(watch / name)]
    unreadable = [
        f"{name}: {reason}"
        for reason, left_out in intake.left_out.items()
        if reason.startswith(CANNOT_BE_LISTED)
        for name in left_out
    ]
    new = {}
    for name in sorted(names):
        try:
            sha256 = file_digest(watch / name)
        except FileNotFoundError:
            continue  # it was removed a moment ago
        except OSError as error:
            unreadable.append(f"{name}: it cannot be read ({error.strerror or error})")
            continue
        if known.get(name) != sha256:
            new[name] = sha256
    return new, unreadable


def write_batch(folder: Path, watch: Path, found: PredictedClusters, batch: Batch, *, sheet: bool) -> Path:
    """Write a batch whole and return its folder, or leave none."""
    numbers = [int(path.name) for path in batches(folder)]
    place = folder / f"{max(numbers, default=0) + 1:04d}"
    table = found.table
    if NAME not in table:
        table = table.assign(**{NAME: table["cluster"]})
    with new_version(place) as scratch:
        write_table(table[[*FIRST, *table.columns.difference(FIRST, sort=False)]], scratch / TABLE)
        if sheet and len(found.table):
            predicted_sheet(found, watch, scratch / SHEET)
        write_sealed(scratch / FACTS, record_to_json(batch))
    return place


def predict_files(run: RunFolder, watch: Path, names: Sequence[str], on_odd: str | None) -> PredictedClusters:
    """Return the clusters of new files, images unless `on_odd` is None; those that cannot be used are listed."""
    if on_odd is not None:
        return predict(run, watch, on_odd, only=set(names))
    tables = []
    skipped = []
    for name in names:
        try:
            tables.append(predict(run, watch / name).table.assign(file=name))
        except DataError as error:
            skipped.append(RejectedFile(name, str(error)))
    return PredictedClusters(pd.concat(tables or [no_samples()], ignore_index=True), skipped)


def log_batch(model: str, place: Path) -> bool:
    """Log a batch to MLflow; return whether MLflow has it now."""
    batch = read_batch(place)
    try:
        table = pd.read_csv(place / TABLE)[FIRST]
    except (OSError, ValueError, KeyError) as error:
        raise damage_error(place, f"{place / TABLE} cannot be read ({short_text(error)})") from error
    run = RunFolder.find(batch.run)
    left_out = [f"{name}: {facts.left_out}" for name, facts in batch.files.items() if facts.left_out]
    if not log_assignment(run, model, batch.version, place.name, place, table, left_out):
        return False
    (place / LOGGED).touch()
    return True
