"""A run from wherever it stands to its end: what the command line, flows and studies share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from engine import places
from engine.at_work import RunAtWork, hold
from engine.pools import Pool, open_pool
from engine.rounds import Engine, Observer
from engine.run_folder import RunFolder
from engine.settings import Settings
from engine.units import Runner, ThreadRunner
from review.result import RunResult, run_result
from review.tracking import Tracker


def drive(
    run: RunFolder,
    *,
    runner_of: Callable[[int], Runner] | None = None,
    observers: Sequence[Observer] = (),
    slots: Pool | None = None,
) -> RunResult:
    """All rounds that are still to do, then clusters, figures and report, all of it logged to MLflow.

    Args:
        run: the run's folder.
        runner_of: makes what has units of work carried out, given how many requests the workers take at once; plain
            threads by default.
        observers: called with every event.
        slots: workers to use (and leave open); by default the run's own.

    Returns:
        What the run came to.

    Raises:
        ShoalError: the run stopped and can be resumed. KeyboardInterrupt likewise.
    """
    settings = run.settings()
    with workers_of(run, settings, slots) as pool:
        runner = runner_of(pool.count) if runner_of else ThreadRunner(pool.count + 1)
        try:
            with logged(run, settings) as log:
                # Each round: train the clients on the workers, aggregate, evaluate, log.
                Engine(run, pool.call, runner, pool.count, [*observers, *log]).run_to_end()
                show(run, runner, pool)
        finally:
            if isinstance(runner, ThreadRunner):
                runner.close()
    return run_result(run)


def show(run: RunFolder, runner: Runner, pool: Pool) -> None:
    """The clusters of all samples, figures and the report of a run whose rounds are done."""
    from review.cluster_sheets import draw_cluster_sheets  # here: matplotlib takes a second to import
    from review.clusters import FindClusters
    from review.figures import draw_figures
    from review.report import write_report

    with hold(RunAtWork(run, pool.call)):
        # The last unit of work: where a run has its table already, nothing is done.
        runner.submit(FindClusters(run.path)).result()
    draw_figures(run)
    draw_cluster_sheets(run)
    write_report(run)


@contextlib.contextmanager
def logged(run: RunFolder, settings: Settings) -> Iterator[list[Observer]]:
    """Keep MLflow up to date, where the settings ask for it, and say there how the run ended.

    Yields:
        The observers for that.
    """
    if not settings.tracking.mlflow:
        yield []
        return
    tracker = Tracker(run, settings, places.mlflow_store())
    ended = "FAILED"
    try:
        tracker.start()
        yield [tracker.observe]
        ended = "FINISHED"
    except KeyboardInterrupt:
        ended = "KILLED"
        raise
    finally:
        tracker.finish(ended)


@contextlib.contextmanager
def workers_of(run: RunFolder, settings: Settings, given: Pool | None) -> Iterator[Pool]:
    """The workers to use; a run's own ones are closed at the end."""
    if given is not None:
        yield given
        return
    device = run.lineage()["resolved"]["device"]
    with open_pool(settings.workers, device) as own:
        yield own
