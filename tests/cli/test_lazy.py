"""The line of `shoal --help` for each command is the beginning of the command's own help."""

from __future__ import annotations

import importlib
import shlex

import pytest
import typer

from shoal.cli.lazy import LAZY


@pytest.mark.parametrize("name", LAZY)
def test_the_line_of_help_is_the_beginning_of_the_commands_help(name: str) -> None:
    command = typer.main.get_command(importlib.import_module(f"shoal.cli.{LAZY[name].module}").app)
    assert command.help is not None
    assert " ".join(command.help.split()).startswith(LAZY[name].help.rstrip("."))


def test_a_user_sees_few_verbs_and_an_example_of_each() -> None:
    visible = [name for name in LAZY if not LAZY[name].hidden]
    assert len(visible) <= 16
    for name in visible:
        command = typer.main.get_command(importlib.import_module(f"shoal.cli.{LAZY[name].module}").app)
        for one in getattr(command, "commands", {name: command}).values():
            assert one.epilog.startswith("Example: "), one.name
            options = {option for parameter in one.params for option in parameter.opts + parameter.secondary_opts}
            used = {word for word in shlex.split(one.epilog) if word.startswith("--")}
            assert used <= options, f"{one.name} has no {used - options}"
