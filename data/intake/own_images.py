"""The images of a user's folder: what was seen there, whether it can be used, and what a set lacks of it."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from pathlib import Path

import numpy as np

from shoal.core.errors import DataError
from shoal.data.intake.folder_files import client_folders, find_images, one_spelling
from shoal.data.intake.image_decoding import CONVERTED
from shoal.data.intake.images import (
    GREY_IN_COLOUR,
    Picture,
    RejectedFile,
    channels_of,
    in_form,
    listing,
    note_left_out,
    read_images,
    usual_size,
)
from shoal.data.intake.label_file import read_labels
from shoal.data.intake.names import one_spelling_each
from shoal.data.intake.options import AddOptions
from shoal.data.intake.own_store import Arrivals, Batch, known_files
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import PreparedSet

NO_CLIENT = "in no client's folder"
CHANGED = "is another image than the one of this name in the set: give it another name"
MAX_NAMED = 10
"""So many refused files are named, so that what to do stays on the screen."""


def read_folder(
    folder: Path,
    onto: PreparedSet | None = None,
    options: AddOptions | None = None,
    intake: Intake | None = None,
    *,
    grows: bool = False,
) -> Arrivals:
    """Read the images of a folder with one sub-folder per client, as they would be stored; write nothing.

    Files of the set are recognised by name, in any Unicode form.

    Args:
        folder: exists; its sub-folders are the clients; images may lie deeper below them.
        onto: the set to append to.
        options: of the user.
        intake: notes of what is taken, adapted and left out.
        grows: the folder is watched: files of the set are read only where they were written to since, and clients may
            have no image.

    Raises:
        DataError: there is no client, a client has no image, files are refused (all of them are listed),
            or labels do not fit.
    """
    options = options or AddOptions()
    notes = intake or Intake()
    size = _wanted_size(options.height_and_width, onto)
    clients = client_folders(folder)
    if not clients and not grows:
        raise DataError(f"{folder} has no sub-folders: put the images of each client into a folder of its own there")
    known = {} if onto is None else {one_spelling(file): place for file, place in known_files(onto).items()}
    written = (onto.folder / "manifest.json").stat().st_mtime if grows and onto is not None else -np.inf
    names, rejected = _files(folder, known, written, notes)
    size = size or usual_size(names, folder)
    pictures, unusable = read_images(names, folder, size, resize=options.on_odd == "resize")
    rejected += unusable
    taken = []
    for picture in pictures:
        there = known.get(one_spelling(picture.path))
        if onto is not None and onto.manifest.shape[0] == 1 and picture.pixels.ndim == 3:
            rejected.append(RejectedFile(picture.path, "coloured, and the set is grey"))
        elif there is None:
            taken.append(picture)
        elif onto is not None and _is_same(picture, there, onto):
            notes.know("files")
        else:
            rejected.append(RejectedFile(picture.path, CHANGED))
    _refuse_by_choice(rejected, options, folder)
    note_left_out(rejected, notes)
    if not grows:
        filled = {_top(name) for name in (*known, *(one_spelling(picture.path) for picture in taken))}
        _refuse_bare(folder, [client for client in clients if one_spelling(client) not in filled], notes)
    return Arrivals(_batch(folder, taken, size, onto, options, notes), rejected, len(taken), notes)


def _files(folder: Path, known: Container[str], written: float, notes: Intake) -> tuple[list[str], list[RejectedFile]]:
    """Return the images to read, and those of no client; note those of the set that are as old as it was written."""
    names = []
    loose = []
    for name in find_images(folder, notes, known):
        if "/" not in name:
            loose.append(RejectedFile(name, f"{NO_CLIENT}: move it into one", NO_CLIENT))
        elif one_spelling(name) in known and (folder / name).stat().st_mtime <= written:
            notes.know("files")
        else:
            names.append(name)
    return names, loose


def _is_same(picture: Picture, there: tuple[str, int], onto: PreparedSet) -> bool:
    part, index = there
    x = getattr(onto, f"{part}_x")
    return np.array_equal(in_form(picture.pixels, onto.manifest.shape), x[index])


def _refuse_by_choice(rejected: list[RejectedFile], options: AddOptions, folder: Path) -> None:
    """Refuse all images where the user wants no file to be skipped."""
    refused = {}
    if options.on_bad == "refuse":
        bad = [each for each in rejected if not each.odd]
        refused["mend them, or skip them (--on-bad skip; night.on_bad)"] = bad
    if options.on_odd == "refuse":
        odd = [each for each in rejected if each.odd]
        refused["use --on-odd resize or skip (night.on_odd), or give another --size"] = odd
    refuse(refused, folder)


def _refuse_bare(folder: Path, bare: Sequence[str], notes: Intake) -> None:
    """Refuse clients without a usable image, and list what was left out of their folders."""
    if not bare:
        return
    instead = [
        RejectedFile(ascii(name)[1:-1], reason)
        for reason, names in notes.left_out.items()
        for name in names
        if _top(name) in bare
    ]
    there = f"; what lies there:\n{listing(instead, 20)}" if instead else ""
    raise DataError(f"no usable image in the folders of these clients of {folder}: {', '.join(bare)}{there}")


def _batch(
    folder: Path,
    pictures: list[Picture],
    size: tuple[int, int],
    onto: PreparedSet | None,
    options: AddOptions,
    notes: Intake,
) -> Batch | None:
    """Return the pictures as they are stored, with notes of their conversions; None of no pictures."""
    if not pictures:
        return None
    channels = channels_of(pictures) if onto is None else onto.manifest.shape[0]
    files = [picture.path for picture in pictures]
    label = None if options.labels is None else read_labels(options.labels, files, onto, notes)
    extra = {}
    for picture in pictures:
        if picture.resized:
            extra = {"on_odd": "resize"}  # what a model of the set does with new images
            notes.adapt(f"resized to {size[0]}x{size[1]} (height x width)", picture.path, picture.resized)
        if picture.changes:
            notes.adapt(CONVERTED, picture.path, picture.changes)
        if picture.pixels.ndim == 2 and channels == 3:
            notes.adapt(GREY_IN_COLOUR, picture.path)
    notes.take("files", len(pictures))
    known = onto.manifest.extra["clients"] if onto else ()
    tops = list(map(_top, files))
    client_of = one_spelling_each(tops, "clients", folder, known, notes)
    owner = [client_of[top] for top in tops]
    x = np.empty((len(pictures), channels, *size), dtype=np.uint8)
    for place, picture in zip(x, pictures, strict=True):
        place[:] = in_form(picture.pixels, place.shape)
    return Batch(
        "image",
        x,
        label,
        owner,
        list(dict.fromkeys(owner)),
        files,
        source=f"folder {folder.name}",
        extra=extra,
        intake=notes,
    )


def _top(path: str) -> str:
    return path.partition("/")[0]


def _wanted_size(size: tuple[int, int] | None, onto: PreparedSet | None) -> tuple[int, int] | None:
    """Return the size of the set to append to, else the size that the user gives."""
    if onto is None:
        return size
    _, height, width = onto.manifest.shape
    if size not in (None, (height, width)):
        raise DataError(f"{onto.manifest.name!r} holds images of {height}x{width}: leave the size out")
    return height, width


def refuse(rejected: Mapping[str, Sequence[RejectedFile]], folder: Path, what: str = "image") -> None:
    """Raise one error about all rejected files, if there are any.

    Args:
        rejected: files, by what can be done about them.
        folder: that they lie in.
        what: one of them is called.

    Raises:
        DataError: names the first rejected files of each kind.
    """
    complaints = [
        f"{len(files)} {what}{'s' * (len(files) > 1)} of {folder} cannot be used; {advice}:\n"
        f"{listing(files, MAX_NAMED)}"
        for advice, files in rejected.items()
        if files
    ]
    if complaints:
        raise DataError("\n".join(complaints))
