"""`make demo`: what five clients find together in the digits that ship with scikit-learn, in two minutes.

It runs twice: with clients whose images are alike, and with clients that hold few digits each. The result of the
clients together stands beside that of each client alone with the same number of epochs, and beside the floor: K-means
on the pooled pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from shoal.cli.console import err, out, say, shoal_command, table_of
from shoal.engine.settings import places
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import Settings, make_settings
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.progress import progress
from shoal.lifecycle.starting import find_like, new_run
from shoal.review.pages.comparison_page import write_comparison
from shoal.review.results.result import run_result
from shoal.sweeps.sweep import open_sweep

COMMON: dict[str, Any] = {
    "data": {"name": "digits"},
    "local": {"epochs": 5, "batch": 64},
    "rounds": 20,
    "evaluate": {"every": 20},
    "tracking": {"experiment": "demo"},
}
ALIKE = {"partition": {"kind": "iid", "clients": 5}}
UNLIKE = {"partition": {"kind": "dirichlet", "beta": 0.5, "clients": 5}}
CLIENT_WORDS = {"alike": "alike (IID)", "unlike": "unlike (Dirichlet 0.5)"}
FLOOR = {**ALIKE, "method": {"name": "kmeans"}}
"""One run for both: local settings and the partition do not change K-means on the pooled pixels."""
ALONE = {"method": {"name": "single", "tau": 0.2}, "local": {"lr": 1e-3}}
RUNS: dict[tuple[str, str], dict[str, Any]] = {
    ("alike", "floor"): FLOOR,
    ("alike", "alone"): {**ALIKE, **ALONE},
    ("alike", "together"): {**ALIKE, "method": {"name": "fedcc"}, "local": {"lr": 1e-3}},
    ("unlike", "floor"): FLOOR,
    ("unlike", "alone"): {**UNLIKE, **ALONE},
    ("unlike", "together"): {
        **UNLIKE,
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
app = typer.Typer(add_completion=False)


def planned(seed: int = 0, changes: Mapping[str, Any] | None = None) -> dict[tuple[str, str], Settings]:
    """Return the settings of each run, by (clients, way).

    Args:
        seed: of all runs.
        changes: settings that replace those of each run, such as a smaller budget.
    """
    return {key: make_settings(merge(COMMON, {"seed": seed}, own, dict(changes or {}))) for key, own in RUNS.items()}


def run_planned(plan: Mapping[tuple[str, str], Settings]) -> dict[tuple[str, str], RunFolder]:
    """Return the runs, executed one after another on the same workers, with progress on standard error.

    A run that is there with the same settings is taken, and completed where it was cut short.
    """
    runs = {}
    with open_sweep(next(iter(plan.values()))) as sweep:
        for key, settings in plan.items():
            label = f"{CLIENT_WORDS[key[0]]}: {LABELS[settings.method.name]}"
            run = find_like(settings) or new_run(settings)
            with progress(err, label) as observe:
                sweep.complete(run, label, [observe])
            runs[key] = run
    return runs


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
    runs = run_planned(planned(seed, changes))
    page = places.home() / "results" / "demo" / "demo.html"
    write_comparison(list({run.path: run for run in runs.values()}.values()), page)
    rows = []
    for (clients, way), run in runs.items():
        result = run_result(run)
        scores = [result.metrics[name] for name in ("acc", "nmi", "ari")]
        sent = "all data" if way == "floor" else f"{sum(result.bytes.values()) / 1e6:.1f}"
        label = LABELS[run.settings().method.name]
        rows.append((CLIENT_WORDS[clients], label, *scores, sent, f"{result.seconds:.0f}"))
    headings = ("the clients' images are", "method", "ACC", "NMI", "ARI", "MB sent", "seconds")
    out.print(table_of(headings, rows, "digits, 5 clients, no labels"))
    for line in closing([runs[clients, "together"] for clients in CLIENT_WORDS], page):
        say(line)
    return page


def closing(together: Sequence[RunFolder], page: Path) -> list[str]:
    """Return the files to look at, and commands to try next, after the runs of all clients together."""
    shoal = shoal_command()
    verdicts = [(run.settings().method.name, run_result(run).verdict) for run in together]
    return [
        "ACC, NMI, ARI: agreement with labels that no method saw; 'alone' is the mean over the five clients.",
        *(f"verdict on {method}: {verdict.word}. {verdict.reason}" for method, verdict in verdicts if verdict),
        "",
        f"the runs side by side: {page}",
        "next:",
        *(f"  {shoal} open {run.name}  # the report, in a browser" for run in together),
        f"  {shoal} serve                            # schedules, the worker, and these runs in MLflow's page",
        f"  {shoal} data add FOLDER --name mine      # your own images: a folder with a sub-folder for each client",
        f"  {shoal} run --set data.name=mine --set model.clusters=10    # a method that fits your images",
    ]
