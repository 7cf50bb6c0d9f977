"""Names among the settings that become a part of a path: none of them leads elsewhere."""

from __future__ import annotations

import pytest

from shoal.core.names import name_fault
from shoal.engine.settings.run_settings import SettingsError, make_settings

WRONG = (
    "../../../escaped",
    "a/b",
    "a\\b",
    "/tmp/x",
    ".hidden",
    "..",
    "",
    " ",
    " a",
    "a\x00b",
    "a\nb",
    "x" * 200,
    "é" * 100,
)


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("setting", ["tracking.experiment", "data.name"])
def test_a_name_that_leads_elsewhere_is_refused(setting: str, name: str) -> None:
    section, key = setting.split(".")
    with pytest.raises(SettingsError, match=rf"{section}\.{key}: given .*; it "):
        make_settings({section: {key: name}})


@pytest.mark.parametrize("name", ["shoal", "private-updates", "night 3", "Été", "a.b_c", "mnist-shrink2", "2024"])
def test_other_names_are_taken(name: str) -> None:
    assert name_fault(name) is None
    assert make_settings({"tracking": {"experiment": name}}).tracking.experiment == name


def test_models_have_names_without_a_path() -> None:
    with pytest.raises(SettingsError, match=r"tracking\.register_as"):
        make_settings({"tracking": {"register_as": "../model"}})
