"""Whether the privacy ledger of a data set knows all private runs on the set that lie in the folder of runs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from shoal.core.errors import ShoalError
from shoal.engine.rounds.privacy import Ledger
from shoal.engine.rounds.privacy_ledger import set_name
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.run_order import in_order

IN_LEDGER = "epsilon_set_sent"
"""Metric of rounds that are entered in the ledger of the data set."""
OWN_LOSS = "epsilon_sent"
ROUND_STARTED = "round_started"
TOLERANCE = 1e-9
"""Relative error of epsilon."""


def runs_that_know_more(name: str, entries: Mapping[str, Ledger], runs: Path) -> list[str]:
    """Return the private runs on a data set whose loss is not, or not all, in the set's ledger.

    A run from before the ledger, and one that cannot be read, know nothing.

    Args:
        name: of the data set, as of `set_name`.
        entries: of its ledger, by run.
        runs: the folder of runs.
    """
    lost = []
    for path in in_order(runs):
        run = RunFolder(path.parent)
        with contextlib.suppress(ShoalError):
            if _knows_more(run, entries.get(run.name)) and set_name(run.settings().data) == name:
                lost.append(run.name)
    return lost


def _knows_more(run: RunFolder, entry: Ledger | None) -> bool:
    """Return whether a run was private, and tells of more than its entry."""
    rounds = run.table("rounds")
    if rounds.empty:
        began = entry is None and any(event.kind == ROUND_STARTED for event in run.events())
        return began and run.settings().privacy.secret
    if IN_LEDGER not in rounds:
        return False
    if entry is None:
        return True
    loss = float(rounds[OWN_LOSS].max())
    known = entry.spent(run.settings().privacy.delta).sent
    return loss > known * (1 + TOLERANCE)
