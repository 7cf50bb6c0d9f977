"""`make demo`: what five clients find together in the digits that ship with scikit-learn, in two minutes.

It runs twice: with clients whose images are alike, and with clients that hold few digits each. The result of the
clients together stands beside that of each client alone with the same number of epochs, and beside the floor: K-means
on the pooled pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from shoal.cli.console import err, out, say, shoal_command, table_of
from shoal.engine.settings import places
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import Settings, make_settings
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.progress import progress
from shoal.lifecycle.starting import find_like, new_run
from shoal.review.pages.comparison_page import write_comparison
from shoal.review.results.result import RunResult, run_result
from shoal.sweeps.sweep import open_sweep

COMMON: dict[str, Any] = {
    "data": {"name": "digits"},
    "local": {"epochs": 5, "batch": 64},
    "rounds": 20,
    "evaluate": {"every": 20},
    "tracking": {"experiment": "demo"},
}
PARTITIONS: dict[str, dict[str, Any]] = {
    "alike": {"kind": "iid", "clients": 5},
    "unlike": {"kind": "dirichlet", "beta": 0.5, "clients": 5},
}
CLIENT_WORDS = {"alike": "alike (IID)", "unlike": "unlike (Dirichlet 0.5)"}
ALONE = {"method": {"name": "single", "tau": 0.2}, "local": {"lr": 1e-3}}
METHODS: dict[tuple[str, str], dict[str, Any]] = {
    # The floor has one round and no local steps: neither local settings nor the partition change it.
    ("alike", "floor"): {"method": {"name": "kmeans"}},
    ("alike", "alone"): ALONE,
    ("alike", "together"): {"method": {"name": "fedcc"}, "local": {"lr": 1e-3}},
    ("unlike", "alone"): ALONE,
    ("unlike", "together"): {
        # In the last twenty rounds nothing is trained: the clients find the clusters.
        "method": {
            "name": "fedsimclr_kmeans",
            "tau": 0.2,
            "kmeans_rounds": 20,
            "components": 40,
            "whitening": 0.5,
            "starts": 30,
        },
        "local": {"lr": 0.1},
        "augment": {"recipe": "gentle"},
        "rounds": 40,
        "evaluate": {"every": 40},
    },
}
"""Settings that docs/results/digits.md chose on seeds 100 to 103, which the results leave out."""
LABELS = {
    "kmeans": "K-means on pixels, pooled",
    "single": "each client alone: SimCLR, K-means",
    "fedcc": "together: FedCC",
    "fedsimclr_kmeans": "together: FedSimCLR, federated K-means",
}
WAYS = ("floor", "alone", "together")
app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class DemoRun:
    """One run of the demonstration.

    Attributes:
        clients: alike or unlike.
        way: floor, alone or together.
        method: its name.
        result: of the run.
    """

    clients: str
    way: str
    method: str
    result: RunResult

    @property
    def scores(self) -> dict[str, float]:
        """Return the final metrics."""
        return self.result.metrics


def planned(seed: int = 0, changes: Mapping[str, Any] | None = None) -> dict[tuple[str, str], Settings]:
    """Return the settings of each run, by (clients, way).

    Args:
        seed: of all runs.
        changes: settings that replace those of each run, such as a smaller budget.
    """
    return {
        (clients, way): make_settings(
            merge(COMMON, {"partition": PARTITIONS[clients], "seed": seed}, own, dict(changes or {}))
        )
        for (clients, way), own in METHODS.items()
    }


def run_planned(plan: Mapping[tuple[str, str], Settings], err: Console) -> list[DemoRun]:
    """Return the runs, executed one after another on the same workers, with progress on `err`.

    A run that is there with the same settings is taken, and completed where it was cut short.
    """
    runs = []
    with open_sweep(next(iter(plan.values()))) as sweep:
        for (clients, way), settings in plan.items():
            method = settings.method.name
            label = f"{CLIENT_WORDS[clients]}: {LABELS[method]}"
            run = find_like(settings) or new_run(settings)
            with progress(err, label) as observe:
                sweep.complete(run, label, [observe])
            runs.append(DemoRun(clients, way, method, run_result(run)))
    floor = next(each for each in runs if each.way == "floor")
    # Both partitions pool the same data: they share the floor.
    runs.append(DemoRun("unlike", "floor", floor.method, floor.result))
    return sorted(runs, key=lambda each: (list(CLIENT_WORDS).index(each.clients), WAYS.index(each.way)))


@app.command(epilog="Example: shoal demo")
def demo() -> None:
    """Show what five clients find together in scikit-learn's digits, and what each finds alone."""
    show_demo()


def show_demo(*, seed: int = 0, changes: Mapping[str, Any] | None = None) -> Path:
    """Execute all runs, print their table and the next commands, and write the page that compares them.

    Args:
        seed: of all runs.
        changes: settings that replace those of each run.

    Returns:
        The page.
    """
    runs = run_planned(planned(seed, changes), err)
    page = places.home() / "results" / "demo" / "demo.html"
    write_comparison([RunFolder(Path(run)) for run in dict.fromkeys(each.result.run for each in runs)], page)
    out.print(demo_table(runs))
    for line in closing(runs, page):
        say(line)
    return page


def demo_table(runs: list[DemoRun]) -> Table:
    """Return the runs side by side: scores over all 1,797 images, and what was sent."""
    rows = []
    for run in runs:
        scores = [run.scores[name] for name in ("acc", "nmi", "ari")]
        sent = "all data" if run.way == "floor" else f"{sum(run.result.bytes.values()) / 1e6:.1f}"
        rows.append((CLIENT_WORDS[run.clients], LABELS[run.method], *scores, sent, f"{run.result.seconds:.0f}"))
    headings = ("the clients' images are", "method", "ACC", "NMI", "ARI", "MB sent", "seconds")
    return table_of(headings, rows, "digits, 5 clients, no labels")


def closing(found: list[DemoRun], page: Path) -> list[str]:
    """Return the files to look at, and commands to try next."""
    shoal = shoal_command()
    together = [run for run in found if run.way == "together"]
    verdicts = [(run.method, run.result.verdict) for run in together]
    return [
        "ACC, NMI, ARI: agreement with labels that no method saw; 'alone' is the mean over the five clients.",
        *(f"verdict on {method}: {verdict.word}. {verdict.reason}" for method, verdict in verdicts if verdict),
        "",
        f"the runs side by side: {page}",
        "next:",
        *(f"  {shoal} open {Path(run.result.run).name}  # the report, in a browser" for run in together),
        f"  {shoal} serve                            # schedules, the worker, and these runs in MLflow's page",
        f"  {shoal} data add FOLDER --name mine      # your own images: a folder with a sub-folder for each client",
        f"  {shoal} run --set data.name=mine --set model.clusters=10    # a method that fits your images",
    ]
