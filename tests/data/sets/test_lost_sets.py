"""Own sets that a kill cut short or that were damaged: found, brought back, and the advice leads to a whole set."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.core.durable import before
from shoal.core.errors import DataError
from shoal.data.sets.prepare import damaged_sets, own_folder, prepare
from shoal.data.sets.prepared import open_prepared
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


def test_a_set_lost_between_removing_and_renaming_comes_back_by_itself(store: Path) -> None:
    folder = own_folder(store, "mine")
    digest = open_prepared(folder).manifest.digest
    os.rename(folder, before(folder))
    assert prepare("mine", store, force=True).manifest.digest == digest
    assert sorted(os.listdir(folder.parent)) == ["mine", "mine.intake.json"]


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
    if damage == "cut" and file.endswith("x.npy"):
        with pytest.raises(DataError, match="--name mine --force"):
            open_prepared(folder).train_x[0]
    with pytest.raises(DataError):
        add_set(table(tmp_path / "second.csv", 4), "mine", store, append=True)
    add_set(tmp_path / "first.csv", "mine", store, force=True)
    assert list(damaged_sets(store, verify=True)) == []


def test_a_set_that_dvc_keeps_is_fetched_after_its_damaged_files_are_removed(store: Path) -> None:
    folder = own_folder(store, "mine")
    folder.with_name("mine.dvc").write_text("outs: []\n")
    (folder / "clients/0000/train_x.npy").unlink()
    ((_, said),) = damaged_sets(store, verify=True)
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
