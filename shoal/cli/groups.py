"""Groups of commands whose modules are imported when one of theirs is called: help must not wait for torch."""

from __future__ import annotations

import importlib
from typing import Any

import typer

GROUPS = {"data": "shoal.cli.data", "stage": "shoal.cli.stages"}
"""The modules of the groups, by name."""


class Commands(typer.core.TyperGroup):
    """All commands; groups are listed by their names alone until one is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the words name, its group imported where it is in one."""
        if args and args[0] in GROUPS:
            shown = self.commands[args[0]]
            found = typer.main.get_group(importlib.import_module(GROUPS[args[0]]).app)
            found.name, found.help = shown.name, shown.help
            self.commands[args[0]] = found
        return super().resolve_command(ctx, args)
