"""`shoal data list`, `shoal data show` and `shoal doctor` notice sets that are lost or damaged."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli.checks import stores
from shoal.cli.data import app
from shoal.core.durable import before
from shoal.core.errors import DataError
from shoal.data.sets.prepare import own_folder
from shoal.data.sets.prepared import open_prepared
from shoal.engine.settings import places
from tests.added_sets import add_set


@pytest.fixture
def mine(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an own set."""
    monkeypatch.setenv("COLUMNS", "200")
    (home / "t.csv").write_text("client,x,y\na,1.5,2\na,2.5,1\nb,0.5,3\nb,4.5,7\n")
    add_set(home / "t.csv", "mine", places.store())
    return own_folder(places.store(), "mine")


def flip(path: Path) -> None:
    """Change one bit, and the file's time with it."""
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def shoal_data(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    if isinstance(result.exception, DataError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_list_brings_back_a_set_that_a_kill_had_cut_short(mine: Path) -> None:
    os.rename(mine, before(mine))
    assert "mine" in shoal_data("list")
    assert open_prepared(mine, verify=True).manifest.train == 4


def test_show_and_doctor_notice_one_bit_and_say_what_helps(mine: Path) -> None:
    assert "mine" in shoal_data("show", "mine")
    assert all(check.ok for check in stores() if check.name.startswith("data set"))
    flip(mine / "clients" / "0000" / "train_x.npy")
    with pytest.raises(DataError, match="add all of it again with `shoal data add FOLDER --name mine --force`"):
        shoal_data("show", "mine")
    (check,) = (each for each in stores() if each.name == "data set mine")
    assert not check.ok
    assert "is not the file that its manifest describes" in check.detail
    add_set(places.home() / "t.csv", "mine", places.store(), force=True)
    assert "mine" in shoal_data("show", "mine")


def test_list_names_a_set_whose_manifest_is_damaged_instead_of_leaving_it_out(mine: Path) -> None:
    (mine / "manifest.json").write_text("{")
    said = shoal_data("list")
    assert "damaged: mine: " in said
    assert "shoal data add FOLDER --name mine --force" in said


def test_show_of_a_set_without_a_manifest_says_what_to_do(mine: Path) -> None:
    (mine / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"no prepared data set in .*: add all of it again"):
        shoal_data("show", "mine")
    shutil.rmtree(mine)
    with pytest.raises(DataError, match="no prepared data set"):
        shoal_data("show", "mine")
