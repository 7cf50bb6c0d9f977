"""Files of a folder are told by content; what is left out is named, and no link is followed."""

from __future__ import annotations

import json
import os
import tracemalloc
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image, features

from shoal.core.errors import DataError
from shoal.data.intake.folder_files import HIDDEN, LINK, find_images
from shoal.data.intake.image_decoding import NO_IMAGE, OTHER_TIFF
from shoal.data.intake.images import read_images, usual_size
from shoal.data.intake.options import AddOptions
from shoal.data.intake.own_images import read_folder
from shoal.data.intake.own_store import NothingNew, store_batch
from shoal.data.sets.intake_notes import Intake, names_file
from tests.added_sets import add_set

HEIC_HEAD = b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic" + bytes(40)


def picture(path: Path, seed: int = 0, side: int = 6, kind: str = "PNG") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side), dtype=np.uint8)
    Image.fromarray(pixels).save(path, kind)


def test_content_counts_and_not_the_name(tmp_path: Path) -> None:
    a = tmp_path / "in" / "a"
    for number, name in enumerate(("0.jpg", "1.jfif", "2.jpe", "3.JPE", "4", "5.dat", "6.heic")):
        picture(a / name, number, kind="JPEG")
    if features.check("avif"):
        picture(a / "7.avif", 7, kind="AVIF")
    picture(a / "photo.nef", 8, kind="TIFF")
    for name, content in {
        "8.heic": HEIC_HEAD,
        "film.mov": b"\x00\x00\x00\x14ftypqt  \x00\x00\x00\x00qt  " + bytes(40),
        "drawing.svg": b"<svg/>",
        "notes.txt": b"P1 is the first patient",
        "car.txt": b"BMW is a car, and this is text",
        "none": b"",
    }.items():
        (a / name).write_bytes(content)
    intake = Intake()
    prepared = add_set(tmp_path / "in", "mine", tmp_path / "store", intake=intake)
    taken = 8 if features.check("avif") else 7
    assert (prepared.manifest.train, intake.taken["files"]) == (taken, taken)
    assert intake.seen["files"] == taken + 7
    assert {reason: sorted(names) for reason, names in intake.left_out.items()} == {
        NO_IMAGE: ["a/8.heic", "a/car.txt", "a/drawing.svg", "a/film.mov", "a/none", "a/notes.txt"],
        OTHER_TIFF: ["a/photo.nef"],
    }
    read = json.loads(names_file(prepared.folder).read_text())
    assert read["left_out"] == intake.left_out


def test_clients_without_an_image_are_told_what_they_hold(tmp_path: Path) -> None:
    picture(tmp_path / "in" / "a" / "1.png")
    (tmp_path / "in" / "phone").mkdir()
    (tmp_path / "in" / "phone" / "1.heic").write_bytes(HEIC_HEAD)
    with pytest.raises(
        DataError, match=r"(?s)no usable image in the folders of .*: phone;.*phone/1\.heic: no image that"
    ):
        add_set(tmp_path / "in", "mine", tmp_path / "store")


def test_hidden_files_and_folders_of_drives_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    system = ("@eaDir", ".thumbnails", "#recycle", ".@__thumb", "@Recycle")
    for client in ("a", "b"):
        picture(folder / client / "1.png", ord(client))
        for place in system:
            picture(folder / client / place / "1.png" / "THUMB.jpg", kind="JPEG")
            picture(folder / place / "2.png")
    for name in ("._1.png", "Thumbs.db", ".DS_Store"):
        (folder / "a" / name).write_bytes(b"\0")
    intake = Intake()
    prepared = add_set(folder, "mine", tmp_path / "store", intake=intake)
    assert prepared.manifest.train == 2
    assert prepared.manifest.extra["clients"] == ["a", "b"]
    folders = [f"{place}{name}/" for place in ("", "a/", "b/") for name in system]
    assert sorted(intake.left_out[HIDDEN]) == sorted([*folders, "a/._1.png", "a/.DS_Store"])
    assert list(intake.left_out[NO_IMAGE]) == ["a/Thumbs.db"]
    assert read_folder(folder, prepared, grows=True).batch is None


def test_links_are_left_out(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "in", tmp_path / "private"
    picture(folder / "a" / "1.png", 1)
    picture(folder / "b" / "2.png", 2)
    picture(elsewhere / "secret.png", 3)
    (folder / "a" / "same.png").symlink_to("1.png")
    (folder / "a" / "circle").symlink_to(folder)
    (folder / "twin").symlink_to(folder / "b")
    (folder / "a" / "lost.png").symlink_to("nowhere.png")
    (folder / "a" / "secret").symlink_to(elsewhere / "secret.png")
    os.mkfifo(folder / "a" / "pipe.png")
    intake = Intake()
    assert find_images(folder, intake) == ["a/1.png", "b/2.png"]
    assert {reason: sorted(names) for reason, names in intake.left_out.items()} == {
        LINK: ["a/circle/", "a/lost.png", "a/same.png", "a/secret", "twin/"],
        "no file with content": ["a/pipe.png"],
    }
    prepared = add_set(folder, "mine", tmp_path / "store")
    assert (prepared.manifest.train, prepared.manifest.extra["clients"]) == (2, ["a", "b"])


def test_a_set_knows_a_file_in_the_other_unicode_form(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    composed, apart = (f"caf{unicodedata.normalize(form, 'é')}.png" for form in ("NFC", "NFD"))
    picture(folder / "a" / apart, 1)
    prepared = add_set(folder, "mine", tmp_path / "store")
    (folder / "a" / apart).unlink()  # the folder comes again from a machine that spells names the other way
    picture(folder / "a" / composed, 1)
    for grows in (False, True):
        assert read_folder(folder, prepared, grows=grows).batch is None
    with pytest.raises(NothingNew):
        add_set(folder, "mine", tmp_path / "store", append=True)
    picture(folder / "a" / composed, 5)
    with pytest.raises(DataError, match="is another image than the one of this name"):
        read_folder(folder, prepared)


def test_names_of_odd_letters_are_escaped_in_the_file_beside_the_set(tmp_path: Path) -> None:
    picture(tmp_path / "in" / "a" / "1.png")
    (tmp_path / "in" / "a" / "line\nbreak\x1b[2J.txt").write_text("no")
    (tmp_path / "in" / "a" / "\udcff.txt").write_text("no")
    intake = Intake()
    prepared = add_set(tmp_path / "in", "mine", tmp_path / "store", intake=intake)
    shown = {name for row in intake.rows() for name in row.names}
    assert shown == {"a/line\\nbreak\\x1b[2J.txt", "a/\\udcff.txt"}
    text = names_file(prepared.folder).read_bytes().decode("ascii")
    assert "\x1b" not in text
    assert json.loads(text)["left_out"] == intake.left_out


def test_a_night_says_what_it_leaves_out(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for number in range(3):
        picture(folder / "a" / f"{number}.png", number)
    batch = read_folder(folder, grows=True).batch
    assert batch is not None
    first = store_batch("mine", tmp_path / "store", batch, 0, 0)
    (folder / "a" / "3.heic").write_bytes(HEIC_HEAD)
    picture(folder / "loose.png", 8)
    arrivals = read_folder(folder, first, AddOptions(on_bad="skip"), grows=True)
    assert arrivals.batch is None
    assert set(arrivals.intake.left_out) == {NO_IMAGE, "in no client's folder"}
    assert [each.path for each in arrivals.left_out] == ["loose.png"]


def test_memory_does_not_grow_with_the_number_of_photos(tmp_path: Path) -> None:
    names = [f"{number:02}.png" for number in range(24)]
    for number, name in enumerate(names):
        side = 900 + number if number < 20 else 8  # no two of the large ones are alike: 8x8 is the most common size
        Image.fromarray(np.full((side, side, 3), number, np.uint8)).save(tmp_path / name)
    tracemalloc.start()
    pictures, rejected = read_images(names, tmp_path, usual_size(names, tmp_path), resize=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not rejected
    assert {picture.pixels.shape for picture in pictures} == {(8, 8, 3)}
    assert [int(picture.pixels[0, 0, 0]) for picture in pictures] == list(range(24))
    assert peak < 4 * 900 * 900 * 3  # all of them would take 49 MB


def test_the_usual_size_is_that_of_turned_images(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    for number in range(3):
        Image.fromarray(np.zeros((4, 6), np.uint8)).save(
            tmp_path / f"{number}.jpg", exif=exif if number else Image.Exif()
        )
    assert usual_size(["0.jpg", "1.jpg", "2.jpg"], tmp_path) == (6, 4)
