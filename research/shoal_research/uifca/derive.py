"""Derived numbers of the UIFCA studies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shoal.engine.store.run_folder import RunFolder
from shoal_research.definition import Study
from shoal_research.table import Group, Table, each_run


def purity_rounds(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Return purity after 2 and 5 cluster rounds, and `rounds_to_all`: the first with every point in its cluster.

    Where there is none, it is one more than all cluster rounds. A run ends early once no assignment changes: later
    rounds would keep it.
    """

    def purities(run: RunFolder) -> list[float]:
        method = run.settings().to_json()["method"]
        table = run.table("rounds")
        found: list[float] = table["purity"][table["round"] % method["comm_rounds"] == 0].tolist()
        return found + found[-1:] * (int(method["cluster_rounds"]) - len(found))

    return each_run(
        groups,
        {
            "rounds_to_all": lambda run: float([*purities(run), 1.0].index(1.0) + 1),
            "purity/2": lambda run: purities(run)[1],
            "purity/5": lambda run: purities(run)[4],
        },
    )
