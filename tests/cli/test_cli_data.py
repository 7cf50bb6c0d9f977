import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner

from shoal.cli.data import app
from shoal.core.errors import DataError, ShoalError
from shoal.data.partition.table import load_partition
from shoal.engine.settings import places

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    monkeypatch.delenv("SHOAL_DATA_MIRROR", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def shoal(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, ShoalError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_places(home, monkeypatch):
    assert places.store() == home / "data" / "store"
    assert places.runs() == home / "runs"
    assert places.mirror() is None
    monkeypatch.setenv("SHOAL_DATA_MIRROR", str(home / "nowhere"))
    with pytest.raises(DataError, match=r"SHOAL_DATA_MIRROR is .* not a folder"):
        places.mirror()
    monkeypatch.setenv("SHOAL_DATA_MIRROR", str(home))
    assert places.mirror() == home.resolve()
    monkeypatch.delenv("SHOAL_HOME")
    monkeypatch.chdir(home)
    assert places.home() == home


def test_prepare_partition_show_list(home):
    assert "1,437" in shoal("prepare", "digits")
    words = ("kind=dirichlet", "beta=0.5", "clients=4", "validation=0.1")
    output = shoal("partition", "digits", *(part for word in words for part in ("--set", f"partition.{word}")))
    assert "digits, dirichlet: 4 clients" in output
    (folder,) = (places.store() / "partitions").iterdir()
    assert {p.name for p in folder.iterdir()} == {"partition.parquet", "partition.json", "summary.csv"}
    assert load_partition(folder).digest in output
    listed = shoal("list")
    assert "cifar100" in listed
    assert "yes" in listed


@pytest.mark.long
def test_a_set_of_images_is_shown_with_the_method_that_fits_it(home):
    shoal("prepare", "digits")
    shown = shoal("show", "digits")
    assert "scikit-learn" in shown
    assert "run: " in shown


def test_options_of_a_set():
    assert "gaussian-clusters3-seed1" in shoal("prepare", "gaussian-clusters3-seed1")
    assert "gaussian-clusters3-seed1" in shoal("list")
    assert "cluster 2" in shoal("show", "gaussian-clusters3-seed1")
    with pytest.raises(DataError, match=r"there is no data set 'gaussian-clustersx'"):
        shoal("prepare", "gaussian-clustersx")


def test_add_and_partition_own_data(home):
    for client in ("a", "b"):
        (home / "photos" / client).mkdir(parents=True)
        for i in range(3):
            Image.fromarray(np.full((4, 5), 40 * i, np.uint8)).save(home / "photos" / client / f"{i}.png")
    assert "folder photos, 6 images of 2 clients" in shoal("add", home / "photos", "--name", "mine", "--size", "4x5")
    assert "mine, by_column: 2 clients" in shoal("partition", "mine")
    assert "mine, iid: 3 clients" in shoal(
        "partition", "mine", "--set", "partition=iid", "--set", "partition.clients=3"
    )
    assert not (home / "data" / "store" / "own" / "mine.dvc").exists()
    assert "2 clients" in shoal("show", "mine")
    for client in ("b", "c"):
        (home / "photos" / client).mkdir(exist_ok=True)
        Image.fromarray(np.full((4, 5), 7, np.uint8)).save(home / "photos" / client / "new.png")
        Image.fromarray(np.full((8, 10), 9, np.uint8)).save(home / "photos" / client / "large.png")
    grown = shoal("add", home / "photos", "--name", "mine", "--append", "--on-odd", "resize")
    assert "resized to 4x5 (height x width)" in grown
    assert "c/large.png" in grown
    rows = {cells[1].strip(): cells[2].strip() for line in grown.splitlines() if len(cells := line.split("│")) == 5}
    assert rows["files seen"] == "10"
    assert rows["files taken"] == "4"
    assert rows["files that the set had before"] == "6"
    assert "mine.intake.json" in grown.splitlines()[-1]
    assert "mine, by_column: 3 clients" in shoal("partition", "mine")
    frame = pd.DataFrame({"site": [1, 1, 2, 2], "v": [1.0, 2, 3, 4]})
    frame.to_csv(home / "t.csv", index=False)
    assert "4 rows of 2 clients" in shoal("add", home / "t.csv", "--name", "rows", "--client-column", "site")
    assert "your own: table t.csv" in shoal("list")
    with pytest.raises(DataError, match=r"HEIGHTxWIDTH"):
        shoal("add", home / "photos", "--name", "other", "--size", "big")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["partition", "digits", "--set", "partition.beta=1"], "partition.beta: there is no such setting"),
        (["partition", "digits", "--set", "partition=random"], "partition.kind: 'random' is not known"),
        (["partition", "digits", "--set", "partition.clients=-1"], "partition.clients"),
        (["partition", "digitz"], "did you mean 'digits'"),
        (["show", "mnist"], "Run `shoal data prepare mnist`"),
        (["show", "nothing"], "is no prepared data set; prepared: none"),
    ],
)
def test_errors_reach_the_caller(arguments, message):
    with pytest.raises(ShoalError, match=message):
        shoal(*arguments)


def test_the_data_commands_cost_nothing_until_they_are_used():
    heavy = ("numpy", "pandas", "torch", "matplotlib", "pydantic", "PIL", "yaml")
    code = f"import sys, shoal.cli.data; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", ["list", "prepare", "partition", "show", "add"])
def test_help_ends_in_an_example(command):
    assert f"Example: shoal data {command}" in shoal(command, "--help")


def test_series_become_windows_that_can_be_shown(home):
    """The command of docs/data.md."""
    times = [f"{time:%Y-%m-%d %H:%M}" for time in pd.date_range("2024-03-01", periods=60, freq="h")]
    parts = [
        pd.DataFrame({"site": site, "meter": meter, "t": times, "load": np.sin(np.arange(60.0) + phase)})
        for phase, (site, meter) in enumerate([("a", "m1"), ("a", "m2"), ("b", "m1")])
    ]
    pd.concat(parts).to_csv(home / "loads.csv", index=False)
    (command,) = [
        line.split()[3:]
        for line in (ROOT / "docs" / "data.md").read_text().splitlines()
        if line.startswith("    shoal data add loads.csv --name loads ")
    ]
    output = shoal("add", home / "loads.csv", *command[1:])
    assert "24 samples 3600 seconds apart; one begins every 24 samples" in output
    assert re.search(r"windows seen +│ +9", output)
    assert re.search(r"windows taken +│ +6", output)
    assert re.search(r"left out: window without exactly its samples +│ +3", output)
    assert "2 clients" in shoal("show", "loads")


def test_missing_values_and_texts_follow_the_options(home):
    table = pd.DataFrame({"client": ["a", "b"] * 3, "age": [1, None, 3, 4, 5, 6], "city": list("xyxyxz")})
    table.to_csv(home / "patients.csv", index=False)
    with pytest.raises(DataError, match=r"missing values in age \(1 value, row 1\).*--missing mean or drop-rows"):
        shoal("add", home / "patients.csv", "--name", "patients")
    output = shoal("add", home / "patients.csv", "--name", "patients", "--missing", "mean")
    assert "city=x, city=y, city=z" in output
    output = shoal("add", home / "patients.csv", "--name", "few", "--missing", "drop-rows", "--max-categories", 2)
    assert re.search(r"more than 2 different values \(--max-categories\) +│ +1 │ city", output)
    assert re.search(r"row with missing values \(rows count from 0\) +│ +1 │ patients.csv:1", output)


def test_a_table_ends_with_what_was_left_out(home, monkeypatch):
    monkeypatch.chdir(home)
    draw = np.random.default_rng(0)
    numbers = {name: draw.normal(size=40) for name in ("height", "weight")}
    pd.DataFrame({"client": ["a", "b "] * 20, **numbers, "id": range(40), "label": 1}).to_csv("t.csv", index=False)
    said = shoal("add", "t.csv", "--name", "t")
    for words in ("columns seen", "left out: column named like a label", "column named like an identifier", "'b '"):
        assert words in said
    assert "all names: " in said
    names = json.loads((places.store() / "own" / "t.intake.json").read_text())
    assert names["left_out"]["column named like a label"] == {"label": ""}
    options = ("--features", "height,label", "--features", "weight")
    assert "3: height, weight, label" in shoal("add", "t.csv", "--name", "t", "--force", *options)
