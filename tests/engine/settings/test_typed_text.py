"""What stands in a file or after `--set` is read by the type of its setting."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from shoal.engine.settings.run_settings import SettingsError, flatten, load_settings, make_settings
from tests.sources import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PRINTED = re.compile(r"""--set\s+('[^']*'|"[^"]*"|[\w.]+=\S+)""")
READ = {
    "workers.graphs": {"on": "on", "off": "off", "yes": "on", "false": "off"},
    "tracking.prefect": {"on": "on", "auto": "auto", "true": "on"},
    "data.name": {
        **{
            name: name
            for name in ("2024", "no", "on", "007", "1e3", "null", "0x10", "1:30", "~a", "99999999999999999999")
        },
        '"no"': "no",
        "'[a'": "[a",
    },
    "tracking.experiment": {"a: b #c": "a: b #c", "=x": "=x", "true": "true", "'a b'": "a b"},
    "tracking.uri": {"null": None, "none": None, "~": None, "http://host:5000": "http://host:5000"},
    "data.limit": {"none": None, "null": None, "100": 100},
    "seed": {"0": 0, "010": 10, "7": 7},
    "local.lr": {"1e-4": 1e-4, "3": 3.0, "1_0.5": 10.5},
    "tracking.model": {"on": True, "no": False, "true": True},
    "workers.slots": {"auto": "auto", "4": 4},
    "augment.recipe": {"none": "none"},
    "data.options.clusters": {"3": 3},
}


@pytest.mark.parametrize(("path", "text", "value"), [(k, t, v) for k, pairs in READ.items() for t, v in pairs.items()])
def test_set_is_read_by_type(path: str, text: str, value: Any) -> None:
    found = flatten(load_settings(overrides=[f"{path}={text}"]))[path]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("name", ["2024", "no", "007", "on", "1:30"])
def test_a_file_is_read_by_type(tmp_path: Path, name: str) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(
        f"data: {{name: {name}, limit: 2024}}\nworkers: {{graphs: on}}\ntracking: {{prefect: off, model: on}}\n"
    )
    settings = load_settings(path)
    assert (settings.data.name, settings.data.limit, settings.workers.graphs) == (name, 2024, "on")
    assert (settings.tracking.prefect, settings.tracking.model) == ("off", True)
    # Laid over it, and after the method, which says what settings there are.
    settings = load_settings(path, ["method.permute=yes", "method.name=cfl", "data.name=011"])
    assert (settings.data.name, settings.method.permute) == ("011", True)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rounds=0x10", "rounds: given '0x10'; input should be a valid integer"),
        ("local.lr=1:30.5", r"local\.lr: given '1:30\.5'; input should be a valid number"),
        ("data.options.clusters=many", r"data\.options\.clusters: given 'many'; input should be a valid integer"),
        ("rounds=yes", "rounds: given 'yes'; input should be a valid integer"),
        ("workers.graphs=2", r"workers\.graphs: '2' is not known"),
        ("seed=99999999999999999999", "less than or equal to 9223372036854775807"),
        ("workers.slots=[1", "not YAML"),
    ],
)
def test_what_has_no_clear_meaning_is_refused(override: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        load_settings(overrides=[override])


def test_true_and_false_of_other_programs_are_on_and_off() -> None:
    settings = make_settings({"workers": {"graphs": True}, "tracking": {"prefect": False}})
    assert (settings.workers.graphs, settings.tracking.prefect) == ("on", "off")


def test_numbers_and_switches_from_python_are_typed_by_their_settings_too() -> None:
    settings = make_settings({"data": {"name": 2024}, "method": "kmeans", "rounds": 3, "local": {"lr": 1}})
    assert (settings.data.name, settings.rounds, settings.local.lr) == ("2024", 3, 1.0)
    with pytest.raises(SettingsError, match="rounds: given 'true'; input should be a valid integer"):
        make_settings({"rounds": True})


def printed(page: Path) -> list[list[str]]:
    """The values of `--set` in each command that a page prints; lines that end in a backslash go on."""
    commands = page.read_text().replace("\\\n", " ").splitlines()
    found = [[shlex.split(each)[0] for each in PRINTED.findall(line)] for line in commands]
    return [overrides for overrides in found if overrides]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_the_pages_are_accepted(page: Path) -> None:
    for overrides in printed(page):
        if not any(word in each for each in overrides for word in ("KEY", "fedproxsimclr")):
            load_settings(overrides=[each.rstrip("`,.;)") for each in overrides])


def test_commands_are_found() -> None:
    found = [each for page in PAGES for overrides in printed(page) for each in overrides]
    assert len(found) > 40
    assert "workers.graphs=off" in found
    assert "tracking.uri=https://me:${MLFLOW_WORD}@mlflow.example.org" in found
