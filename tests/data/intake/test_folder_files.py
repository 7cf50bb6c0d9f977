"""Files of a folder are told by content; what is left out is named, and links lead nowhere else."""

from __future__ import annotations

import json
import os
import tracemalloc
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

from shoal.core.errors import DataError
from shoal.data.intake.arrivals import arrivals
from shoal.data.intake.folder_files import FOLDER_LINK, OUTSIDE_LINK, find_images
from shoal.data.intake.image_kind import HEIC, NO_IMAGE, RAW, image_format
from shoal.data.intake.images import read_images
from shoal.data.intake.own import add_folder, read_folder
from shoal.data.intake.own_images import NothingNew
from shoal.data.intake.own_store import store_batch
from shoal.data.sets.intake_notes import Intake, names_file
from tests.data.intake.test_image_decoding import tiff

HEIC_HEAD = b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic" + bytes(40)


def picture(path: Path, seed: int = 0, side: int = 6, kind: str = "PNG") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side), dtype=np.uint8)
    Image.fromarray(pixels).save(path, kind)


def names(folder: Path, intake: Intake | None = None) -> list[str]:
    found = find_images(folder, intake or Intake())
    return [path.relative_to(folder).as_posix() for path in found.images]


def test_content_counts_and_not_the_name(tmp_path: Path) -> None:
    a = tmp_path / "in" / "a"
    for number, name in enumerate(("0.jpg", "1.jfif", "2.jpe", "3.JPE", "4", "5.dat", "6.heic")):
        picture(a / name, number, kind="JPEG")
    if features.check("avif"):
        picture(a / "7.avif", 7, kind="AVIF")
    for name, content in {
        "8.heic": HEIC_HEAD,
        "9.jpg": HEIC_HEAD,
        "film.mov": b"\x00\x00\x00\x14ftypqt  \x00\x00\x00\x00qt  " + bytes(40),
        "drawing.svg": b"<svg/>",
        "notes.txt": b"P1 is the first patient",
        "photo.nef": tiff(2, 8, b"\1\2").getvalue(),
        "6.heic~": b"",
    }.items():
        (a / name).write_bytes(content)
    intake = Intake()
    prepared = add_folder(tmp_path / "in", "mine", tmp_path / "store", intake=intake)
    taken = 8 if features.check("avif") else 7
    assert (prepared.manifest.train, intake.taken["files"]) == (taken, taken)
    assert intake.seen["files"] == taken + 7
    assert {reason: sorted(found) for reason, found in intake.left_out.items()} == {
        HEIC: ["a/8.heic", "a/9.jpg"],
        NO_IMAGE: ["a/film.mov", "a/notes.txt"],
        "image in a format that is not read (.svg): convert it to PNG": ["a/drawing.svg"],
        RAW: ["a/photo.nef"],
        "backup, or not whole, by its name": ["a/6.heic~"],
    }
    assert sorted(intake.noted["image by its content, whatever its name says"]) == ["a/4", "a/5.dat", "a/6.heic"]
    read = json.loads(names_file(prepared.folder).read_text())["additions"]
    assert [addition["left_out"] for addition in read] == [intake.left_out]


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"BM" + bytes(12) + (40).to_bytes(4, "little"), "BMP"),
        (b"BMW is a car, and this is text", None),
        (b"P5 # made by hand\n2 2 255\n", "PPM"),
        (b"P5 is a text", None),
        (b"II*\0", "TIFF"),
        (b"RIFF\0\0\0\0WEBP", "WEBP"),
        (b"RIFF\0\0\0\0WAVE", None),
        (b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf", "AVIF"),
        (b"", None),
    ],
)
def test_formats_by_their_first_bytes(head: bytes, kind: str | None) -> None:
    assert image_format(head) == kind


def test_clients_without_an_image_are_told_what_they_hold(tmp_path: Path) -> None:
    picture(tmp_path / "in" / "a" / "1.png")
    (tmp_path / "in" / "phone").mkdir()
    (tmp_path / "in" / "phone" / "1.heic").write_bytes(HEIC_HEAD)
    with pytest.raises(DataError, match=r"(?s)no image in the folders of these clients.*: phone;.*phone/1\.heic: HEIC"):
        add_folder(tmp_path / "in", "mine", tmp_path / "store")


def test_folders_of_drives_and_systems_are_not_entered(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    system = ("@eaDir", ".thumbnails", "__MACOSX", "#recycle", ".@__thumb", "$RECYCLE.BIN", "@Recycle", "lost+found")
    for client in ("a", "b"):
        picture(folder / client / "1.png", ord(client))
        for place in system:
            picture(folder / client / place / "1.png" / "THUMB.jpg", kind="JPEG")
            picture(folder / place / "2.png")
    for name in ("._1.png", "Thumbs.db", ".DS_Store", "desktop.ini"):
        (folder / "a" / name).write_bytes(b"\0")
    intake = Intake()
    prepared = add_folder(folder, "mine", tmp_path / "store", intake=intake)
    assert prepared.manifest.train == 2
    assert prepared.manifest.extra["clients"] == ["a", "b"]
    not_entered = intake.left_out["folder that is hidden or of the system, not entered"]
    assert sorted(not_entered) == sorted(f"{place}{name}/" for place in ("", "a/", "b/") for name in system)
    assert len(intake.left_out["hidden, or of the system"]) == 4
    assert arrivals(folder, prepared).new == ()


def test_links(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "in", tmp_path / "private"
    picture(folder / "a" / "1.png", 1)
    picture(folder / "b" / "2.png", 2)
    picture(elsewhere / "secret.png", 3)
    (folder / "a" / "same.png").symlink_to("1.png")
    (folder / "a" / "circle").symlink_to(folder)
    (folder / "twin").symlink_to(folder / "b")
    (folder / "a" / "self.txt").symlink_to("self.txt")
    (folder / "a" / "notes.txt").symlink_to(elsewhere)
    os.mkfifo(folder / "a" / "pipe.png")
    intake = Intake()
    found = find_images(folder, intake)
    assert [path.relative_to(folder).as_posix() for path in found.images] == ["a/1.png", "a/same.png", "b/2.png"]
    assert [(each.path, each.reason) for each in found.rejected] == [("a/notes.txt", OUTSIDE_LINK)]
    assert intake.left_out == {
        FOLDER_LINK: {"a/circle": "", "twin": ""},
        "a link to nothing": {"a/self.txt": ""},
        "no file with content": {"a/pipe.png": ""},
    }
    assert list(intake.noted.values()) == [{"a/same.png": ""}]
    (folder / "a" / "notes.txt").unlink()
    (folder / "a" / "lost.png").symlink_to("nowhere.png")
    (folder / "a" / "secret").symlink_to(elsewhere / "secret.png")
    with pytest.raises(
        DataError, match=r"2 images .*\n  a/lost\.png: a link to nothing\n  a/secret: a link to a place"
    ):
        add_folder(folder, "mine", tmp_path / "store")
    prepared = add_folder(folder, "mine", tmp_path / "store", on_bad="skip")
    assert (prepared.manifest.train, prepared.manifest.extra["clients"]) == (3, ["a", "b"])


def test_one_name_in_two_spellings(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    composed, apart = (f"caf{unicodedata.normalize(form, 'é')}.png" for form in ("NFC", "NFD"))
    picture(folder / "a" / composed, 1)
    picture(folder / "a" / apart, 1)
    picture(folder / "a" / "IMG.png", 2)
    picture(folder / "a" / "img.PNG", 2)
    picture(folder / "a" / "Other.png", 3)
    picture(folder / "a" / "other.png", 4)
    intake = Intake()
    assert len(names(folder, intake)) == 4
    assert sorted(intake.left_out["the same file in another spelling of its name"]) == [f"a/{composed}", "a/img.PNG"]
    prepared = add_folder(folder, "mine", tmp_path / "store")
    picture(folder / "a" / composed, 5)
    with pytest.raises(DataError, match=r"in another Unicode form, and it is another image: rename it"):
        read_folder(folder)
    # The folder comes again from a machine that spells names the other way.
    (folder / "a" / apart).unlink()
    picture(folder / "a" / composed, 1)
    assert arrivals(folder, prepared).new == ()
    with pytest.raises(NothingNew):
        read_folder(folder, prepared)
    picture(folder / "a" / composed, 5)
    with pytest.raises(DataError, match="1 files have changed"):
        read_folder(folder, prepared)


def test_names_of_odd_letters_are_escaped_in_the_file_beside_the_set(tmp_path: Path) -> None:
    picture(tmp_path / "in" / "a" / "1.png")
    (tmp_path / "in" / "a" / "line\nbreak\x1b[2J.txt").write_text("no")
    (tmp_path / "in" / "a" / "\udcff.txt").write_text("no")
    intake = Intake()
    prepared = add_folder(tmp_path / "in", "mine", tmp_path / "store", intake=intake)
    (row,) = [row for row in intake.rows() if row.what == f"left out: {NO_IMAGE}"]
    assert set(row.names) == {"a/line\\nbreak\\x1b[2J.txt", "a/\\udcff.txt"}
    text = names_file(prepared.folder).read_bytes().decode("ascii")
    assert "\x1b" not in text
    assert json.loads(text)["additions"][0]["left_out"] == intake.left_out


def test_a_night_says_what_it_leaves_out(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for number in range(3):
        picture(folder / "a" / f"{number}.png", number)
    first = store_batch("mine", tmp_path / "store", read_folder(folder, only=arrivals(folder).new), 0, 0, by_hash=True)
    (folder / "a" / "3.heic").write_bytes(HEIC_HEAD)
    picture(folder / "late" / "1.png", 9)
    picture(folder / "loose.png", 8)
    found = arrivals(folder, first)
    assert found.new == ()
    assert set(found.intake.left_out) == {HEIC, "of a new client with a single image: waits for more"}
    assert [(each.path, each.kind) for each in found.rejected] == [("loose.png", NO_CLIENT)]


NO_CLIENT = "in no client's folder"


@pytest.mark.parametrize("size", [(8, 8), None])
def test_memory_does_not_grow_with_the_number_of_photos(tmp_path: Path, size: tuple[int, int] | None) -> None:
    paths = [tmp_path / f"{number:02}.png" for number in range(24)]
    for number, path in enumerate(paths):
        side = 900 + number if number < 20 else 8  # no two of the large ones are alike: 8x8 is the most common size
        Image.fromarray(np.full((side, side, 3), number, np.uint8)).save(path)
    tracemalloc.start()
    pictures, rejected = read_images(paths, tmp_path, size, resize=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not rejected
    assert {picture.pixels.shape for picture in pictures} == {(8, 8, 3)}
    assert [int(picture.pixels[0, 0, 0]) for picture in pictures] == list(range(24))
    assert peak < 4 * 900 * 900 * 3  # all of them would take 49 MB


def test_a_broken_file_has_no_vote_on_the_size(tmp_path: Path) -> None:
    for number in range(2):
        picture(tmp_path / f"{number}.png", number, 6)
    for number in range(2, 5):
        path = tmp_path / f"{number}.png"
        picture(path, number, 40)
        path.write_bytes(path.read_bytes()[:200])
    pictures, rejected = read_images(sorted(tmp_path.iterdir()), tmp_path)
    assert [picture.pixels.shape for picture in pictures] == [(6, 6), (6, 6)]
    assert len(rejected) == 3
