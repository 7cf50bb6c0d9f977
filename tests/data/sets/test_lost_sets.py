"""Own sets that a kill cut short or that were damaged: found, brought back, and the advice leads to a whole set."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shoal.core.errors import DataError
from shoal.data.sets.prepare import own_folder, prepare
from shoal.data.sets.prepared import open_prepared
from shoal.data.sets.repair import damaged_sets, repair_sets
from shoal.data.sets.writing import lock_of, writing
from tests.added_sets import add_set


def table(path: Path, rows: int) -> Path:
    lines = [f"{'ab'[k % 2]},{k}.5,{k * k % 7}" for k in range(rows)]
    path.write_text("\n".join(["client,x,y", *lines]) + "\n")
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with the own set `mine` of 8 rows."""
    store = tmp_path / "store"
    add_set(table(tmp_path / "first.csv", 8), "mine", store)
    return store


def gone() -> int:
    """The number of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def aside(folder: Path) -> Path:
    """The hidden name under which a killed process had a version of a set."""
    return folder.with_name(f".{folder.name}.{gone()}.tmp")


def test_a_set_lost_between_removing_and_renaming_is_brought_back_and_said(store: Path) -> None:
    folder = own_folder(store, "mine")
    before = open_prepared(folder).manifest.digest
    os.rename(folder, aside(folder))
    with pytest.raises(DataError, match="`shoal data list` brings back what is left"):
        prepare("mine", store)
    (said,) = repair_sets(store)
    assert said == (
        "data set 'mine' is back: a kill had cut short its replacement. It has 8 samples (table first.csv, 8 rows of 2 "
        "clients)"
    )
    assert open_prepared(folder, verify=True).manifest.digest == before
    assert sorted(os.listdir(folder.parent)) == ["mine", "mine.intake.json"]
    assert repair_sets(store) == []


def test_a_set_whose_removal_was_cut_short_gives_way_to_the_whole_new_one(store: Path) -> None:
    folder = own_folder(store, "mine")
    shutil.copytree(folder, aside(folder))
    (folder / "clients/0000/train_x.npy").unlink()
    (said,) = repair_sets(store)
    assert said.startswith("data set 'mine' is back")
    assert open_prepared(folder, verify=True).manifest.train == 8


def test_what_is_left_beside_a_whole_set_is_removed_and_never_used(store: Path, tmp_path: Path) -> None:
    folder = own_folder(store, "mine")
    shutil.copytree(folder, left := aside(folder))
    add_set(table(tmp_path / "second.csv", 4), "other", store)
    os.rename(own_folder(store, "other"), own_folder(store, "mine").with_name(f".mine.{gone()}.7.tmp"))
    assert repair_sets(store) == []
    assert not left.exists()
    assert sorted(os.listdir(folder.parent)) == ["mine", "mine.intake.json", "other.intake.json"]
    assert open_prepared(folder).manifest.train == 8


def test_half_a_set_is_not_brought_back(store: Path) -> None:
    folder = own_folder(store, "mine")
    os.rename(folder, left := aside(folder))
    raw = bytearray((left / "clients/0000/train_x.npy").read_bytes())
    raw[-1] ^= 1
    (left / "clients/0000/train_x.npy").write_bytes(raw)
    (said,) = repair_sets(store)
    assert "was never written completely" in said
    assert "shoal data add FOLDER --name mine --force" in said
    assert not folder.exists()
    assert left.exists()


def test_a_set_that_is_being_written_is_left_alone(store: Path) -> None:
    folder = own_folder(store, "mine")
    os.rename(folder, aside(folder))
    code = "import sys; from pathlib import Path; from shoal.data.sets.repair import repair_sets as r; print(r(Path(sys.argv[1])))"  # noqa: E501
    with writing(folder):
        done = subprocess.run([sys.executable, "-c", code, str(store)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert lock_of(folder).read_text() == str(os.getpid())
    assert not folder.exists()


@pytest.mark.parametrize(
    "file",
    ["clients/0000/train_x.npy", "column_client.npy", "clients/0000/files.parquet", "test_client.npy", "manifest.json"],
)
@pytest.mark.parametrize("damage", ["bit", "cut", "gone"])
def test_damage_of_an_own_set_is_found_and_the_advice_leads_to_a_whole_one(
    store: Path, tmp_path: Path, file: str, damage: str
) -> None:
    folder = own_folder(store, "mine")
    path = folder / file
    raw = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(raw[:-3])
    else:
        raw[-9] ^= 1
        path.write_bytes(raw)
    ((name, said),) = damaged_sets(store, verify=True)
    assert name == "mine"
    assert "add all of it again with `shoal data add FOLDER --name mine --force`" in said
    assert "data prepare" not in said
    with pytest.raises(DataError):
        add_set(table(tmp_path / "second.csv", 4), "mine", store, append=True)
    add_set(tmp_path / "first.csv", "mine", store, force=True)
    assert list(damaged_sets(store, verify=True)) == []


def test_a_set_that_dvc_keeps_is_fetched_after_its_damaged_files_are_removed(store: Path) -> None:
    folder = own_folder(store, "mine")
    folder.with_name("mine.dvc").write_text("outs: []\n")
    (folder / "clients/0000/train_x.npy").unlink()
    ((_, said),) = damaged_sets(store)
    assert f"run `rm -r {folder}`, then `dvc pull {folder}.dvc`; or add all" in said
    shutil.rmtree(folder)
    with pytest.raises(DataError, match=r"DVC keeps, and its files are not here: run `dvc pull"):
        prepare("mine", store)


@pytest.mark.long
def test_of_two_that_append_at_once_neither_loses_what_the_other_brought(store: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.added_sets import add_set\n"
        "add_set(Path(sys.argv[2]), 'mine', Path(sys.argv[1]), append=True)\n"
    )
    tables = [table(tmp_path / f"new{k}.csv", 4 + k) for k in range(3)]
    running = [subprocess.Popen([sys.executable, "-c", code, str(store), str(each)]) for each in tables]
    assert [each.wait() for each in running] == [0, 0, 0]
    prepared = open_prepared(own_folder(store, "mine"), verify=True)
    assert prepared.manifest.train == 8 + 4 + 5 + 6


@pytest.mark.long
def test_of_many_first_uses_of_a_built_in_set_at_once_none_dies(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from shoal.data.sets.prepare import prepare; prepare('digits', Path(sys.argv[1]))"  # noqa: E501
    command = [sys.executable, "-c", code, str(tmp_path / "store")]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    said = [each.communicate()[1] for each in running]
    assert [each.returncode for each in running] == [0, 0, 0, 0], said
    assert all("Traceback" not in text for text in said)


def test_a_set_that_is_replaced_while_it_is_opened_is_opened_again(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = own_folder(store, "mine")
    add_set(table(tmp_path / "second.csv", 6), "other", store)
    newer = own_folder(store, "other")
    about = json.loads((newer / "manifest.json").read_text())
    assert about["train"] == 6
    from shoal.data.sets import prepared

    read = prepared.read_manifest
    times = []

    def late(place: Path) -> prepared.Manifest:
        found = read(place)
        if not times:
            times.append(1)
            from shoal.core.durable import exchange

            assert exchange(folder, newer)
        return found

    monkeypatch.setattr(prepared, "read_manifest", late)
    opened = open_prepared(folder)
    assert opened.manifest.train == len(opened.train_x) == 6
    assert np.asarray(opened.train_x).shape == (6, 1)
