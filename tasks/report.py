"""The task that draws a run's figures and writes its report."""

from __future__ import annotations

from pathlib import Path

from prefect import task

from shoal.engine.store.run_folder import RunFolder
from shoal.tasks.prefect.retries import OF_A_RUN


@task(name="report", **OF_A_RUN)
def report(run: str) -> str:
    """Figures and report.html of a run.

    Args:
        run: the run's folder.

    Returns:
        Where the report is.
    """
    from shoal.review.pages.figures import draw_figures  # here: who only imports flows would wait for matplotlib
    from shoal.review.pages.report import write_report
    from shoal.review.results.views import check_figures, keep_figures

    folder = RunFolder(Path(run))
    check_figures(folder)
    draw_figures(folder)
    keep_figures(folder)
    return str(write_report(folder))
