"""Shoal from Python: start runs, look at them, and give new samples the clusters that they found.

    import shoal

    run = shoal.run(method="fedcc", data="digits", rounds=10)
    run.metrics, run.clusters, run.figures
    run.predict("new-images/")
    run.explain(3)

It is the same code as the command line's, and the same folders: a run that one of them started the other can show and
go on with. Everything lies below SHOAL_HOME, or the current folder. See docs/python.md.

Nothing is imported before it is asked for: `import shoal` itself takes no time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.errors import ShoalError
    from engine.settings import Settings
    from review.explain import Explained
    from shoal.adding import AddedData, add_data
    from shoal.listing import compare, runs
    from shoal.opened import Run, load
    from shoal.running import plan, resume, run
    from shoal.searching import FoundSettings, search
    from tasks.rehearsal import Plan

__all__ = [
    "AddedData",
    "Explained",
    "FoundSettings",
    "Plan",
    "Run",
    "Settings",
    "ShoalError",
    "add_data",
    "compare",
    "load",
    "plan",
    "resume",
    "run",
    "runs",
    "search",
]

_PLACES = {
    "run": "shoal.running",
    "resume": "shoal.running",
    "plan": "shoal.running",
    "load": "shoal.opened",
    "Run": "shoal.opened",
    "runs": "shoal.listing",
    "compare": "shoal.listing",
    "add_data": "shoal.adding",
    "AddedData": "shoal.adding",
    "Settings": "engine.settings",
    "Plan": "tasks.rehearsal",
    "Explained": "review.explain",
    "search": "shoal.searching",
    "FoundSettings": "shoal.searching",
    "ShoalError": "core.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}; it has {', '.join(__all__)}")
    found = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
