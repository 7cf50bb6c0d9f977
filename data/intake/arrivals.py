"""New files in a watched folder: files that a set does not have yet, found without reading those that it has."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from shoal.core.errors import DataError
from shoal.data.intake.folder_files import find_images, one_spelling, spellings
from shoal.data.intake.held_out import MIN_TRAIN
from shoal.data.intake.images import Rejected
from shoal.data.intake.own_images import NO_CLIENT, WAITING
from shoal.data.intake.own_store import known_files
from shoal.data.intake.spelling import value_key
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import Prepared


@dataclass(frozen=True)
class NewFiles:
    """Files of a watched folder, as paths below it.

    Args:
        new: files whose names are not in the set.
        touched: files of the set that were written after it: they may have changed.
        waiting: files of new clients with too few images to train on; they are taken when there are more.
        rejected: files to refuse or skip without reading them, with reasons.
        intake: notes of what is left out.
    """

    new: tuple[str, ...]
    touched: tuple[str, ...]
    waiting: tuple[str, ...]
    rejected: tuple[Rejected, ...] = ()
    intake: Intake = field(default_factory=Intake)


def arrivals(folder: Path, onto: Prepared | None = None) -> NewFiles:
    """Find the files of a folder with one sub-folder of images per client that a set does not have.

    Files of the set may have been removed from the folder. Others are recognised by name, in any Unicode form, and by
    the time at which they were written.

    Args:
        folder: the watched folder.
        onto: the set; None before there is one.

    Raises:
        DataError: there is no such folder, or the set keeps no file names.
    """
    if not folder.is_dir():
        raise DataError(
            f"the watched folder {folder} does not exist: make it, with one sub-folder of images per client"
        )
    known: dict[str, tuple[str, int]] = {}
    clients: set[str] = set()
    written = 0.0
    if onto is not None:
        known = known_files(onto)
        clients = set(map(value_key, onto.manifest.extra["clients"]))
        written = (onto.folder / "manifest.json").stat().st_mtime
    new: list[str] = []
    touched: list[str] = []
    loose: list[Rejected] = []
    intake = Intake()
    found = find_images(folder, intake, known)
    spelled = spellings(known)
    for path in found.images:
        name = path.relative_to(folder).as_posix()
        if "/" not in name:
            loose.append(Rejected(name, f"{NO_CLIENT}: move it into one", NO_CLIENT))
        elif name not in known and one_spelling(name) not in spelled:
            new.append(name)
        elif path.stat().st_mtime > written:
            touched.append(name)
    count = Counter(_client(name) for name in new)
    few = {client for client, images in count.items() if value_key(client) not in clients and images < MIN_TRAIN}
    waiting = tuple(name for name in new if _client(name) in few)
    for name in waiting:
        intake.leave_out(WAITING, name)
    return NewFiles(
        tuple(name for name in new if _client(name) not in few),
        tuple(touched),
        waiting,
        (*found.rejected, *loose),
        intake,
    )


def _client(name: str) -> str:
    return name.split("/")[0]
