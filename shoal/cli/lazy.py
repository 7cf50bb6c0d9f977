"""Commands whose modules are imported when they are called: `shoal --help` must not wait for torch.

A package adds commands of its own by the entry-point group `shoal.commands`: each names a `typer.Typer`.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Any, NamedTuple

import typer


class Lazy(NamedTuple):
    """A command, or a group of commands, that is not imported yet.

    Attributes:
        module: with the `app` of the command or group.
        help: the line of `shoal --help`.
        hidden: whether `shoal --help` leaves it out.
    """

    module: str
    help: str
    hidden: bool = False


LAZY = {
    "demo": Lazy("demo", "Show what five clients find together in scikit-learn's digits."),
    "init": Lazy("init", "Make a project folder: settings, a DVC pipeline and Prefect deployments."),
    "data": Lazy("data", "List, add, show, prepare, partition and embed data sets."),
    "run": Lazy("run", "Train one federation, and judge and report what it found."),
    "runs": Lazy("runs", "List runs, the newest first."),
    "open": Lazy("open_report", "Open the report of a run."),
    "explain": Lazy(
        "explain",
        "Show one cluster client by client, with how certain the model is of its samples, or what the server reads.",
    ),
    "compare": Lazy("compare", "Show runs side by side."),
    "score": Lazy("score", "Score a run's clusters by labels that came later."),
    "predict": Lazy("predict", "Assign new images, or rows of a table, to the clusters of a run."),
    "model": Lazy("model", "Promote, roll back and log models, and enroll a client in one."),
    "search": Lazy("search", "Search for good settings, or resume a search."),
    "sites": Lazy("sites", "Lead a study over sites that dial in: make it, approve sites, and keep their connections."),
    "site": Lazy("site_commands", "Keep a site: its policy, the runs that it approves, and the log of what left it."),
    "serve": Lazy("serve", "Start Prefect, a worker, the deployments of prefect.yaml and MLflow, until Ctrl-C."),
    "doctor": Lazy("doctor", "Check methods, devices, data and servers, and say how to repair what is wrong."),
    "stage": Lazy("stages", "Run a stage of dvc.yaml.", hidden=True),
}
"""All commands, by name, in the order of `shoal --help`."""


COMMANDS = "shoal.commands"
"""The group of entry points by which packages add commands."""


class LazyGroup(typer.core.TyperGroup):
    """All commands; each is a placeholder with its line of help until it is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name, from its module; a name of ours is never another package's."""
        if args and args[0] in LAZY:
            app = importlib.import_module(f"shoal.cli.{LAZY[args[0]].module}").app
        elif args and (added := entry_points(group=COMMANDS, name=args[0])):
            app = next(iter(added)).load()
        else:
            return super().resolve_command(ctx, args)
        command = typer.main.get_command(app)
        command.name = args[0]
        self.commands[args[0]] = command
        return super().resolve_command(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the placeholders of all commands to an app."""
    for name, lazy in LAZY.items():
        app.command(name, help=lazy.help, hidden=lazy.hidden)(_placeholder)
    for entry in entry_points(group=COMMANDS):
        if entry.name not in LAZY:
            package = entry.dist.name if entry.dist else entry.module
            app.command(entry.name, help=f"Command of the package {package}.")(_placeholder)


def _placeholder() -> None: ...
