"""The figures and tables that a method itself makes of a finished run."""

from __future__ import annotations

from pathlib import Path

from shoal.core.errors import ShoalError
from shoal.data.sets.csv_file import write_csv
from shoal.engine.store.client_names import client_names
from shoal.engine.store.codec import StoreError
from shoal.engine.store.kept_state import read_state_if_any
from shoal.engine.store.opened_run import OpenedClients, OpenedRun
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.contract.base import Method, RunHistory
from shoal.methods.registry import METHODS
from shoal.review.results.fonts import make_drawable


def method_and_history(run: RunFolder) -> tuple[Method, RunHistory]:
    """Return a run's method, and the run's history in the form in which methods draw it.

    Raises:
        ShoalError: the run's data or partition are missing on this machine, or have changed. StoreError: its last state
            is damaged.
    """
    opened = OpenedRun(run)
    checkpoint = read_state_if_any(run)
    clients = OpenedClients(opened, 0)
    if checkpoint is not None:
        clients = OpenedClients(opened, checkpoint.server.round, checkpoint.memory_index.clients())
    history = RunHistory(
        run.table("rounds"),
        run.table("clients"),
        tuple(client_names(run)),
        tuple(opened.prepared.manifest.class_names),
        None if checkpoint is None else checkpoint.server,
        clients,
    )
    return opened.method, history


def draw_method_views(run: RunFolder) -> list[Path]:
    """Write the method's own figures (PNG) and tables (CSV) into the run's figures folder.

    A run whose data or partition are no longer on this machine keeps its earlier figures.
    """
    kind = METHODS[run.settings().method.name]
    if kind.figures is Method.figures and kind.tables is Method.tables:
        return []  # the method draws nothing
    try:
        method, history = method_and_history(run)
    except StoreError:
        raise
    except ShoalError:
        return []
    run.figures.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in method.figures(history).items():
        written.append(run.figures / f"{name}.png")
        make_drawable(figure)
        figure.savefig(written[-1], dpi=120)
    for name, table in method.tables(history).items():
        written.append(run.figures / f"{name}.csv")
        write_csv(table, written[-1])
    return written
