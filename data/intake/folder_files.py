"""The files of a folder, at any depth, and notes of what is left out.

One rule for every reader: what begins with `.`, `@` or `#` belongs to an operating system or a network drive, and links
may lead anywhere. Both are left out and listed, and so is every file that the reader does not take.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Container, Iterator
from pathlib import Path

from shoal.core.errors import short_text
from shoal.data.intake.image_decoding import why_not_read
from shoal.data.sets.intake_notes import Intake

CANNOT_BE_LISTED = "cannot be listed"
HIDDEN = "begins with ., @ or #"
LINK = "a link: copy what belongs to the set"
NO_TEXT = "its name is not text in UTF-8"


def is_hidden(name: str) -> bool:
    """Return whether a file or folder is left out by its name."""
    return name.startswith((".", "@", "#"))


def files_below(folder: Path, intake: Intake) -> Iterator[str]:
    """Yield the files at any depth below a folder, as paths below it with /, those of one folder in order.

    Args:
        folder: the folder.
        intake: counts the files, and notes what is left out.
    """

    def note(error: OSError) -> None:
        intake.leave_out(f"{CANNOT_BE_LISTED} ({short_text(error)})", str(error.filename))

    for place, folders, files in os.walk(folder, onerror=note):
        below = Path(place).relative_to(folder)
        entered = []
        for name in sorted(folders):
            path = (below / name).as_posix()
            if reason := _why_left_out(folder / path):
                intake.leave_out(reason, f"{path}/")
            else:
                entered.append(name)
        folders[:] = entered
        for name in sorted(files):
            path = (below / name).as_posix()
            intake.see("files")
            if reason := _why_left_out(folder / path):
                intake.leave_out(reason, path)
            else:
                yield path


def _why_left_out(path: Path) -> str:
    """Return why a file or folder is left out whatever it holds; empty if it is not."""
    if is_hidden(path.name):
        return HIDDEN
    if path.is_symlink():
        return LINK
    if not path.is_dir() and not path.is_file():
        return "no file with content"
    if path.name.encode("utf-8", "replace").decode() != path.name:
        return NO_TEXT
    return ""


def client_folders(folder: Path) -> list[str]:
    """Return the names of the sub-folders of a folder that are clients, sorted."""
    return sorted(
        path.name for path in folder.iterdir() if path.is_dir() and not path.is_symlink() and not is_hidden(path.name)
    )


def find_images(folder: Path, intake: Intake, known: Container[str] = ()) -> list[str]:
    """Return the image files at any depth below a folder, as sorted paths below it; leave out all others.

    Args:
        folder: the folder.
        intake: notes of what is seen and left out.
        known: paths of images that a set has: these are listed without being opened.
    """
    images = []
    for name in files_below(folder, intake):
        reason = None if name in known else why_not_read(folder / name)
        if reason is None:
            images.append(name)
        else:
            intake.leave_out(reason, name)
    return sorted(images, key=lambda name: Path(name).parts)


def one_spelling(name: str) -> str:
    """Return a name in the composed form of Unicode (NFC): macOS writes letters and accents apart."""
    return unicodedata.normalize("NFC", name)
