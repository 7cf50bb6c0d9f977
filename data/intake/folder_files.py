"""The image files of a folder, at any depth, and notes of everything else that lies there.

Images are recognised by their first bytes. Hidden files, and files that operating systems and network drives put beside
photos, are left out. A link to a file counts if the file lies in the folder too. Links to folders are never followed,
so that no link leads in a circle or out of the folder.
"""

from __future__ import annotations

import filecmp
import os
import unicodedata
from collections import deque
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from shoal.core.errors import short_text
from shoal.data.intake.image_kind import SUFFIXES, why_not_read
from shoal.data.intake.images import Rejected
from shoal.data.sets.intake_notes import Intake, printable

SYSTEM_FOLDERS = frozenset(
    {
        *("@eadir", "@tmp", "@recycle", "@recently-snapshot", "#recycle", "#snapshot", "$recycle.bin", "recycler"),
        *("system volume information", "__macosx", "lost+found", "found.000", "network trash folder"),
        *("temporary items", "thumbnails.noindex"),
    }
)
"""In lower case: folders of Synology, QNAP, Windows and macOS; hidden ones such as .@__thumb need no list."""
SYSTEM_FILES = frozenset({"thumbs.db", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini", "icon\r"})
BACKUPS = ("~", ".bak", ".orig", "_original", ".tmp", ".part", ".crdownload")
"""Suffixes of backups and of unfinished downloads: their images are repeated or incomplete."""
OUTSIDE_LINK = "a link to a place outside the folder: copy the files that belong to the set"
FOLDER_LINK = "a link to a folder: its files count where they lie"
NO_TEXT = "its name is not text in UTF-8"


@dataclass
class FoundFiles:
    """The files of a folder.

    Attributes:
        images: files that are images by content or name, in the order of their paths.
        rejected: files to refuse or skip, with reasons.
    """

    images: list[Path] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)


def find_images(folder: Path, intake: Intake, known: Container[str] = ()) -> FoundFiles:
    """Find the image files at any depth below a folder.

    Args:
        folder: the folder.
        intake: notes of what is seen and left out.
        known: names below the folder of images that a set has: these are listed without being opened.
    """
    search = _Search(folder, folder.resolve(), intake, known)
    pending = deque([folder])
    while pending:
        pending.extendleft(reversed(search.visit(pending.popleft())))
    search.found.images.sort()
    search.found.rejected.sort(key=lambda each: each.path)
    search.drop_respelled()
    return search.found


def is_system(name: str) -> bool:
    """Return whether a file or folder is hidden, or belongs to an operating system or a network drive, by its name."""
    low = name.lower()
    return name.startswith(".") or low in SYSTEM_FOLDERS or low in SYSTEM_FILES


def one_spelling(name: str) -> str:
    """Return a name in the composed form of Unicode (NFC): macOS writes letters and accents apart."""
    return unicodedata.normalize("NFC", name)


def spellings(names: Iterable[str]) -> dict[str, str]:
    """Return each name by its one spelling."""
    return {one_spelling(name): name for name in names}


@dataclass
class _Search:
    folder: Path
    root: Path
    intake: Intake
    known: Container[str]
    found: FoundFiles = field(default_factory=FoundFiles)

    def visit(self, place: Path) -> list[Path]:
        """Note or list everything in one folder, and return the sub-folders to visit."""
        below: list[Path] = []
        try:
            with os.scandir(place) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError as error:
            self._reject(f"{self._name(place)}/", f"cannot be listed ({short_text(error)})", "cannot be listed")
            return below
        for entry in entries:
            path = place / entry.name
            if not entry.is_dir(follow_symlinks=False):
                self._see(entry, path)
            elif is_system(entry.name):
                self.intake.leave_out("folder that is hidden or of the system, not entered", f"{self._name(path)}/")
            else:
                below.append(path)
        return below

    def _see(self, entry: os.DirEntry[str], path: Path) -> None:
        """Note or list an entry that is not a folder."""
        name = self._name(path)
        self.intake.see("files")
        if is_system(entry.name):
            self.intake.leave_out("hidden, or of the system", name)
        elif entry.is_symlink():
            self._take_link(path, name)
        elif not entry.is_file():
            self.intake.leave_out("no file with content", name)
        elif name in self.known:
            self.found.images.append(path)
        else:
            self._take_file(path, name)

    def _take_link(self, path: Path, name: str) -> None:
        try:
            target = path.resolve(strict=True)
        except (OSError, RuntimeError):  # RuntimeError: a circle of links
            self._reject_image(name, "a link to nothing")
            return
        inside = target.is_relative_to(self.root)
        if target.is_dir() and inside:
            self.intake.leave_out(FOLDER_LINK, name)
        elif target.is_dir():
            self._reject(name, OUTSIDE_LINK)
        elif not target.is_file():
            self.intake.leave_out("no file with content", name)
        elif not inside:
            self._reject_image(name, OUTSIDE_LINK)
        elif self._take_file(path, name):
            self.intake.note("link to another file of the folder, taken as a copy of it", name)

    def _take_file(self, path: Path, name: str) -> bool:
        """List a file, or note why not; return whether it is listed."""
        if name.lower().endswith(BACKUPS):
            self.intake.leave_out("backup, or not whole, by its name", name)
            return False
        try:
            reason = why_not_read(path)
        except OSError as error:
            self._reject(name, f"cannot be read ({short_text(error)})", "cannot be read")
            return False
        if reason is not None:
            self.intake.leave_out(reason, name)
            return False
        if _text(name) != name:
            self._reject(name, NO_TEXT)
            return False
        if path.suffix.lower() not in SUFFIXES:
            self.intake.note("image by its content, whatever its name says", name)
        self.found.images.append(path)
        return True

    def drop_respelled(self) -> None:
        """Keep one of several files whose names read alike.

        Files of equal content count once. If the content differs, names that differ only in their Unicode form are
        refused, since nobody can tell them apart; names that differ in capitals are two images.
        """
        first: dict[str, Path] = {}
        kept: list[Path] = []
        for path in self.found.images:
            name = self._name(path)
            other = first.setdefault(one_spelling(name).casefold(), path)
            twin = self._name(other)
            if other is path or name in self.known:
                kept.append(path)
            elif filecmp.cmp(path, other, shallow=False):
                self.intake.leave_out("the same file in another spelling of its name", name, f"as {printable(twin)}")
            elif one_spelling(twin) == one_spelling(name):
                reason = f"its name is that of {twin!a} in another Unicode form, and it is another image: rename it"
                self._reject(name, reason, "the name of another file in another Unicode form")
            else:
                kept.append(path)
        self.found.images = kept

    def _reject_image(self, name: str, reason: str) -> None:
        """Reject a file that is or may be an image by its name; leave out anything else."""
        suffix = Path(name).suffix.lower()
        if suffix in SUFFIXES or not suffix:
            self._reject(name, reason)
        else:
            self.intake.leave_out(reason, name)

    def _reject(self, name: str, reason: str, kind: str = "") -> None:
        self.found.rejected.append(Rejected(_text(name), reason, kind))

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()


def _text(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()
