"""A set that grows at night: what is new in a watched folder is checked as a whole, then added."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from shoal.core.errors import DataError, ShoalError, brief
from shoal.core.streams import Streams
from shoal.data.arrivals import NewFiles, arrivals
from shoal.data.images import Rejected, listing
from shoal.data.intake import Intake
from shoal.data.own import check_name, read_folder, refuse_or_skip
from shoal.data.own_images import WAITING, NothingNew, note_left_out
from shoal.data.own_store import Batch, check_spelling, store_batch
from shoal.data.prepare import own_folder, own_pointer, store_folder
from shoal.data.prepared import Prepared
from shoal.data.sifting import SKIPPED, Sifted, not_seen_before, refuse_too_many, sift
from shoal.data.writing import writing
from shoal.engine.settings import places
from shoal.engine.settings.run_settings import Settings
from shoal.engine.settings.yaml_text import read_yaml_file
from shoal.lifecycle.dvc_command import dvc
from shoal.lifecycle.night_settings import NightSettings
from shoal.lifecycle.preflight import check_method
from shoal.lifecycle.preparing import prepare_data
from shoal.lifecycle.tracked import TrackingError, dvc_root, track
from shoal.methods.scores.neighbours import unlike

MAX_NAMED = 10
"""An error names at most so many of the samples that it refuses."""
MAX_COMPARED = 5_000
"""New samples are compared with at most so many old ones, a seeded draw."""


class NightError(ShoalError):
    """A night cannot be done as it is set."""


@dataclass(frozen=True)
class TakenIn:
    """The data set of a night.

    Args:
        folder: where it lies.
        digest: of its bytes.
        new: samples that came tonight.
        message: what happened, in a sentence.
        left_out: files that were skipped for the first time tonight, with reasons.
    """

    folder: str
    digest: str
    new: int
    message: str
    left_out: tuple[str, ...] = ()


def take_in(settings: Settings, night: NightSettings) -> TakenIn:
    """Bring the data set of a night up to date: add all new samples, or none and raise an error.

    Raises:
        NightError: settings under which samples would change their clients.
        DataError: new images that are unreadable, do not fit the set, or are unlike all that it has.
    """
    if night.watch is None:
        prepared = prepare_data(settings)
        return _taken(prepared, 0, f"{prepared.manifest.name!r} stays as it is: no folder is watched")
    _check(settings)
    folder = places.home() / Path(night.watch).expanduser()
    bring(folder)
    store = places.store()
    name = settings.data.name
    check_spelling(name)
    with writing(own_folder(store, name)):
        exists = (store_folder(store, name) / "manifest.json").exists() or own_pointer(store, name).exists()
        return _take_in(settings, night, folder, check_name(name, store, force=False, append=exists))


def _take_in(settings: Settings, night: NightSettings, folder: Path, onto: Prepared | None) -> TakenIn:
    """Append what is new in the watched folder to the set; None: there is no set yet."""
    store = places.store()
    name = settings.data.name
    if onto is not None:
        check_method(settings, store)
    found = arrivals(folder, onto)
    if night.on_bad == "refuse":
        refuse_or_skip(list(found.rejected), "refuse", folder, "correct them, or set night.on_bad to skip")
    sifted = sift(folder, (*found.new, *found.touched), onto, night.on_bad, night.on_odd)
    left_out = [*found.rejected, *sifted.left_out]
    fresh = not_seen_before(left_out, folder, onto)
    refuse_too_many(fresh, len(sifted.usable), night.bad, folder, "correct or remove them, or raise night.bad")
    told = tuple(f"{each.path}: {each.reason}" for each in fresh)
    notes = Intake()
    batch = None
    if sifted.usable:
        batch = _batch(folder, sifted, onto, night, notes)
    if batch is None:
        return replace(_nothing_new(folder, found, sifted, onto), left_out=told)
    if onto is not None:
        refuse_strange(batch, onto, night.strange, folder)
    skipped = [*batch.extra.get(SKIPPED, []), *([each.path, each.reason] for each in sifted.left_out)]
    batch = replace(batch, extra={**batch.extra, SKIPPED: skipped})
    prepared = store_batch(name, store, batch, night.held_out, settings.seed, onto, by_hash=True)
    message = f"{len(batch.x)} new images of {len(set(batch.client))} clients in {folder}{_also(notes)}"
    return replace(_tracked(prepared, len(batch.x), message), left_out=told)


def _batch(folder: Path, sifted: Sifted, onto: Prepared | None, night: NightSettings, notes: Intake) -> Batch | None:
    """Return the usable new images; None where the set has all of them already."""
    note_left_out(list(sifted.left_out), notes)
    labels = None
    if night.labels is not None:
        labels = places.home() / Path(night.labels).expanduser()
    try:
        return read_folder(
            folder,
            onto,
            on_bad=night.on_bad,
            on_odd=night.on_odd,
            labels=labels,
            only=sifted.usable,
            without={each.path for each in sifted.left_out},
            intake=notes,
        )
    except NothingNew:
        return None


def _nothing_new(folder: Path, found: NewFiles, sifted: Sifted, onto: Prepared | None) -> TakenIn:
    """Return the set as it is, and what was left out.

    Raises:
        DataError: there is no set yet.
    """
    notes = found.intake
    note_left_out([*found.rejected, *sifted.left_out], notes)
    for name in sifted.waiting:
        notes.leave_out(WAITING, name)
    if onto is None:
        raise DataError(
            f"the watched folder {folder} has no images yet that can be used: put some in sub-folders, one per client"
            f"{_also(notes)}"
        )
    return _tracked(onto, 0, f"nothing new in {folder}{_also(notes)}")


def _also(notes: Intake) -> str:
    """Return what was adapted and left out, as the end of a sentence."""
    summary = notes.summary()
    if not summary:
        return ""
    return f"; {summary}"


def _tracked(prepared: Prepared, new: int, message: str) -> TakenIn:
    """Let DVC know the set, also where nothing is new: a night may have been killed before DVC knew of it."""
    try:
        track(prepared.folder)
    except TrackingError as error:
        message += f"; {error}"
    return _taken(prepared, new, message)


def _taken(prepared: Prepared, new: int, message: str) -> TakenIn:
    return TakenIn(str(prepared.folder), prepared.manifest.digest, new, message)


def _check(settings: Settings) -> None:
    """Refuse settings that would move old samples to other clients when new ones come."""
    s = settings.partition
    if s.kind not in ("auto", "by_column") or (s.kind == "by_column" and (s.clients or s.column != "client")):
        raise NightError(
            f"partition.kind is {s.kind}: a set that grows is divided by its own clients, so that no sample changes "
            "its client: set partition.kind to auto, or to by_column with clients 0"
        )
    if s.kind == "auto" and s.clients:
        raise NightError("partition.clients draws some of the clients, and others when more come: leave it out")
    if settings.data.limit is not None:
        raise NightError("data.limit draws some of the samples, and others when more come: leave it out")


def refuse_strange(batch: Batch, onto: Prepared, most: float, folder: Path) -> None:
    """Refuse new samples if too many of them are unlike all samples of a set; a single one is never too many.

    Args:
        batch: the new samples.
        onto: the set.
        most: the share that may be unlike.
        folder: where they lie, for the error.

    Raises:
        DataError: names some of them.
    """
    count = onto.manifest.train
    rows = np.arange(count)
    if count > MAX_COMPARED:
        rows = np.sort(Streams(0).numpy("samples that new ones are compared with").choice(count, MAX_COMPARED, False))
    strange = unlike(np.asarray(onto.train_x[rows]), batch.x)
    if strange.sum() > 1 and strange.mean() > most:
        named = [Rejected(batch.file[k], "unlike all before") for k in np.flatnonzero(strange)[:MAX_NAMED]]
        raise DataError(
            f"{int(strange.sum())} of {len(batch.x)} new images in {folder} are unlike every image that "
            f"{onto.manifest.name!r} has; remove them, or, where they are right, set night.strange to 1. Such as:\n"
            f"{listing(named)}"
        )


def bring(folder: Path) -> None:
    """Bring a folder that DVC tracks up to date with its pointer, the file FOLDER.dvc; others are left alone.

    An import is updated from the repository that it is of; anything else is pulled where there is a remote, and checked
    out from the cache where there is none. DVC refuses to remove files that it does not have.

    Raises:
        NightError: DVC could not.
    """
    pointer = folder.with_name(f"{folder.name}.dvc")
    root = dvc_root(folder.parent)
    if root is None or not pointer.is_file():
        return
    about = read_yaml_file(pointer, "DVC file", NightError)
    imported = isinstance(about, dict) and bool(about.get("deps"))
    if imported:
        command = "update"
    elif dvc(root, "remote", "list").stdout.strip():
        command = "pull"
    else:
        command = "checkout"
    done = dvc(root, command, "--quiet", str(pointer))
    if done.returncode:
        raise NightError(f"DVC did not bring {folder} up to date: {brief(Exception(done.stderr or done.stdout))}")
