"""A set that grows at night: what is new in a watched folder is checked as a whole, then added.

The folder has a sub-folder of images for each client; or, for a set that was made of tables, tables with its columns,
each with new rows. For a set of vectors that an encoder made of images, the new images are added to the set of images,
and then embedded.
"""

from __future__ import annotations

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
from shoal.data.intake.own_store import SAMPLES, Arrivals, Batch, check_spelling, store_batch
from shoal.data.sets.intake_notes import left_out_before, names_file, record
from shoal.data.sets.prepare import is_built_in, own_folder, own_pointer, store_folder
from shoal.data.sets.prepared import PreparedSet, read_manifest
from shoal.data.sets.writing import writing
from shoal.engine.settings import places
from shoal.engine.settings.run_settings import Settings
from shoal.engine.sites.gathering import samples_at_sites
from shoal.engine.store.embedded import EmbeddedFrom, embedded_set
from shoal.lifecycle.dvc_tracking import dvc, dvc_root, refusal, track
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
    folder = watched_folder(night.watch, "with one sub-folder of images per client, or with tables")
    check_spelling(name)
    origin = embedded_set(name)
    if origin is not None:
        return _take_in_embedded(settings, night, folder, origin)
    with writing(own_folder(places.store(), name)):
        onto = present_set(name)
        if onto is not None:
            check_method(settings)
        return _append(night, folder, onto, name, settings.seed)


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


def present_set(name: str) -> PreparedSet | None:
    """Return a set of the user's own, checked byte by byte against its manifest; None where there is none yet."""
    store = places.store()
    exists = (store_folder(store, name) / "manifest.json").exists() or own_pointer(store, name).exists()
    return check_name(name, store, force=False, append=exists)


def _take_in_embedded(settings: Settings, night: NightSettings, folder: Path, origin: EmbeddedFrom) -> TakenIn:
    """Append new images to the set that a set of vectors was embedded from, and embed them.

    Raises:
        NightError: the set of images is not here, or a built-in one.
    """
    store = places.store()
    name = settings.data.name
    check_method(settings)
    before = read_manifest(store_folder(store, name))
    with writing(own_folder(store, origin.images)):
        images = None
        if not is_built_in(origin.images):
            images = present_set(origin.images)
        if images is None:
            raise NightError(
                f"{name!r} was embedded from {origin.images!r}, which is no set of your own here to which new images "
                "could be added: leave night.watch out"
            )
        taken = _append(night, folder, images, origin.images, settings.seed)
    made = embed(origin.images, origin.encoder.name, name)
    about = made.prepared.manifest
    message = "; ".join(part for part in (taken.message, made.message, made.warning) if part)
    new = about.train + about.test - before.train - before.test
    return _taken_in(made.prepared, new, message, taken.left_out)


def _read_new(night: NightSettings, folder: Path, onto: PreparedSet | None) -> Arrivals:
    """Read what is new in the watched folder: images, or tables for a set that was made of them.

    Raises:
        NightError: the set was not made of tables, or `night.labels` is set.
    """
    if onto is None or onto.manifest.kind == "image":
        labels = None if night.labels is None else places.home() / Path(night.labels).expanduser()
        options = AddOptions(on_bad=night.on_bad, on_odd=night.on_odd, labels=labels)
        return read_folder(folder, onto, options, grows=True)
    name = onto.manifest.name
    if not takes_tables(onto):
        raise NightError(
            f"{name!r} holds {onto.manifest.kind}s that are not from a table, and a night appends images and tables: "
            f"append with `shoal data add PATH --name {name} --append`, and leave night.watch out"
        )
    if night.labels is not None:
        raise NightError(
            f"night.labels is for images, and {name!r} is made of tables, which hold their labels: leave it out"
        )
    arrivals = dropped_tables(folder, onto, night.held_out)
    if night.on_bad == "refuse":
        refuse({"correct them, or set night.on_bad to skip": arrivals.left_out}, folder, "table")
    return arrivals


def _append(night: NightSettings, folder: Path, onto: PreparedSet | None, name: str, seed: int) -> TakenIn:
    """Append what is new to a set, unless too much of it cannot be used or is strange.

    Args:
        night: its settings.
        folder: the watched folder.
        onto: the set; None: there is none yet.
        name: of the set.
        seed: of the draw of held-out samples.
    """
    arrivals = _read_new(night, folder, onto)
    fresh = not_seen_before(arrivals.left_out, folder, onto)
    fault = f"cannot be used, more than {night.bad:.0%}; correct or remove them, or raise night.bad"
    refuse_share(fresh, arrivals.files + len(fresh), night.bad, f"files in {folder} {fault}")
    batch = arrivals.batch
    new = 0
    message = f"nothing new in {folder}"
    if batch is not None:
        new = len(batch.x)
        what = "image"
        if onto is not None:
            what = SAMPLES[onto.manifest.kind]
            fault = (
                f"unlike every {what} that {name!r} has; remove them, or, where they are right, set night.strange to 1"
            )
            refuse_share(strange_samples(batch, onto), new, night.strange, f"{what}s in {folder} are {fault}")
        onto = store_batch(name, places.store(), batch, night.held_out, seed, onto)
        message = f"{counted(new, f'new {what}')} of {counted(len(set(batch.client)), 'client')} in {folder}"
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
    _, warning = track(onto.folder)
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


def refuse_share(bad: Sequence[RejectedFile], total: int, share: float, what: str) -> None:
    """Refuse an addition of which too large a share is bad; a single file or sample is never too much.

    Args:
        bad: the files or samples.
        total: number of all.
        share: the largest share of all that may be bad.
        what: is wrong with which samples, and what to do.

    Raises:
        DataError: names some of them.
    """
    if len(bad) > 1 and len(bad) > share * total:
        raise DataError(f"{len(bad)} of {total} new {what}. Such as:\n{listing(bad[:MAX_NAMED])}")


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


def strange_samples(batch: Batch, onto: PreparedSet) -> list[RejectedFile]:
    """Return the new samples that are unlike all samples of a set."""
    count = onto.manifest.train
    rows = np.arange(count)
    if count > MAX_COMPARED:
        rows = np.sort(Streams(0).numpy("samples that new ones are compared with").choice(count, MAX_COMPARED, False))
    strange = np.flatnonzero(unlike(np.asarray(onto.train_x[rows]), batch.x))
    return [RejectedFile(batch.file[k], "unlike all before") for k in strange]


def watched_folder(name: str, content: str) -> Path:
    """Return a folder that is watched for new files, up to date with DVC.

    Raises:
        DataError: it does not exist; says what to put into it. NightError: DVC could not bring it up to date.
    """
    folder = places.home() / Path(name).expanduser()
    update_from_dvc(folder)
    if not folder.is_dir():
        raise DataError(f"the watched folder {folder} does not exist: make it, {content}")
    return folder


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
    if "deps:" in pointer.read_text(errors="replace"):
        command = "update"
    elif dvc(root, "remote", "list").stdout.strip():
        command = "pull"
    else:
        command = "checkout"
    done = dvc(root, command, "--quiet", str(pointer))
    if done.returncode:
        raise NightError(f"DVC did not bring {folder} up to date: {refusal(done)}")
