"""The first minute with the command line: help at once, and what is wrong said before any work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOAL = Path(sys.executable).with_name("shoal")


def shoal(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The installed command as a user calls it: in a folder of their own, with nothing set."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SHOAL", "PREFECT", "MLFLOW"))}
    return subprocess.run(
        [str(SHOAL), *arguments], capture_output=True, text=True, cwd=home, env=env | variables, timeout=240
    )


LIGHT = {
    "annotated_doc", "annotated_types", "attr", "markdown_it", "mdurl", "pydantic", "pydantic_core", "pygments",
    "rich", "shellingham", "sitecustomize", "typer", "typing_extensions", "typing_inspection",
}  # fmt: skip
"""What typer itself imports to print its help, and what some systems' Python imports before anything else; the time of
it is in benchmarks/command_line.py."""


def imported(home: Path, *arguments: str, **variables: str) -> tuple[set[str], str]:
    """Packages beside the standard library and Shoal's own that a command imports, and what it printed."""
    done = shoal(home, *arguments, **variables, PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0, done.stderr
    modules = re.findall(r"^import time:.*\| +([\w.]+)$", done.stderr, re.MULTILINE)
    assert "typer" in modules, "the report of imports was not understood"
    ours = {"shoal"}
    packages = {name.partition(".")[0] for name in modules} - ours - set(sys.stdlib_module_names)
    # Without packages that were not found, and without what an interpreter imports before it reads a line (an
    # editable install's finder, for example).
    return {name for name in packages if not name.startswith("_") and find_spec(name)}, done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--help",), "Federated clustering"),
        (("--version",), "shoal "),
        (("run", "--help"), "Example: shoal run"),
        (("search", "--help"), "Example: shoal search"),
        (("compare", "--help"), "Example: shoal compare"),
        (("runs", "--help"), "Example: shoal runs"),
        (("open", "--help"), "Example: shoal open"),
        (("explain", "--help"), "Example: shoal explain"),
        (("serve", "--help"), "Example: shoal serve"),
        (("doctor", "--help"), "Example: shoal doctor"),
        (("data", "--help"), "partition"),
        (("data", "add", "--help"), "Example: shoal data add"),
    ],
)
def test_help_imports_nothing_heavy(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    packages, printed = imported(tmp_path, *arguments)
    assert words in " ".join(printed.split())
    assert packages <= LIGHT


def test_completion_imports_nothing_heavy(tmp_path: Path) -> None:
    asked = {"_SHOAL_COMPLETE": "complete_bash", "COMP_WORDS": "shoal da", "COMP_CWORD": "1"}
    packages, printed = imported(tmp_path, **asked)
    assert printed.split() == ["data"]
    assert packages <= LIGHT


def test_the_version_is_the_packages(tmp_path: Path) -> None:
    from importlib.metadata import version

    assert shoal(tmp_path, "--version").stdout == f"shoal {version('shoal')}\n"


WRONG = [
    (("model.encoder=resnet99",), ("model.encoder: 'resnet99'", "did you mean resnet18?", "small-conv")),
    (("augment.recipe=digit",), ("augment.recipe: 'digit'", "did you mean digits?", "contrastive")),
    (("local.optimiser=adamw",), ("local.optimiser: 'adamw'", "did you mean adam?", "sgd")),
    (("method=cfl", "method.criterion=half"), ("method.criterion: 'half'", "absolute, relative, schedule")),
    (("method.name=fedccc",), ("method.name: 'fedccc'", "did you mean fedcc?", "uifca")),
    (
        ("workers.slots=many",),
        ("workers.slots: given 'many'; input should be a valid integer", ", or input should be 'auto'"),
    ),
    (("evaluate=often",), ("evaluate: given 'often'; input should be a dictionary",)),
]


@pytest.mark.long
def test_a_wrong_setting_is_one_sentence_before_the_rest_is_imported(tmp_path: Path) -> None:
    """That no module of a run was imported is what makes it quick."""
    env = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run(
        [str(SHOAL), "run", "--set", "model.encoder=resnet99"], capture_output=True, text=True, cwd=tmp_path, env=env
    )
    assert done.returncode == 1
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "shoal.engine.settings.run_settings" in imported
    assert not imported & {
        "shoal.lifecycle.starting",
        "shoal.lifecycle.driving",
        "shoal.review.mlflow_log.tracking",
        "mlflow",
        "prefect",
        "matplotlib",
        "sklearn",
    }


@pytest.mark.parametrize(("overrides", "words"), WRONG)
def test_wrong_names_are_told_with_the_right_ones(overrides: tuple[str, ...], words: tuple[str, ...]) -> None:
    from shoal.engine.settings.run_settings import SettingsError, load_settings

    with pytest.raises(SettingsError) as told:
        load_settings(None, overrides)
    assert all(word in str(told.value) for word in words), told.value
    assert "\n" not in str(told.value)


def test_forms_show_the_choices() -> None:
    """Prefect's form is made from this schema."""
    from pydantic import TypeAdapter

    from shoal.data.views.array_views import ARRAY_RECIPES
    from shoal.data.views.augment import RECIPES
    from shoal.engine.settings.run_settings import Settings
    from shoal.models.encoders import ENCODERS, PIXELS
    from shoal.models.frozen import PRETRAINED

    schema = TypeAdapter(Settings).json_schema()["$defs"]
    assert schema["ModelSettings"]["properties"]["encoder"]["anyOf"][0]["enum"] == [*ENCODERS, PIXELS, *PRETRAINED]
    assert schema["AugmentSettings"]["properties"]["recipe"]["enum"] == ["auto", *RECIPES, *ARRAY_RECIPES]


REFUSED = [
    (("data.name=mnits",), "did you mean 'mnist'"),
    (("data.name=digits", "data.options.clusters=3"), "has no option 'clusters'"),
    (("data.name=unlabelled",), "set model.clusters to the number of clusters to find"),
    (("data.name=unlabelled", "method=kmeans"), "set model.clusters"),
    (("data.name=unlabelled", "method=ifca", "partition.validation=0.2"), "trains on labels"),
    (("method=cfl",), "set partition.validation"),
    (("method=fedpnp", "data.name=ag-news"), "'ag-news' is text data"),
    (("method=cfl", "method.criterion=schedule", "partition.validation=0.2"), "needs method.schedule"),
]


@pytest.mark.parametrize(("overrides", "words"), REFUSED)
def test_what_cannot_run_is_refused_before_data_is_prepared(
    home: Path, monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...], words: str
) -> None:
    import numpy as np

    from shoal.core.errors import ShoalError
    from shoal.data.sets.prepare import store_folder
    from shoal.data.sets.prepared import Manifest, write_prepared
    from shoal.engine.settings import places
    from shoal.engine.settings.run_settings import load_settings
    from shoal.lifecycle import preparing, starting

    x = np.zeros((40, 1, 8, 8), np.uint8)
    manifest = Manifest("unlabelled", "image", (1, 8, 8), None, len(x), 0, "made here", "none")
    write_prepared(store_folder(places.store(), "unlabelled"), manifest, {"train_x": x})
    monkeypatch.setattr(preparing, "prepare", lambda *_, **__: pytest.fail("data was prepared"))
    with pytest.raises(ShoalError, match=words):
        starting.new_run(load_settings(None, overrides))
    assert not (home / "runs").exists()
    assert not (home / "mlflow").exists()
