"""New data of a night: all of it or nothing, and only under settings that move nobody's samples."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shoal.core.errors import DataError, ShoalError
from shoal.data.sets.intake_notes import names_file
from shoal.data.sets.prepare import prepare
from shoal.engine.settings import places
from shoal.lifecycle import taking_in
from shoal.lifecycle.dvc_tracking import dvc
from shoal.lifecycle.night_settings import NightSettings
from shoal.lifecycle.taking_in import NightError, take_in, update_from_dvc
from tests.planted_images import write_clients, write_new

Make = Callable[..., Any]
PHOTOS: dict[str, Any] = {
    "data": {"name": "photos", "limit": None},
    "partition": {"kind": "auto", "clients": None},
    "model": {"clusters": 3},
}
NIGHT = NightSettings(watch="incoming")


def digest() -> str:
    return prepare("photos", places.store(), force=True).manifest.digest  # every byte is read


def test_what_is_new_is_taken_and_the_rest_is_not_read(home: Path, small: Make) -> None:
    settings, incoming = small(**PHOTOS), home / "incoming"
    with pytest.raises(DataError, match=r"the watched folder .* does not exist"):
        take_in(settings, NIGHT)
    incoming.mkdir()
    with pytest.raises(DataError, match="has no images yet"):
        take_in(settings, NIGHT)
    write_clients(incoming)
    first = take_in(settings, NIGHT)
    assert (first.new, first.digest) == (63, digest())
    for path in incoming.rglob("*.png"):  # what was taken may go
        path.unlink()
    assert take_in(settings, NIGHT).new == 0
    write_new(incoming / "north", each=2)
    write_new(incoming / "abroad", each=1)
    Image.new("L", (12, 12), 30).save(incoming / "lab 3" / "dark-more.png")
    second = take_in(settings, NIGHT)
    assert second.new == 10
    assert second.message.startswith("10 new images of 3 clients in ")
    again = take_in(settings, NIGHT)
    assert (again.new, again.digest) == (0, second.digest)


@pytest.mark.long
def test_a_night_without_news_tells_dvc_what_a_killed_one_did_not(
    home: Path, small: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small(**PHOTOS)
    assert dvc(home, "init", "--no-scm").returncode == 0
    write_clients(home / "incoming")
    with monkeypatch.context() as patch:
        patch.setattr(taking_in, "track", killed)
        with pytest.raises(KeyboardInterrupt):
            take_in(settings, NIGHT)
    pointer = places.store() / "own" / "photos.dvc"
    assert (take_in(settings, NIGHT).new, pointer.exists()) == (0, True)
    assert dvc(home, "status", "--quiet", str(pointer)).returncode == 0


def killed(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_bad_night_changes_nothing(home: Path, small: Make) -> None:
    settings, incoming = small(**PHOTOS), home / "incoming"
    write_clients(incoming)
    take_in(settings, NIGHT)
    before = digest()
    rng = np.random.default_rng(0)

    def put(name: str, pixels: np.ndarray) -> Path:
        path = incoming / "north" / name
        Image.fromarray(pixels).save(path)
        return path

    def refused(match: str, *paths: Path, **night: Any) -> None:
        with pytest.raises(DataError, match=match):
            take_in(settings, NightSettings(watch="incoming", on_bad="refuse", on_odd="refuse", **night))
        assert digest() == before
        for path in paths:
            path.unlink()

    good = put("good.png", np.full((12, 12), 20, np.uint8))
    broken = incoming / "north" / "broken.png"
    broken.write_bytes(good.read_bytes()[:50])
    refused(r"north/broken\.png: unreadable", broken)
    refused("odd-sized: 9x9", put("small.png", np.full((9, 9), 20, np.uint8)))
    refused("coloured, and the set is grey", put("red.png", np.full((12, 12, 3), (200, 0, 0), np.uint8)))
    noise = [put(f"noise{k}.png", rng.integers(0, 255, (12, 12), dtype=np.uint8)) for k in range(30)]
    refused("30 of 31 new images .* are unlike every image that 'photos' has; .*night.strange to 1")
    assert take_in(settings, NightSettings(watch="incoming", strange=1)).new == 31
    assert len(noise) == 30


def test_a_night_says_what_it_adapted_and_left_out(home: Path, small: Make) -> None:
    settings, incoming = small(**PHOTOS), home / "incoming"
    write_clients(incoming)
    take_in(settings, NIGHT)
    for name in ("dark-deep.png", "dark-again.png"):
        Image.fromarray(np.full((12, 12), 20, np.uint8)).convert("LA").save(incoming / "north" / name)
    (incoming / "north" / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40))
    (incoming / "north" / "lost.png").symlink_to("nowhere.png")
    second = take_in(settings, NIGHT)
    assert second.new == 2
    left_out = "left out: 1 a link: copy what belongs to the set, 1 no image that Pillow reads"
    assert second.message.endswith(
        "incoming; adapted: 2 image turned by its EXIF orientation, converted to RGB, or its first frame; "
        f"{left_out}; noted: 1 copy of another image, on the same side of the test part"
    )
    assert len(json.loads(names_file(Path(second.folder)).read_text())["left_out"]) == 2
    again = take_in(settings, NIGHT)
    assert again.message.endswith(f"; {left_out}")
    assert again.left_out == ()


def test_single_bad_files_are_left_out_and_told_once(home: Path, small: Make) -> None:
    settings, incoming = small(**PHOTOS), home / "incoming"
    write_clients(incoming)
    take_in(settings, NIGHT)
    before = digest()
    north = incoming / "north"

    def put(name: str, pixels: np.ndarray) -> None:
        Image.fromarray(pixels).save(north / name)

    grey = np.full((12, 12), 20, np.uint8)
    (north / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(20))
    one_file = take_in(settings, NIGHT)  # the only new file: of its client, and of the night
    assert (one_file.new, digest()) == (0, before)
    assert [each.split(":")[0] for each in one_file.left_out] == ["north/broken.png"]
    assert take_in(settings, NIGHT).left_out == ()  # nothing else came, and it was told last night
    (north / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(30))
    assert [each.split(":")[0] for each in take_in(settings, NIGHT).left_out] == ["north/broken.png"]

    put("small.png", grey[:9, :9])
    put("red.png", np.full((12, 12, 3), (200, 0, 0), np.uint8))
    known = next(path for path in sorted(north.glob("dark-*.png")))
    Image.fromarray(np.full((12, 12), 99, np.uint8)).save(known)  # another image under the name of one in the set
    with pytest.raises(DataError, match=r"3 of 3 new files in .* cannot be used, more than 20%"):
        take_in(settings, NIGHT)
    for number in range(16):
        put(f"dark-new{number}.png", grey + np.uint8(number))
    taken = take_in(settings, NIGHT)
    assert taken.new == 16
    reasons = dict(each.split(": ", 1) for each in taken.left_out)
    assert set(reasons) == {f"north/{name}" for name in ("small.png", "red.png", known.name)}
    assert reasons["north/red.png"] == "coloured, and the set is grey"
    assert reasons["north/small.png"].startswith("odd-sized: 9x9")
    assert "is another image than the one of this name" in reasons[f"north/{known.name}"]

    again = take_in(settings, NIGHT)  # the same files a night later are no news, and no reason to refuse
    assert (again.new, again.left_out) == (0, ())
    for number in range(3):
        put(f"dark-later{number}.png", grey + np.uint8(20 + number))
    assert take_in(settings, NIGHT).new == 3
    Image.fromarray(grey + np.uint8(40)).save(north / "small.png")  # mended
    mended = take_in(settings, NIGHT)
    assert (mended.new, mended.left_out) == (1, ())


def test_images_that_lie_in_no_clients_folder_are_told_once(home: Path, small: Make) -> None:
    settings, incoming = small(**PHOTOS), home / "incoming"
    write_clients(incoming)
    take_in(settings, NIGHT)
    image = Image.fromarray(np.full((12, 12), 20, np.uint8))
    image.save(incoming / "loose.png")
    told = take_in(settings, NIGHT)
    assert (told.new, told.left_out) == (0, ("loose.png: in no client's folder: move it into one",))
    write_new(incoming / "north", each=2)
    taken = take_in(settings, NIGHT)
    assert (taken.new, taken.left_out) == (6, ())
    assert "left out: 1 in no client's folder" in taken.message
    for number in range(6):
        image.save(incoming / f"more{number}.png")
    with pytest.raises(DataError, match=r"6 of 6 new files in (?s:.*)more0\.png: in no client's folder"):
        take_in(settings, NIGHT)


def test_labels_may_be_ahead_of_the_files(home: Path, small: Make) -> None:
    settings = small(**PHOTOS)
    incoming = home / "incoming"
    write_clients(incoming)
    files = [path.relative_to(incoming).as_posix() for path in sorted(incoming.rglob("*.png"))]
    rows = [f"{file},{file.rpartition('/')[2].partition('-')[0]}" for file in (*files, "north/dark-later.png")]
    (home / "labels.csv").write_text("\n".join(["file,label", *rows]))
    labelled = NightSettings(watch="incoming", labels="labels.csv")
    first = take_in(settings, labelled)
    assert first.new == len(files)
    assert "1 table with labels of other files" in first.message
    (incoming / files[0]).unlink()
    Image.new("L", (12, 12), 30).save(incoming / "north" / "dark-later.png")
    assert take_in(settings, labelled).new == 1


def test_the_limit_of_bad_files_is_a_share(home: Path, small: Make) -> None:
    settings, incoming = small(**PHOTOS), home / "incoming"
    write_clients(incoming)
    for number in range(3):
        (incoming / "north" / f"broken{number}.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(20))
    with pytest.raises(DataError, match=r"3 of 66 new files .* more than 4%"):
        take_in(settings, NightSettings(watch="incoming", bad=0.04))
    assert take_in(settings, NightSettings(watch="incoming", bad=0.05)).new == 63


def test_a_single_strange_image_is_taken(home: Path, small: Make) -> None:
    settings, incoming = small(**PHOTOS), home / "incoming"
    write_clients(incoming)
    take_in(settings, NIGHT)
    noise = np.random.default_rng(0).integers(0, 255, (12, 12), dtype=np.uint8)
    Image.fromarray(noise).save(incoming / "north" / "noise.png")
    assert take_in(settings, NIGHT).new == 1


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (
            {"partition": {"kind": "iid", "clients": 3}},
            r"partition\.kind is iid: a set that grows is divided by its own",
        ),
        ({"partition": {"kind": "by_column", "clients": 2}}, "by_column with clients 0"),
        ({"partition": {"kind": "auto", "clients": 2}}, r"partition\.clients draws some of the clients"),
        ({"data": {"name": "photos", "limit": 50}}, r"data\.limit draws some of the samples"),
        ({"data": {"name": "digits"}}, "'digits' is the name of a built-in data set"),
    ],
)
def test_settings_that_would_deal_samples_again_are_refused(
    home: Path, small: Make, changes: dict[str, Any], match: str
) -> None:
    write_clients(home / "incoming")
    with pytest.raises(ShoalError, match=match):
        take_in(small(**{**PHOTOS, **changes, "data": {"limit": None, **changes.get("data", PHOTOS["data"])}}), NIGHT)
    assert not (places.store() / "own" / "photos").exists()


def test_a_set_without_a_watched_folder_is_taken_as_it_is(home: Path, small: Make) -> None:
    found = take_in(small(), NightSettings())
    assert (found.new, found.digest) == (0, prepare("digits", places.store()).manifest.digest)


@pytest.mark.long
def test_a_folder_that_dvc_tracks_is_brought_to_its_pointer(home: Path) -> None:
    incoming, pointer = home / "incoming", home / "incoming.dvc"
    update_from_dvc(incoming)  # no repository: left alone
    assert dvc(home, "init", "--no-scm").returncode == 0
    write_new(incoming / "north", each=1)
    assert dvc(home, "add", "incoming").returncode == 0
    old = pointer.read_text()
    write_new(incoming / "south", each=1)
    assert dvc(home, "add", "incoming").returncode == 0
    new = pointer.read_text()
    for text, there in ((old, False), (new, True)):
        pointer.write_text(text)
        update_from_dvc(incoming)
        assert (incoming / "south").exists() == there
    pointer.write_text(old.replace("md5: ", "md5: 0", 1))
    with pytest.raises(NightError, match=r"DVC did not bring .*incoming up to date"):
        update_from_dvc(incoming)
