"""A set that grows at night: what is new in a watched folder is checked as a whole, then added.

The folder has a sub-folder of images for each client; or, for a set that was made of tables, tables with its columns,
each with new rows. For a set of vectors that an encoder made of images, the new images are added to the set of images,
and then embedded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shoal.core.errors import DataError, ShoalError
from shoal.core.streams import Streams
from shoal.data.intake.dropped_tables import dropped_tables, takes_tables
from shoal.data.intake.images import RejectedFile, listing
from shoal.data.intake.options import AddOptions
from shoal.data.intake.own import check_name
from shoal.data.intake.own_images import read_folder, refuse
from shoal.data.intake.own_store import Arrivals, Batch, check_spelling, store_batch
from shoal.data.sets.intake_notes import left_out_before, names_file, record
from shoal.data.sets.prepare import is_built_in, own_folder, own_pointer, store_folder
from shoal.data.sets.prepared import PreparedSet, read_manifest
from shoal.data.sets.writing import writing
from shoal.engine.settings import places
from shoal.engine.settings.run_settings import Settings, make_settings
from shoal.engine.settings.yaml_text import read_yaml_file
from shoal.engine.sites.gathering import samples_at_sites
from shoal.engine.store.embedded import EmbeddedFrom, embedded_set
from shoal.lifecycle.dvc_tracking import dvc, dvc_root, refusal, try_to_track
from shoal.lifecycle.embedding import embed
from shoal.lifecycle.night_settings import NightSettings
from shoal.lifecycle.preflight import check_method
from shoal.lifecycle.preparing import gather, prepare_data
from shoal.methods.scores.neighbours import unlike
from shoal.review.results.summary import counted

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


@dataclass(frozen=True)
class _Watched:
    """The watched folder of a night, and the settings."""

    settings: Settings
    night: NightSettings
    folder: Path


def take_in(settings: Settings, night: NightSettings) -> TakenIn:
    """Bring the data set of a night up to date: add all new samples, or none and raise an error.

    Raises:
        NightError: settings under which samples would change their clients.
        DataError: new images that are unreadable, do not fit the set, or are unlike all that it has.
    """
    name = settings.data.name
    if settings.workers.runner == "sites":
        return _take_in_at_sites(settings, night)
    if night.watch is None:
        return _taken_in(prepare_data(settings), 0, f"{name!r} stays as it is: no folder is watched")
    _check(settings)
    folder = places.home() / Path(night.watch).expanduser()
    update_from_dvc(folder)
    if not folder.is_dir():
        raise DataError(
            f"the watched folder {folder} does not exist: make it, with one sub-folder of images per client, or with "
            "tables"
        )
    check_spelling(name)
    origin = embedded_set(name)
    watched = _Watched(settings, night, folder)
    if origin is not None:
        return _take_in_embedded(watched, origin)
    with writing(own_folder(places.store(), name)):
        onto = present_set(name)
        if onto is not None:
            check_method(settings, places.store())
        if onto is not None and onto.manifest.kind != "image":
            return _take_in_tables(watched, onto)
        return _take_in_images(watched, onto, name)


def _take_in_at_sites(settings: Settings, night: NightSettings) -> TakenIn:
    """Ask the sites which samples they have now.

    Raises:
        NightError: the night is to watch a folder, or to start from another state than the champion's.
    """
    if night.watch is not None or night.start != "champion":
        raise NightError(
            "new samples of sites arrive there, and sites judge the champion as the state from which a night starts: "
            "leave night.watch and night.start out, and name a folder under `watch` in each site's policy"
        )
    before = number_at_sites(settings)
    gather(settings)
    new = number_at_sites(settings) - before
    return _taken_in(prepare_data(settings), new, f"the sites have {new:+,} samples since they were last asked")


def number_at_sites(settings: Settings) -> int:
    """Return how many samples of the set all sites had when they were last asked."""
    return sum(sets.get(settings.data.name, 0) for sets in samples_at_sites(places.store()).values())


def take_in_at_site(name: str, folder: str) -> None:
    """Append what is new in a folder to a site's own set; what is wrong with it is said here, and not to the lead."""
    try:
        settings = make_settings({"data": {"name": name}, "method": {"name": "auto"}, "model": {"clusters": 2}})
        said = take_in(settings, NightSettings(watch=folder)).message
    except ShoalError as error:
        said = f"nothing new of {name!r} is taken: {error}"
    print(said, file=sys.stderr, flush=True)


def present_set(name: str) -> PreparedSet | None:
    """Return a set of the user's own, checked byte by byte against its manifest; None where there is none yet."""
    store = places.store()
    exists = (store_folder(store, name) / "manifest.json").exists() or own_pointer(store, name).exists()
    return check_name(name, store, force=False, append=exists)


def _take_in_embedded(watched: _Watched, origin: EmbeddedFrom) -> TakenIn:
    """Append new images to the set that a set of vectors was embedded from, and embed them.

    Raises:
        NightError: the set of images is not here, or a built-in one.
    """
    store = places.store()
    name = watched.settings.data.name
    check_method(watched.settings, store)
    before = read_manifest(store_folder(store, name))
    here = store_folder(store, origin.images).exists() or own_pointer(store, origin.images).exists()
    if is_built_in(origin.images) or not here:
        raise NightError(
            f"{name!r} was embedded from {origin.images!r}, which is no set of your own here to which new images could "
            "be added: leave night.watch out"
        )
    with writing(own_folder(store, origin.images)):
        taken = _take_in_images(watched, present_set(origin.images), origin.images)
    made = embed(origin.images, origin.encoder.name, name)
    about = made.prepared.manifest
    message = "; ".join(part for part in (taken.message, made.message, made.warning) if part)
    new = about.train + about.test - before.train - before.test
    return _taken_in(made.prepared, new, message, taken.left_out)


def _take_in_tables(watched: _Watched, onto: PreparedSet) -> TakenIn:
    """Append the rows, or the windows, of new tables in the watched folder to the set.

    Raises:
        NightError: the set was not made of tables, or `night.labels` is set.
    """
    name = onto.manifest.name
    if not takes_tables(onto):
        raise NightError(
            f"{name!r} holds {onto.manifest.kind}s that are not from a table, and a night appends images and tables: "
            f"append with `shoal data add PATH --name {name} --append`, and leave night.watch out"
        )
    if watched.night.labels is not None:
        raise NightError(
            f"night.labels is for images, and {name!r} is made of tables, which hold their labels: leave it out"
        )
    arrivals = dropped_tables(watched.folder, onto, watched.night.held_out)
    if watched.night.on_bad == "refuse":
        refuse({"correct them, or set night.on_bad to skip": arrivals.left_out}, watched.folder, "table")
    what = "windows" if onto.manifest.kind == "series" else "rows"
    return _append(watched, onto, arrivals, what, name)


def _take_in_images(watched: _Watched, onto: PreparedSet | None, name: str) -> TakenIn:
    """Append what is new in the watched folder to a set of images; `onto` is None where there is no set yet."""
    night = watched.night
    labels = None if night.labels is None else places.home() / Path(night.labels).expanduser()
    options = AddOptions(on_bad=night.on_bad, on_odd=night.on_odd, labels=labels)
    return _append(watched, onto, read_folder(watched.folder, onto, options, grows=True), "images", name)


def _append(watched: _Watched, onto: PreparedSet | None, arrivals: Arrivals, what: str, name: str) -> TakenIn:
    """Append what is new to a set, unless too much of it cannot be used or is strange.

    Args:
        watched: the folder.
        onto: the set; None: there is none yet.
        arrivals: what is new.
        what: the samples are called, in the plural: images, rows or windows.
        name: of the set.
    """
    night = watched.night
    folder = watched.folder
    fresh = not_seen_before(arrivals.left_out, folder, onto)
    refuse_too_many(fresh, arrivals.files, night.bad, folder)
    batch = arrivals.batch
    new = 0
    message = f"nothing new in {folder}"
    if batch is not None:
        if onto is not None:
            refuse_strange(batch, onto, night.strange, folder, what)
        onto = store_batch(name, places.store(), batch, night.held_out, watched.settings.seed, onto)
        new = len(batch.x)
        message = f"{counted(new, f'new {what[:-1]}')} of {counted(len(set(batch.client)), 'client')} in {folder}"
    elif onto is None:
        words = (
            f"the watched folder {folder} has no images yet that can be used: put some in sub-folders, one per client",
            arrivals.intake.summary(),
            f"of tables add the first one with `shoal data add TABLE --name {name}`, and nights append the others",
        )
        raise DataError("; ".join(filter(None, words)))
    elif fresh:
        record(onto.folder, arrivals.intake, append=True)
    # Also where nothing is new: a night may have been killed before DVC knew of it.
    _, warning = try_to_track(onto.folder)
    message = "; ".join(filter(None, (message, arrivals.intake.summary(), warning)))
    return _taken_in(onto, new, message, tuple(f"{each.path}: {each.reason}" for each in fresh))


def not_seen_before(left_out: Sequence[RejectedFile], folder: Path, onto: PreparedSet | None) -> list[RejectedFile]:
    """Return the files that earlier additions to a set have not left out, and those that were written since."""
    if onto is None:
        return list(left_out)
    known = left_out_before(onto.folder)
    judged = max(_written(onto.folder / "manifest.json"), _written(names_file(onto.folder)))
    return [each for each in left_out if each.path not in known or _written(folder / each.path) > judged]


def _written(path: Path) -> float:
    """Return when a file was written; 0 where there is none."""
    return path.stat().st_mtime if path.exists() else 0.0


def refuse_too_many(left_out: Sequence[RejectedFile], usable: int, share: float, folder: Path) -> None:
    """Refuse an addition of which too large a share would be left out; a single file is never too much.

    Args:
        left_out: the files to leave out.
        usable: number of the others.
        share: the largest share of all of them that may be left out.
        folder: where they lie, for the error.

    Raises:
        DataError: names some of them.
    """
    total = len(left_out) + usable
    if len(left_out) > 1 and len(left_out) > share * total:
        raise DataError(
            f"{len(left_out)} of {total} new files in {folder} cannot be used, more than {share:.0%}; correct or "
            f"remove them, or raise night.bad. Such as:\n{listing(left_out[:MAX_NAMED])}"
        )


def _taken_in(prepared: PreparedSet, new: int, message: str, left_out: tuple[str, ...] = ()) -> TakenIn:
    return TakenIn(str(prepared.folder), prepared.manifest.digest, new, message, left_out)


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


def refuse_strange(batch: Batch, onto: PreparedSet, max_share: float, folder: Path, what: str = "images") -> None:
    """Refuse new samples if too many of them are unlike all samples of a set; a single one is never too many.

    Args:
        batch: the new samples.
        onto: the set.
        max_share: the share that may be unlike.
        folder: where they lie, for the error.
        what: what the samples are, in the plural, for the error.

    Raises:
        DataError: names some of them.
    """
    count = onto.manifest.train
    rows = np.arange(count)
    if count > MAX_COMPARED:
        rows = np.sort(Streams(0).numpy("samples that new ones are compared with").choice(count, MAX_COMPARED, False))
    strange = unlike(np.asarray(onto.train_x[rows]), batch.x)
    if strange.sum() > 1 and strange.mean() > max_share:
        named = [RejectedFile(batch.file[k], "unlike all before") for k in np.flatnonzero(strange)[:MAX_NAMED]]
        raise DataError(
            f"{int(strange.sum())} of {len(batch.x)} new {what} in {folder} are unlike every {what[:-1]} that "
            f"{onto.manifest.name!r} has; remove them, or, where they are right, set night.strange to 1. Such as:\n"
            f"{listing(named)}"
        )


def update_from_dvc(folder: Path) -> None:
    """Bring a folder that DVC tracks up to date with its pointer, the file FOLDER.dvc; others are left alone.

    An import is updated from its repository; anything else is pulled if there is a remote, and else checked out from
    the cache. DVC refuses to remove files that it does not have.

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
        raise NightError(f"DVC did not bring {folder} up to date: {refusal(done)}")
