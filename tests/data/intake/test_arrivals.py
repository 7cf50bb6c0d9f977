"""A set that grows from a watched folder: what is new is found by name, and nobody's samples change their side."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shoal.core.errors import DataError
from shoal.data.intake.copies import draw_test_part, find_copies
from shoal.data.intake.own_images import read_folder
from shoal.data.intake.own_store import Arrivals, Batch, store_batch
from shoal.data.sets.prepared import PreparedSet, array_digest
from shoal.data.sets.sample_files import sample_files
from tests.planted_images import write_clients


def take(folder: Path, store: Path, onto: PreparedSet | None = None, share: float = 0.3) -> PreparedSet:
    return store_batch("photos", store, batch_of(read_folder(folder, onto, grows=True)), share, 0, onto)


def batch_of(arrivals: Arrivals) -> Batch:
    assert arrivals.batch is not None
    return arrivals.batch


def sides(prepared: PreparedSet) -> dict[str, str]:
    table = sample_files(prepared)
    assert table is not None
    return dict(zip(table["file"], table["part"], strict=True))


def noise(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (12, 12), dtype=np.uint8)).save(path)


def test_new_files_are_found_by_name(tmp_path: Path) -> None:
    folder, store = tmp_path / "watched", tmp_path / "store"
    write_clients(folder)
    first = take(folder, store)
    assert read_folder(folder, first, grows=True).batch is None
    noise(folder / "late" / "one.png", 1)
    noise(folder / "north" / "more.png", 2)
    (folder / "empty").mkdir()
    assert batch_of(read_folder(folder, first, grows=True)).file == ["late/one.png", "north/more.png"]
    (folder / "late" / "one.png").unlink()
    (folder / "north" / "more.png").unlink()
    old = folder / "north" / "dark-00.png"
    before = old.read_bytes()
    noise(old, 4)
    os.utime(old, (1, 1))  # a file of the set that was not written to since is not read
    assert read_folder(folder, first, grows=True).left_out == []
    os.utime(old)
    with pytest.raises(DataError, match="is another image than the one of this name"):
        read_folder(folder, first, grows=True)
    old.write_bytes(before)
    assert read_folder(folder, first, grows=True).batch is None


def test_old_samples_keep_client_row_and_side_and_the_version_before_is_in_the_lineage(tmp_path: Path) -> None:
    folder, store = tmp_path / "watched", tmp_path / "store"
    write_clients(folder)
    first = take(folder, store)
    x, column, before, digest = np.array(first.train_x), first.column("client"), sides(first), first.manifest.digest
    assert 0 < first.manifest.test < first.manifest.train
    for number in range(20):
        noise(folder / "abroad" / f"{number}.png", 10 + number)  # sorts before all others
        noise(folder / "north" / "new" / f"{number}.png", 50 + number)
    assert first.test_x is not None
    test_x = np.array(first.test_x)
    more = take(folder, store, first)
    n = len(x)
    assert np.array_equal(more.train_x[:n], x)
    assert np.array_equal(more.column("client")[:n], column)
    assert more.manifest.extra["clients"] == ["lab 3", "north", "süd", "abroad"]
    assert {file: side for file, side in sides(more).items() if file in before} == before
    for client in ("north", "abroad"):
        assert {side for file, side in sides(more).items() if file.startswith(f"{client}/")} == {"train", "test"}
    assert more.manifest.digest != digest
    assert more.manifest.extra["versions"] == [{"digest": digest, "train": n, "test": len(test_x)}]
    assert more.test_x is not None
    earlier = {"train_x": more.train_x[:n], "test_x": more.test_x[: len(test_x)]}
    assert array_digest({**earlier, "client": more.column("client")[:n]}) == digest
    assert sides(store_batch("photos", tmp_path / "third", batch_of(read_folder(folder)), 0.3, 1)) != sides(more)


@pytest.mark.parametrize(("trained", "kept"), [([0, 0], [2, 2]), ([1, 7], [1, 0])])
def test_every_client_keeps_two_samples_to_train_on(trained: list[int], kept: list[int]) -> None:
    copies = find_copies(np.arange(40, dtype=np.uint8)[:, None])
    owner = np.arange(40) % 2
    in_test = draw_test_part(copies, owner, 0.999, 0, np.array(trained))
    assert np.bincount(owner[~in_test], minlength=2).tolist() == kept
