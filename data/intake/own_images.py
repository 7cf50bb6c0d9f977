"""The images of a user's folder: which files are read, and whether they fit the set that they are appended to."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shoal.core.errors import DataError
from shoal.data.intake.folder_files import find_images, one_spelling, spellings
from shoal.data.intake.images import Picture, Rejected, listing, stack
from shoal.data.intake.own_store import known_files
from shoal.data.sets.intake_notes import Intake, printable
from shoal.data.sets.prepared import Prepared
from shoal.data.sets.writing import SetUnchanged

WAITING = "of a new client with a single image: waits for more"
NO_CLIENT = "in no client's folder"


class NothingNew(SetUnchanged):
    """The set has all images already."""


@dataclass(frozen=True)
class ClientFiles:
    """The image files that an addition reads.

    Attributes:
        by_client: the files of each client, in the order of their paths.
        rejected: what is refused or skipped before it is read, with reasons.
    """

    by_client: dict[str, list[Path]]
    rejected: list[Rejected]

    def paths(self) -> list[Path]:
        """Return all files, client after client."""
        return [path for paths in self.by_client.values() for path in paths]


def client_files(
    folder: Path,
    clients: list[str],
    onto: Prepared | None,
    only: Collection[str] | None,
    intake: Intake,
    without: Collection[str] = (),
) -> ClientFiles:
    """Find the files to read.

    Args:
        folder: the folder.
        clients: the names of the sub-folders that are clients.
        onto: the set that the images are to be appended to.
        only: paths below the folder; other images are noted and not read.
        intake: notes of what is left out.
        without: paths below the folder that the caller leaves out, and notes.

    Raises:
        DataError: a client has no images.
    """
    known = {} if onto is None else known_files(onto)
    found = find_images(folder, intake, known)
    by_client: dict[str, list[Path]] = {client: [] for client in clients}
    rejected = [each for each in found.rejected if each.path not in without]
    spelled = spellings(known)
    for path in found.images:
        name = path.relative_to(folder).as_posix()
        client, _, below = name.partition("/")
        if name in without:
            continue
        if only is not None and name not in only:
            _note_unread(name, below, name in known or one_spelling(name) in spelled, intake)
        elif not below:
            rejected.append(Rejected(name, NO_CLIENT))
        else:
            by_client[client].append(path)
    _refuse_empty(folder, by_client, rejected, only, intake)
    return ClientFiles({client: paths for client, paths in by_client.items() if paths or only is None}, rejected)


def _note_unread(name: str, below: str, known: bool, intake: Intake) -> None:
    if known:
        intake.know("files")
    else:
        intake.leave_out(WAITING if below else NO_CLIENT, name)


def _refuse_empty(
    folder: Path,
    by_client: dict[str, list[Path]],
    rejected: list[Rejected],
    only: Collection[str] | None,
    intake: Intake,
) -> None:
    """Refuse clients without an image, and list what their folders hold."""
    broken = {each.path.partition("/")[0] for each in rejected}
    empty = [client for client, paths in by_client.items() if not paths and client not in broken]
    if only is not None or not empty:
        return
    instead = [
        Rejected(printable(name), reason)
        for reason, names in intake.left_out.items()
        for name in names
        if name.partition("/")[0] in empty
    ]
    there = f"; what lies there:\n{listing(instead, 20)}" if instead else ""
    raise DataError(f"no image in the folders of these clients of {folder}: {', '.join(empty)}{there}")


def size_of(prepared: Prepared) -> tuple[int, int]:
    """Return height and width of a set's images.

    Raises:
        DataError: the set holds no images.
    """
    if prepared.manifest.kind != "image":
        raise DataError(f"{prepared.manifest.name!r} holds {prepared.manifest.kind}s: images cannot be appended to it")
    _, height, width = prepared.manifest.shape
    return height, width


def wanted_size(size: tuple[int, int] | None, onto: Prepared | None) -> tuple[int, int] | None:
    """Return the size of the images to store; None for their most common size.

    Raises:
        DataError: the size differs from that of the set, or is below 1x1.
    """
    if size is not None and min(size) < 1:
        raise DataError(f"size is {size[0]}x{size[1]}, expected at least 1x1")
    if onto is None:
        return size
    there = size_of(onto)
    if size is not None and size != there:
        raise DataError(f"{onto.manifest.name!r} holds images of {there[0]}x{there[1]}: leave the size out")
    return there


def coloured_pictures(pictures: list[Picture], onto: Prepared) -> list[Rejected]:
    """Return the coloured images, which cannot be appended to a set of grey ones; none for a set in colour."""
    if onto.manifest.shape[0] != 1:
        return []
    return [Rejected(picture.path, "coloured") for picture in pictures if picture.pixels.ndim == 3]


def check_colours(pictures: list[Picture], onto: Prepared) -> None:
    """Refuse to append coloured images to a set of grey ones.

    Raises:
        DataError: names the coloured images.
    """
    coloured = coloured_pictures(pictures, onto)
    if coloured:
        raise DataError(
            f"{onto.manifest.name!r} holds grey images, and {len(coloured)} of these are coloured: make them grey, or "
            f"add all images again with --force:\n{listing(coloured)}"
        )


def new_pictures(pictures: list[Picture], size: tuple[int, int], onto: Prepared) -> list[Picture]:
    """Return the pictures that a set does not have yet, by their names in any Unicode form.

    Raises:
        NothingNew: the set has all of them.
        DataError: a file differs from the image of its name in the set.
    """
    new, changed = compared_with_set(pictures, size, onto)
    if changed:
        raise DataError(
            f"{len(changed)} files have changed since they were added to {onto.manifest.name!r}: give the new images "
            f"other names, or add all of them again with --force:\n{listing(changed)}"
        )
    if not new:
        raise NothingNew(f"{onto.manifest.name!r} has all of these {len(pictures)} images already: nothing to append")
    return new


def compared_with_set(
    pictures: list[Picture], size: tuple[int, int], onto: Prepared
) -> tuple[list[Picture], list[Rejected]]:
    """Return the pictures that a set does not have yet, and those that differ from the image of their name in it."""
    known = known_files(onto)
    spelled = spellings(known)
    arrays = {"train": onto.train_x, "test": onto.test_x}
    changed = []
    new = []
    for picture in pictures:
        name = picture.path if picture.path in known else spelled.get(one_spelling(picture.path))
        if name is None:
            new.append(picture)
            continue
        part, index = known[name]
        array = arrays[part]
        assert array is not None
        if not np.array_equal(stack([picture], size, len(array[index]))[0], array[index]):
            changed.append(Rejected(picture.path, "is another image than the one of this name in the set"))
    return new, changed


def note_adapted(found: list[Rejected], intake: Intake) -> None:
    """Note conversions."""
    for each in found:
        intake.adapt(each.kind or each.reason, each.path, _detail(each))


def note_left_out(found: list[Rejected], intake: Intake) -> None:
    """Note what was skipped."""
    for each in found:
        intake.leave_out(each.kind or each.reason, each.path, _detail(each))


def _detail(each: Rejected) -> str:
    return "" if each.kind in ("", each.reason) else each.reason
