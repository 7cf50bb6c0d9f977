"""Shoal from Python: start runs, look at them, and give new samples the clusters that they found.

    import shoal

    run = shoal.run(method="fedcc", data="digits", rounds=10)
    run.metrics, run.clusters, run.figures
    run.predict("new-images/")
    run.explain(3)

It has the code and the folders of the command line: each can show and resume the runs of the other. Everything lies
below SHOAL_HOME, or the current folder. See docs/python.md.

Names are imported when they are first used, so that `import shoal` itself takes no time.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if os.path.isfile(os.path.join(os.path.dirname(__file__), "data")):
    raise ImportError(
        f"{__file__}: shoal/data must be a link to ../data, and this copy has a file in its place: clone with "
        "`git -c core.symlinks=true clone`, or unpack the archive with a program that keeps links, such as tar"
    )

if TYPE_CHECKING:
    from shoal.api.adding import add_data, embed
    from shoal.api.listing import compare, runs
    from shoal.api.opened import Run, load
    from shoal.api.running import resume, run
    from shoal.api.searching import FoundSettings, search
    from shoal.core.errors import ShoalError
    from shoal.engine.settings.run_settings import Settings
    from shoal.review.served.explain import Explained

__all__ = [
    "Explained",
    "FoundSettings",
    "Run",
    "Settings",
    "ShoalError",
    "add_data",
    "compare",
    "embed",
    "load",
    "resume",
    "run",
    "runs",
    "search",
]

_PLACES = {
    "run": "shoal.api.running",
    "resume": "shoal.api.running",
    "load": "shoal.api.opened",
    "Run": "shoal.api.opened",
    "runs": "shoal.api.listing",
    "compare": "shoal.api.listing",
    "add_data": "shoal.api.adding",
    "embed": "shoal.api.adding",
    "Settings": "shoal.engine.settings.run_settings",
    "Explained": "shoal.review.served.explain",
    "search": "shoal.api.searching",
    "FoundSettings": "shoal.api.searching",
    "ShoalError": "shoal.core.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}; it has {', '.join(__all__)}")
    found = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
