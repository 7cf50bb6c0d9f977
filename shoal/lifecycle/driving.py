"""A run from wherever it stands to its end: what the command line, flows and studies share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from shoal.engine.cluster.pools import Pool, open_pool
from shoal.engine.rounds.active_run import ActiveRun, activate
from shoal.engine.rounds.loop import Engine, Observer
from shoal.engine.rounds.units import Runner, ThreadRunner
from shoal.engine.settings import places
from shoal.engine.settings.hardware import one_arena
from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.run_events import listening
from shoal.engine.store.run_folder import RunFolder, RunStopped
from shoal.review.mlflow_log.tracking import Tracker
from shoal.review.results.result import RunResult, run_result
from shoal.review.served.record import LogRun, PromoteModel


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
        runner_of: makes what has units of work carried out, given how many requests the workers may be given at once;
            plain threads by default.
        observers: called with every event.
        slots: workers to use (and leave open); by default the run's own.

    Returns:
        What the run came to.

    Raises:
        RunError: another process works on the run.
        RunStopped: an observer stopped it.
        ShoalError: the run stopped and can be resumed. KeyboardInterrupt likewise.
    """
    settings = run.settings()
    one_arena()  # before the threads that read large messages
    # The lock first: who is refused must not touch what others see of the run, nor start workers.
    with run.locked(), workers_of(run, settings, slots) as pool:
        runner = runner_of(pool.most) if runner_of else ThreadRunner(pool.most + 1)
        try:
            # Observers hear the events of every thread, until MLflow has the whole run.
            with listening(run.path, observers), tracked(run, settings) as tracker:
                log = [tracker.observe] if tracker else []
                # Each round: train the clients on the workers, aggregate, evaluate, log.
                Engine(run, pool.call, runner, pool.count, log).run_to_end()
                show(run, runner, pool)
                if tracker:
                    record(run, runner, tracker)
        finally:
            if isinstance(runner, ThreadRunner):
                runner.close()
    return run_result(run)


def show(run: RunFolder, runner: Runner, pool: Pool) -> None:
    """The clusters of all samples, figures and the report of a run whose rounds are done."""
    from shoal.review.pages.cluster_sheets import draw_cluster_sheets  # here: matplotlib takes a second to import
    from shoal.review.pages.embedding_figure import draw_embedding
    from shoal.review.pages.figures import draw_figures
    from shoal.review.pages.report import write_report
    from shoal.review.results.attempts import attempted
    from shoal.review.results.clusters import FindClusters
    from shoal.review.results.views import drop_damaged_figures, keep_figures

    with activate(ActiveRun(run, pool.call)):
        # The last unit of work: where a run has its table already, nothing is done.
        runner.submit(FindClusters(run.path)).result()
    drop_damaged_figures(run)
    views: list[tuple[str, Callable[[RunFolder], object]]] = [
        ("figures", draw_figures),
        ("the figure of features", draw_embedding),
        ("contact sheets", draw_cluster_sheets),
        ("the digests of figures", keep_figures),
        ("the report", write_report),
    ]
    for what, make in views:  # the run is done: no view of it that fails makes it fail
        attempted(run, what, partial(make, run))


def record(run: RunFolder, runner: Runner, tracker: Tracker) -> None:
    """The whole run in MLflow, and its model registered under a name."""
    if runner.submit(LogRun(run.path, told=tracker.close())).result():
        runner.submit(PromoteModel(run.path)).result()


@contextlib.contextmanager
def tracked(run: RunFolder, settings: Settings) -> Iterator[Tracker | None]:
    """Keep MLflow up to date, where the settings ask for it, and say there if the run stopped before its end."""
    if not settings.tracking.mlflow:
        yield None
        return
    tracker = Tracker(run, settings, places.mlflow_store())
    tracker.start()
    try:
        yield tracker
    except BaseException as error:
        broke = isinstance(error, Exception) and not isinstance(error, RunStopped)
        tracker.stop("FAILED" if broke else "KILLED")
        raise


@contextlib.contextmanager
def workers_of(run: RunFolder, settings: Settings, given: Pool | None) -> Iterator[Pool]:
    """The workers to use; a run's own ones are closed at the end."""
    if given is not None:
        yield given
        return
    device = run.lineage()["resolved"]["device"]
    with open_pool(settings.workers, device) as own:
        yield own
