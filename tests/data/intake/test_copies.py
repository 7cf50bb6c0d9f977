"""Copies of one image lie on one side of the test part: at one client, at several, and with those of the set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from shoal.data.intake.copies import MIN_TRAIN, ON_BOTH_SIDES, ON_ONE_SIDE, Copies, draw_test_part
from shoal.data.intake.own_images import read_folder
from shoal.data.intake.own_store import Batch, store_batch
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import PreparedSet
from tests.added_sets import add_set


def write(folder: Path, client: str, seeds: range, copies: tuple[str, ...] = ("",)) -> None:
    (folder / client).mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        pixels = np.random.default_rng(seed).integers(0, 256, (4, 4), dtype=np.uint8)
        for copy in copies:
            Image.fromarray(pixels).save(folder / client / f"{seed}{copy}.png")


def read(folder: Path, onto: PreparedSet | None = None, intake: Intake | None = None) -> Batch:
    batch = read_folder(folder, onto, intake=intake).batch
    assert batch is not None
    return batch


def parts(prepared: PreparedSet) -> tuple[set[bytes], set[bytes]]:
    test = () if prepared.test_x is None else prepared.test_x
    return {x.tobytes() for x in prepared.train_x}, {x.tobytes() for x in test}


def test_copies_at_one_client_and_at_several(tmp_path: Path) -> None:
    write(tmp_path / "in", "a", range(20), ("", " (1)", " (2)"))
    write(tmp_path / "in", "b", range(10, 40))
    intake = Intake()
    batch = read(tmp_path / "in", intake=intake)
    prepared = store_batch("mine", tmp_path / "store", batch, 0.3, 0)
    train, test = parts(prepared)
    assert not train & test
    assert len(train | test) == 40
    assert len(test) >= 5
    assert 22 <= prepared.manifest.test <= 27  # 0.3 of 90, in whole groups of copies
    assert prepared.manifest.train + prepared.manifest.test == 90
    assert len(intake.noted[ON_ONE_SIDE]) == 50
    assert intake.noted[ON_ONE_SIDE]["b/10.png"] == "of a/10 (1).png"
    assert ON_BOTH_SIDES not in intake.noted


def test_without_copies_the_draw_is_what_it_was(tmp_path: Path) -> None:
    write(tmp_path / "in", "a", range(10))
    write(tmp_path / "in", "b", range(10, 20))
    prepared = add_set(tmp_path / "in", "mine", tmp_path / "store", test=0.3)
    assert prepared.manifest.test == 6
    assert prepared.manifest.digest.startswith(DRAWN)


DRAWN = "885da394b9ca9839"
"""The set's digest before copies were looked for."""


def test_a_copy_of_what_the_set_has_goes_to_its_side(tmp_path: Path) -> None:
    write(tmp_path / "in", "a", range(20))
    first = add_set(tmp_path / "in", "mine", tmp_path / "store", test=0.5)
    test_rows = parts(first)[1]
    write(tmp_path / "more", "b", range(20))
    intake = Intake()
    grown = add_set(tmp_path / "more", "mine", tmp_path / "store", append=True, intake=intake)
    train, test = parts(grown)
    assert not train & test
    assert test == test_rows
    assert (grown.manifest.train, grown.manifest.test) == (20, 20)
    assert len(intake.noted[ON_ONE_SIDE]) == 20


def test_a_client_of_nothing_but_held_out_copies_keeps_what_it_needs_to_train(tmp_path: Path) -> None:
    write(tmp_path / "in", "a", range(30))
    first = store_batch("mine", tmp_path / "store", read(tmp_path / "in"), 0.5, 0)
    assert first.test_x is not None
    (tmp_path / "more" / "b").mkdir(parents=True)
    for place, image in enumerate(first.test_x[:4]):
        Image.fromarray(np.array(image[0])).save(tmp_path / "more" / "b" / f"{place}.png")
    intake = Intake()
    batch = read(tmp_path / "more", first, intake)
    grown = store_batch("mine", tmp_path / "store", batch, 0.0, 0, first)
    assert np.bincount(grown.column("client")).tolist()[1] == MIN_TRAIN
    assert len(intake.noted[ON_BOTH_SIDES]) == MIN_TRAIN
    assert len(intake.noted[ON_ONE_SIDE]) == 4 - MIN_TRAIN


def test_a_client_of_one_image_over_and_over_is_trained_on(tmp_path: Path) -> None:
    write(tmp_path / "in", "a", range(1), tuple(f"-{copy}" for copy in range(10)))
    write(tmp_path / "in", "b", range(1, 20))
    prepared = store_batch("mine", tmp_path / "store", read(tmp_path / "in"), 0.9, 0)
    assert not set.intersection(*parts(prepared))
    assert np.bincount(prepared.column("client")).tolist()[0] == 10


def test_of_samples_that_come_one_by_one_some_are_held_out() -> None:
    one = Copies(np.arange(1), {})
    drawn = [draw_test_part(one, np.zeros(1, int), 0.2, 0, np.array([9]), before).sum() for before in range(200)]
    assert 20 <= sum(drawn) <= 60
