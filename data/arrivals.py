"""What is new in a watched folder: files that a set does not have yet, found without reading those that it has."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from shoal.core.errors import DataError
from shoal.data.folder_files import find_images, one_spelling, spellings
from shoal.data.held_out import LEAST
from shoal.data.images import Rejected
from shoal.data.intake import Intake
from shoal.data.own_images import NO_CLIENT, WAITING
from shoal.data.own_store import known_files
from shoal.data.prepared import Prepared


@dataclass(frozen=True)
class NewFiles:
    """Files of a watched folder, as paths below it.

    Args:
        new: the set has none of these names.
        touched: the set has files of these names, and they were written to after the set: they may have changed.
        waiting: of clients that are new and have too few images to train on; they are taken when there are more.
        rejected: what is to be refused or skipped without being read, with reasons.
        intake: what is left out.
    """

    new: tuple[str, ...]
    touched: tuple[str, ...]
    waiting: tuple[str, ...]
    rejected: tuple[Rejected, ...] = ()
    intake: Intake = field(default_factory=Intake)


def arrivals(folder: Path, onto: Prepared | None = None) -> NewFiles:
    """What a folder with one sub-folder of images per client has that a set has not.

    Files that were taken before may be gone from the folder. Those that are there are told by name, in any Unicode
    form, and by the time at which they were written.

    Args:
        folder: the watched folder.
        onto: the set; None where there is none yet.

    Raises:
        DataError: there is no such folder, or the set keeps no file names.
    """
    if not folder.is_dir():
        raise DataError(f"the watched folder {folder} is not there: make it, with one sub-folder of images per client")
    known = {} if onto is None else known_files(onto)
    clients = set() if onto is None else set(onto.manifest.extra["clients"])
    written = 0.0 if onto is None else (onto.folder / "manifest.json").stat().st_mtime
    new: list[str] = []
    touched: list[str] = []
    intake = Intake()
    found = find_images(folder, intake, known)
    spelled = spellings(known)
    for path in found.images:
        name = path.relative_to(folder).as_posix()
        if "/" not in name:
            intake.leave_out(NO_CLIENT, name)
        elif name not in known and one_spelling(name) not in spelled:
            new.append(name)
        elif path.stat().st_mtime > written:
            touched.append(name)
    count = Counter(_client(name) for name in new)
    few = {client for client, images in count.items() if client not in clients and images < LEAST}
    waiting = tuple(name for name in new if _client(name) in few)
    for name in waiting:
        intake.leave_out(WAITING, name)
    return NewFiles(
        tuple(name for name in new if _client(name) not in few),
        tuple(touched),
        waiting,
        tuple(found.rejected),
        intake,
    )


def _client(name: str) -> str:
    return name.split("/")[0]
