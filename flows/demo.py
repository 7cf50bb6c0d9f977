"""The demonstration: three methods on the digits that ship with scikit-learn, five clients, two minutes."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from flows import places
from flows.cli import results_table
from flows.launch import drive, new_run
from flows.progress import progress
from tasks.figures import compare_curves
from tasks.hardware import resolve_device, resolve_slots
from tasks.settings import make_settings
from tasks.slots import Slots

COMMON: dict[str, Any] = {
    "data": {"name": "digits"},
    "partition": {"kind": "dirichlet", "beta": 0.5, "clients": 5},
    "local": {"epochs": 5, "batch": 64, "lr": 1e-3},
    "rounds": 10,
    "tracking": {"system": False, "experiment": "demo"},
}


def demo(out: Console, err: Console) -> None:
    """Run the methods, print their table, write the figure, say where to look."""
    results, curves = [], {}
    with Slots(resolve_slots("auto", resolve_device("auto")), resolve_device("auto")) as slots:
        for name in ("fedpnp", "fedcc", "kmeans"):
            # The floor has one round and takes no step: local settings mean nothing to it.
            run = new_run(make_settings({**COMMON, "method": {"name": name}}))
            with progress(err, name) as observe:
                result = drive(run, slots=slots, observers=[observe])
            results.append({"method": name, "data": "digits", **result})
            curves[name] = run.table("rounds")
    figure = places.home() / "results" / "demo" / "accuracy.png"
    figure.parent.mkdir(parents=True, exist_ok=True)
    compare_curves(curves, "acc", figure)
    out.print(results_table(results, brief=True))
    for result in results:
        out.print(f"{result['method']}: {result['run']}/report.html", highlight=False, soft_wrap=True)
    out.print(f"figure: {figure}", highlight=False, soft_wrap=True)
    out.print("look at the runs in MLflow: shoal serve, then http://127.0.0.1:5000", highlight=False, soft_wrap=True)
