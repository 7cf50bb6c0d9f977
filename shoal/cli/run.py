"""`shoal run`: a new run, or a resumed one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from shoal.cli.console import err, out, say, show_result
from shoal.cli.options import Json, Set
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from shoal.engine.settings.run_settings import Settings

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: shoal run --set method.name=fedcc --set data.name=mnist --set data.limit=20000")
def run(
    settings: Annotated[Path | None, typer.Argument(help="a settings file (YAML); every key has a default")] = None,
    overrides: Set = None,
    resume: Annotated[
        str | None, typer.Option(help="resume this run: its folder, its name, or latest, the one that was started last")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="do not run: check the settings and say what the run would do, or what each of its sites says to it",
        ),
    ] = False,
    methods: Annotated[
        bool, typer.Option("--methods", help="do not run: list the methods by the question that each answers")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train one federation, and judge and report what it found. Prints the final metrics and the run's folder."""
    from shoal.engine.workers.worker_processes import start_fork_server

    if methods:
        print_methods()
        return
    check_options(settings, overrides, resume, dry_run)
    if not dry_run:
        start_fork_server()  # worker processes start while the rest is imported
    from shoal.engine.settings.run_settings import load_settings

    wanted = load_settings(settings, overrides or ())
    # Wrong settings are refused first: the other imports take as long again.
    from shoal.engine.store.run_folder import RunFolder
    from shoal.flows.execute import complete
    from shoal.lifecycle.starting import new_run

    if dry_run:
        check_run(wanted)
        return
    if resume is None:
        folder = new_run(wanted)
    else:
        folder = RunFolder.find(resume)
    err.print("run", Text(str(folder.path), "bold"), highlight=False)
    result = complete(folder, err)
    if as_json:
        print(json.dumps(result.to_json()))
    else:
        from shoal.review.results.summary import progress_in_words

        show_result(result, progress_in_words(folder, result))


def print_methods() -> None:
    """Print the methods by the question that each answers."""
    from shoal.methods.index import methods_by_question

    for question, kinds in methods_by_question().items():
        out.print(f"[bold]{question}[/]", highlight=False)
        table = Table("method.name", "method", "what it does", show_header=False, box=None, padding=(0, 2))
        for kind in kinds:
            table.add_row(kind.name, kind.title, kind.about)
        out.print(table, highlight=False)


def check_options(settings: Path | None, overrides: Set, resume: str | None, dry_run: bool) -> None:
    """Refuse options that contradict each other."""
    if resume is not None and (settings is not None or overrides):
        raise ShoalError("--resume uses the settings that the run was started with: give no others")
    if resume is not None and dry_run:
        raise ShoalError("--dry-run is of a new run: give no --resume")
    if settings is not None and "=" in settings.name and not settings.exists():
        raise ShoalError(f"there is no settings file {settings}: to override a setting write --set {settings}")


def check_run(wanted: Settings) -> None:
    """Say what a run would do: make it, which checks all of its settings, and remove it; or ask its sites."""
    from shoal.engine.settings.run_settings import resolve
    from shoal.engine.sites.sites_pool import answers_to_plan
    from shoal.engine.sites.study import open_study
    from shoal.lifecycle.preflight import check_sums
    from shoal.lifecycle.preparing import advise, gather, prepare_data, prepare_partition, transport
    from shoal.lifecycle.starting import new_run
    from shoal.review.results.summary import task_sentence

    if wanted.workers.runner == "sites":
        if wanted.chooses_method:
            gather(wanted)
            wanted = resolve(wanted, method=advise(wanted).settings)
        answers = answers_to_plan(transport(), wanted)
        open_study().answers.write_text("\n".join(answers))
        for answer in answers:
            say(answer)
        gather(wanted)  # what the sites have now, from which `dvc repro` begins
        _, table = prepare_partition(wanted, prepare_data(wanted))
        check_sums(wanted, table.clients)
        if not all(answers.values()):
            raise typer.Exit(1)
        return
    folder = new_run(wanted)
    say(task_sentence(folder))
    shutil.rmtree(folder.path)
