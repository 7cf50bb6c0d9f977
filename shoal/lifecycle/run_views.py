"""The views of a finished run in the order in which they are made: figures, figure of features, contact sheets, report.

views.json of the run remembers what figures were drawn from (`shoal.review.results.views`), so that a run that is
resumed draws them only where some are missing or out of date. A view that fails does not make the run fail.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable

from shoal.core.errors import ShoalError, short_text
from shoal.engine.store.run_folder import RunFolder
from shoal.review.results.views import are_figures_whole, keep_figures, source_of_figures


def make_figures(run: RunFolder) -> None:
    """Draw the figures of a finished run that are missing, damaged or out of date."""
    source = source_of_figures(run)
    if are_figures_whole(run, source):
        return
    shutil.rmtree(run.figures, ignore_errors=True)
    from shoal.review.pages.cluster_sheets import draw_cluster_sheets  # here: matplotlib takes a second to import
    from shoal.review.pages.embedding_figure import draw_embedding
    from shoal.review.pages.figures import draw_figures

    draws: dict[str, Callable[[RunFolder], object]] = {
        "figures": draw_figures,
        "the figure of features": draw_embedding,
        "contact sheets": draw_cluster_sheets,
    }
    for what, draw in draws.items():
        if not succeeds(run, what, draw):
            source = ""  # so that they are drawn again when the run is resumed
    succeeds(run, "the digests of figures", lambda run: keep_figures(run, source))


def make_report(run: RunFolder) -> None:
    """Write the report of a finished run."""
    from shoal.review.pages.report import write_report  # here: matplotlib takes a second to import

    succeeds(run, "the report", write_report)


def succeeds(run: RunFolder, what: str, make: Callable[[RunFolder], object]) -> bool:
    """Return whether a view can be made; where it fails, log one event that says what is missing and why."""
    try:
        make(run)
    except Exception as error:  # of any kind: a view that fails must not stop the run
        message = f"{what} left out: {type(error).__name__}: {short_text(error)}"
        with contextlib.suppress(ShoalError):  # on a full disk no event can be written
            run.event_once("not_shown", message)
        return False
    return True
