"""The demonstration: what five clients find together, on the digits that ship with scikit-learn, in two minutes.

Twice: with clients whose images are alike, and with clients that hold few of the digits each. Beside what they find
together stand what each finds alone with the same number of epochs, and K-means on the pooled pixels: the floor.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from shoal.engine.settings import places
from shoal.engine.settings.hardware import resolve_device, resolve_slots
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import Settings, make_settings
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.workers.worker_processes import WorkerProcesses
from shoal.lifecycle.driving import drive
from shoal.lifecycle.progress import progress
from shoal.lifecycle.starting import new_run
from shoal.review.pages.comparison_page import write_comparison
from shoal.review.results.certain_images import certain_images, draw_rows
from shoal.review.results.result import RunResult

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
SAID = {"alike": "alike (IID)", "unlike": "unlike (Dirichlet 0.5)"}
METHODS: dict[tuple[str, str], dict[str, Any]] = {
    # The floor has one round and takes no step: local settings mean nothing to it, nor who holds what.
    ("alike", "floor"): {"method": {"name": "kmeans"}},
    ("alike", "alone"): {"method": {"name": "single", "tau": 0.2}, "local": {"lr": 1e-3}},
    ("alike", "together"): {"method": {"name": "fedcc"}, "local": {"lr": 1e-3}},
    ("unlike", "alone"): {"method": {"name": "single", "tau": 0.2}, "local": {"lr": 1e-3}},
    ("unlike", "together"): {
        # The last twenty rounds take no step: in them the clients find the clusters.
        "method": {
            "name": "fedsimclr_kmeans",
            "tau": 0.2,
            "kmeans_rounds": 20,
            "components": 40,
            "whitening": 0.5,
            "evenness": 0.0,
            "starts": 30,
        },
        "local": {"lr": 0.1},
        "augment": {"recipe": "gentle"},
        "rounds": 40,
        "evaluate": {"every": 40},
    },
}
"""What docs/results.md chose on seeds 100 to 103, which are not judged."""
LABELS = {
    "kmeans": "K-means on pixels, pooled",
    "single": "each client alone: SimCLR, K-means",
    "fedcc": "together: FedCC",
    "fedsimclr_kmeans": "together: FedSimCLR, federated K-means",
}
SHOWN = 10
"""Images of each cluster in the figure."""


@dataclass(frozen=True)
class Found:
    """One run of the demonstration: which clients, in which way, and what came of it."""

    clients: str
    way: str
    method: str
    result: RunResult

    @property
    def scores(self) -> dict[str, float]:
        """The final metrics."""
        return self.result.metrics


def planned(seed: int = 0, changes: Mapping[str, Any] | None = None) -> dict[tuple[str, str], Settings]:
    """Settings of each run, by (clients, way).

    Args:
        seed: of all runs.
        changes: laid over each run's settings: a smaller budget.
    """
    made = {}
    for (clients, way), own in METHODS.items():
        raw = merge(COMMON, {"partition": PARTITIONS[clients], "seed": seed}, own, dict(changes or {}))
        made[clients, way] = make_settings(raw)
    return made


def run_planned(plan: Mapping[tuple[str, str], Settings], err: Console) -> list[Found]:
    """Run them one after another on the same worker slots, with progress on `err`."""
    workers = next(iter(plan.values())).workers
    device = resolve_device(workers)
    found = []
    with WorkerProcesses(resolve_slots(workers.slots, device), device) as slots:
        for (clients, way), settings in plan.items():
            method = settings.method.name
            run = new_run(settings)
            with progress(err, f"{SAID[clients]}: {LABELS[method]}") as observe:
                found.append(Found(clients, way, method, drive(run, slots=slots, observers=[observe])))
    floor = next(each for each in found if each.way == "floor")
    # Pooled data are the same however they were dealt: one floor for both.
    return sorted([*found, Found("unlike", "floor", floor.method, floor.result)], key=_order)


def _order(each: Found) -> tuple[int, int]:
    return list(SAID).index(each.clients), ["floor", "alone", "together"].index(each.way)


def demo(out: Console, err: Console, *, seed: int = 0, changes: Mapping[str, Any] | None = None) -> Path:
    """Run everything, print the table, draw the figure, say what to do next.

    Args:
        out: for the table.
        err: for progress.
        seed: of all runs.
        changes: laid over each run's settings.

    Returns:
        The figure.
    """
    found = run_planned(planned(seed, changes), err)
    results = places.home() / "results" / "demo"
    figure = draw(found, results / "demo.png")
    every = dict.fromkeys(each.result.run for each in found)
    page = write_comparison([RunFolder(Path(run)) for run in every], results / "demo.html")
    out.print(demo_table(found))
    for line in closing(found, figure, page):
        out.print(line, highlight=False, soft_wrap=True)
    return figure


def demo_table(found: list[Found]) -> Table:
    """The runs side by side: scores over all 1,797 images, and what was sent."""
    table = Table("the clients' images are", "method", title="digits, 5 clients, no labels", title_justify="left")
    for name in ("ACC", "NMI", "ARI", "MB sent", "seconds"):
        table.add_column(name, justify="right")
    for each in found:
        scores = [f"{each.scores[name]:.3f}" for name in ("acc", "nmi", "ari")]
        sent = sum(each.result.bytes.values()) / 1e6
        moved = "all data" if each.way == "floor" else f"{sent:.1f}"
        table.add_row(SAID[each.clients], LABELS[each.method], *scores, moved, f"{each.result.seconds:.0f}")
        if each.way == "together" and each is not found[-1]:
            table.add_section()
    return table


def closing(found: list[Found], figure: Path, page: Path) -> list[str]:
    """What the table shows, where to look, and three commands to go on with."""
    shoal = command()
    looks = [f"  {shoal} open {Path(each.result.run).name}" for each in found if each.way == "together"]
    words = [f"# the report of {each.method}, in a browser" for each in found if each.way == "together"]
    width = max(map(len, looks))
    return [
        "ACC, NMI, ARI: agreement with labels that no method saw; 'alone' is the mean over the five clients.",
        *(against_the_best_alone(found, clients) for clients in SAID),
        "",
        f"figure, with images of the clusters found: {figure}",
        f"the runs side by side: {page}",
        "look:",
        *(f"{look:{width}}  {word}" for look, word in zip(looks, words, strict=True)),
        "next:",
        f"  {shoal} serve                            # schedules, the worker, and these runs in MLflow's page",
        f"  {shoal} data add FOLDER --name mine      # your own images: a folder with a sub-folder for each client",
        f"  {shoal} run --set data.name=mine --set model.clusters=10 --set method.name=fedcc",
    ]


def against_the_best_alone(found: list[Found], clients: str) -> str:
    """Whether the clients found together what none of them found alone, in a sentence."""
    scores = {each.way: each.scores for each in found if each.clients == clients}
    together, best = scores["together"]["acc"], scores["alone"]["acc_max"]
    more = "more than any of them alone" if together > best else "no more than the best of them alone"
    return f"Clients whose images are {SAID[clients]} find {more}: {together:.3f} together, {best:.3f} the best alone."


def command() -> str:
    """The command line as it was called: relative where it lies below the current folder."""
    called = Path(sys.argv[0])
    if called.name != "shoal":
        return "shoal"
    try:
        return str(called.absolute().relative_to(Path.cwd()))
    except ValueError:
        return "shoal"


def draw(found: list[Found], path: Path) -> Path:
    """ACC of all runs, and the images that the clusters found together are most certain of.

    Args:
        found: of `run_planned`.
        path: the PNG, whose folder is made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(9.6, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    colours = {"floor": "0.6", "alone": "tab:orange", "together": "tab:blue"}
    groups = list(SAID)
    for number, each in enumerate(found):
        place = number + 0.7 * groups.index(each.clients)
        acc = each.scores["acc"]
        left.barh(place, acc, color=colours[each.way], height=0.42)
        left.text(0.004, place - 0.27, LABELS[each.method], va="bottom", fontsize=8)
        furthest = max(acc, each.scores.get("acc_max", 0.0))
        if "acc_min" in each.scores:
            left.plot([each.scores["acc_min"], furthest], [place, place], color="black", linewidth=1)
        left.text(furthest + 0.01, place, f"{acc:.2f}", va="center", fontsize=8)
    middles = [
        sum(n + 0.7 * g for n, each in enumerate(found) if each.clients == name) / 3 for g, name in enumerate(groups)
    ]
    left.set_yticks(middles, [SAID[name].replace(" (", "\n(") for name in groups])
    left.tick_params(left=False)
    left.invert_yaxis()
    left.set(xlim=(0, 1.1), title="found without labels")
    left.set_xlabel("ACC, all 1,797 digits (line: worst to best client)", fontsize=9)
    left.spines[["top", "right"]].set_visible(False)
    shown = next(each for each in found if each.clients == "alike" and each.way == "together")
    draw_rows(right, certain_images(RunFolder(Path(shown.result.run)), SHOWN), SHOWN)
    right.set_title(f"clusters of {LABELS[shown.method].removeprefix('together: ')}, their most certain images")
    figure.savefig(path, dpi=120)
    return path
