"""What the fork server imports before a worker is forked from it."""

from __future__ import annotations

from pathlib import Path

from shoal.engine.workers.worker_processes import WorkerProcesses


def test_a_worker_starts_with_the_libraries_of_evaluations() -> None:
    """Each worker would import them by itself otherwise, at its first evaluation."""
    with WorkerProcesses(1) as pool:
        _, process = pool.processes[0].ready()
        libraries = Path(f"/proc/{process.pid}/maps").read_text()
    assert "/torch/" in libraries
    assert "/pyarrow/_parquet" in libraries
    assert "/sklearn/cluster/" in libraries
    assert "/sklearn/metrics/" in libraries
