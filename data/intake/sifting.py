"""New images sifted one by one before they are added: those that cannot be added are left out, the others stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.core.errors import DataError
from shoal.data.intake.choices import OnBad, OnOdd
from shoal.data.intake.held_out import MIN_TRAIN
from shoal.data.intake.images import Picture, Rejected, common_size, listing, odd_sized, read_images
from shoal.data.intake.own_images import coloured_pictures, compared_with_set, wanted_size
from shoal.data.intake.spelling import value_key
from shoal.data.sets.intake_notes import left_out_before, names_file
from shoal.data.sets.prepared import Prepared

SKIPPED = "skipped"
"""Entry of a manifest's `extra`: paths and reasons of the files that additions left out."""
MAX_NAMED = 10
"""An error names at most so many files."""


@dataclass(frozen=True)
class Sifted:
    """The new files of a folder: those to add, and those to leave out.

    Args:
        usable: paths below the folder.
        left_out: files that cannot be added, with reasons.
        waiting: usable files of new clients that have too few of them to be trained on.
    """

    usable: tuple[str, ...]
    left_out: tuple[Rejected, ...]
    waiting: tuple[str, ...] = ()


def sift(folder: Path, names: Sequence[str], onto: Prepared | None, on_bad: OnBad, on_odd: OnOdd) -> Sifted:
    """Read new images, and find those that cannot be added to a set and may be left out.

    Args:
        folder: with a sub-folder of images for each client.
        names: paths below it.
        onto: the set that the images are for; None: a new one.
        on_bad: skip leaves out unreadable images, coloured ones where the set is grey, and other images than those of
            their names in the set.
        on_odd: skip leaves out images of another size.
    """
    wanted = wanted_size(None, onto)
    pictures, unreadable = read_images([folder / name for name in names], folder, wanted, resize=on_odd == "resize")
    left_out: list[Rejected] = []
    if on_bad == "skip":
        left_out += unreadable
    if pictures:
        size = wanted or common_size(pictures)
        odd = odd_sized(pictures, size)
        if on_odd == "skip":
            left_out += odd
        if on_bad == "skip" and onto is not None:
            left_out += _unfit(_without(pictures, odd), size, onto)
    dropped = {each.path for each in left_out}
    usable = [name for name in names if name not in dropped]
    waiting = _waiting(usable, onto)
    return Sifted(tuple(name for name in usable if name not in waiting), tuple(left_out), waiting)


def _unfit(pictures: list[Picture], size: tuple[int, int], onto: Prepared) -> list[Rejected]:
    """Return the images of the set's size that it cannot take."""
    coloured = coloured_pictures(pictures, onto)
    _, changed = compared_with_set(_without(pictures, coloured), size, onto)
    return [*coloured, *changed]


def _without(pictures: list[Picture], rejected: list[Rejected]) -> list[Picture]:
    dropped = {each.path for each in rejected}
    return [picture for picture in pictures if picture.path not in dropped]


def _waiting(usable: Sequence[str], onto: Prepared | None) -> tuple[str, ...]:
    """Return the files of new clients that have too few images to be trained on."""
    known: set[str] = set()
    if onto is not None:
        known = set(map(value_key, onto.manifest.extra["clients"]))
    count = Counter(name.split("/")[0] for name in usable)
    few = {client for client, images in count.items() if value_key(client) not in known and images < MIN_TRAIN}
    return tuple(name for name in usable if name.split("/")[0] in few)


def not_seen_before(left_out: Sequence[Rejected], folder: Path, onto: Prepared | None) -> list[Rejected]:
    """Return the files that earlier additions to a set have not left out, and those that were written since.

    Additions that took files are known by the set, and those that only left files out by the notes beside it.

    Args:
        left_out: the files.
        folder: where they lie.
        onto: the set; None: there is none yet.
    """
    if onto is None:
        return list(left_out)
    known = {path for path, _ in onto.manifest.extra.get(SKIPPED, [])} | left_out_before(onto.folder)
    judged = max(_written(onto.folder / "manifest.json"), _written(names_file(onto.folder)))
    return [each for each in left_out if each.path not in known or _written(folder / each.path) > judged]


def _written(path: Path) -> float:
    """Return when a file was written; 0 for one that cannot be looked at, such as a link to nothing."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def refuse_too_many(
    left_out: Sequence[Rejected], usable: int, share: float, folder: Path, advice: str, what: str = "images"
) -> None:
    """Refuse an addition of which too large a share would be left out; a single file is never too much.

    Args:
        left_out: the files to leave out.
        usable: number of the others.
        share: the largest share of all of them that may be left out.
        folder: where they lie, for the error.
        advice: what to do, for the error.
        what: the files are, for the error.

    Raises:
        DataError: names some of them.
    """
    total = len(left_out) + usable
    if len(left_out) > 1 and len(left_out) > share * total:
        raise DataError(
            f"{len(left_out)} of {total} new {what} in {folder} cannot be used, more than {share:.0%}; {advice}. Such "
            f"as:\n{listing(list(left_out)[:MAX_NAMED])}"
        )
