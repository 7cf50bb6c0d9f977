"""What an environment without the extras meets: a sentence that names the extra, and no traceback."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest

from shoal.cli.checks import machine
from shoal.cli.init import make_project
from shoal.cli.main import EXTRAS, report
from tests.sources import rooms, sources

WITH_THE_BASE = {"pydantic_core", "threadpoolctl"}
"""Installed with packages of the base, which need them."""


def imported() -> Iterator[str]:
    """The packages that the product imports."""
    for path in (path for room in rooms() for path in sources(room)):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            yield from (name.split(".")[0] for name in names)


def test_a_package_beyond_the_base_has_an_extra() -> None:
    base = {re.split(r"[ ><=;\[(!~]", line)[0].lower() for line in requires("shoal") or () if "extra ==" not in line}
    provided = {name for name, of in packages_distributions().items() if {dist.lower() for dist in of} & base}
    beyond = set(imported()) - provided - set(sys.stdlib_module_names) - {"shoal"} - WITH_THE_BASE
    assert beyond == set(EXTRAS)


def test_without_dvc_no_project_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "dvc", None)
    with pytest.raises(ModuleNotFoundError) as raised:
        make_project(tmp_path / "project")
    assert not (tmp_path / "project").exists()
    assert report(raised.value)
    assert "this needs dvc: install Shoal with its extra `lead`" in capsys.readouterr().err


def test_doctor_checks_a_home_that_no_run_has_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "not" / "yet"))
    assert all(check.ok for check in machine())
