"""The views of a finished run in the order in which they are made: figures, figure of features, contact sheets, report.

views.json of the run remembers what each view was made of (`shoal.review.results.views`), so that a run that is resumed
makes only the views that are missing or out of date. A view that fails does not make the run fail.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from shoal.engine.store.run_folder import RunFolder
from shoal.review.results.attempts import attempt
from shoal.review.results.views import (
    FIGURES,
    drop_damaged_figures,
    keep_figures,
    keep_source,
    report_is_whole,
    source_of_figures,
    source_of_report,
    sources,
)

REPORT = "the report"


def make_figures(run: RunFolder) -> bool:
    """Draw the figures of a finished run that are missing, damaged or out of date.

    Returns:
        Whether all of them were there already.
    """
    drop_damaged_figures(run)
    source = source_of_figures(run)
    if sources(run).get(FIGURES) == source:
        return True
    from shoal.review.pages.cluster_sheets import draw_cluster_sheets  # here: matplotlib takes a second to import
    from shoal.review.pages.embedding_figure import draw_embedding
    from shoal.review.pages.figures import draw_figures

    draws: dict[str, Callable[[RunFolder], object]] = {
        "figures": draw_figures,
        "the figure of features": draw_embedding,
        "contact sheets": draw_cluster_sheets,
    }
    for what, draw in draws.items():
        if attempt(run, what, partial(draw, run)) is None:
            source = ""  # so that they are drawn again when the run is resumed
    attempt(run, "the digests of figures", partial(keep_figures, run, source))
    return False


def make_report(run: RunFolder, *, fresh: bool = True) -> None:
    """Write the report of a finished run, unless it is there and shows what the run's files say now.

    Args:
        run: the run's folder.
        fresh: whether the figures are those of the report that is there.
    """
    if fresh and report_is_whole(run) and sources(run).get(REPORT) == source_of_report(run):
        return

    def write() -> Path:
        from shoal.review.pages.report import write_report

        page = write_report(run)
        # Computed after writing: a part that the report leaves out is an event, which the report shows.
        keep_source(run, REPORT, source_of_report(run))
        return page

    attempt(run, REPORT, write)
