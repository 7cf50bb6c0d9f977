"""The line of `shoal --help` for each command is the beginning of the command's own help."""

from __future__ import annotations

import importlib

import pytest
import typer

from shoal.cli.lazy import LAZY


@pytest.mark.parametrize("name", LAZY)
def test_the_line_of_help_is_the_beginning_of_the_commands_help(name: str) -> None:
    command = typer.main.get_command(importlib.import_module(f"shoal.cli.{LAZY[name].module}").app)
    assert command.help is not None
    assert " ".join(command.help.split()).startswith(LAZY[name].help.rstrip("."))
