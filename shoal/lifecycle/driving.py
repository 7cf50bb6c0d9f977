"""The one way to take a run to its end, for the command line, flows and studies."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from shoal.engine.cluster.pool_interface import Pool
from shoal.engine.messages.wire import Answer, Request
from shoal.engine.rounds.loop import Engine
from shoal.engine.rounds.runner import Runner, ThreadRunner
from shoal.engine.settings.hardware import one_arena
from shoal.engine.settings.run_settings import Settings
from shoal.engine.sites.pools import open_pool
from shoal.engine.store.run_events import Observer, observing
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.lifecycle.run_views import make_figures, make_report
from shoal.lifecycle.site_baseline import federated_baseline
from shoal.review.mlflow_log.tracking import Tracker, log_run, register_model
from shoal.review.results.clusters import has_clusters, keep_clusters
from shoal.review.results.result import RunResult, run_result
from shoal.review.results.site_clusters import write_clusters_of_sites

ROUNDS = "rounds"
CLUSTERS = "clusters"
VIEWS = "views"
STAGES = (ROUNDS, CLUSTERS, VIEWS)
"""The stages of a run, in order: its rounds; the clusters of all samples; figures, report, and the log in MLflow.

Each stage finds what is there and does what is missing, so that a run can be resumed after any of them.
"""


def drive(
    run: RunFolder,
    *,
    runner_of: Callable[[int], Runner] = ThreadRunner,
    observers: Sequence[Observer] = (),
    slots: Pool | None = None,
    stages: Sequence[str] = STAGES,
) -> RunResult:
    """Finish a run: its rounds, then clusters, figures and report, all logged to MLflow.

    Args:
        run: the run's folder.
        runner_of: makes the runner of the work of each step, given how many requests may wait at once, and one more;
            plain threads by default.
        observers: called with every event.
        slots: workers to use (and leave open); by default the run's own.
        stages: which of `STAGES` to do; a flow does them one by one.

    Returns:
        The result of the run.

    Raises:
        RunError: another process works on the run.
        ShoalError, KeyboardInterrupt: the run stopped and can be resumed.
    """
    settings = run.settings()
    one_arena()  # before the threads that read large messages
    # The lock first: a process that is refused must not change what others see of the run, nor start workers.
    with run.locked(), workers_of(run, settings, slots, stages) as pool:
        requests = pool.max_requests if pool is not None else 1
        with (
            contextlib.closing(runner_of(requests + 1)) as runner,
            # Observers hear the events of every thread, until MLflow has the whole run.
            observing(run.path, observers),
            open_tracker(run, settings, live=ROUNDS in stages) as tracker,
        ):
            if ROUNDS in stages and pool is not None:
                log = [tracker.observe] if tracker is not None else []
                # Each round: train the clients on the workers, aggregate, evaluate, log.
                Engine(run, pool.call, runner, pool.count, log).run_to_end()
            if CLUSTERS in stages:
                find_clusters(run, runner, pool)
            if VIEWS in stages:
                if tracker:
                    tracker.close()  # a sync under way may still be making the MLflow run that the report names
                show(run, runner)
                if tracker:
                    record(run, runner, tracker)
    return run_result(run)


def find_clusters(run: RunFolder, runner: Runner, pool: Pool | None) -> None:
    """Have the workers give every sample its cluster, unless the run has its table."""
    call = no_workers if pool is None else pool.call
    write = None
    if run.lineage().sites:
        train = partial(drive, slots=pool, stages=(ROUNDS,))
        write = partial(write_clusters_of_sites, baseline=partial(federated_baseline, run, call, train))
    runner.submit("assign", "clusters of all samples", lambda: keep_clusters(run, call, write)).result()


def show(run: RunFolder, runner: Runner) -> None:
    """Make the figures of a run whose rounds are done, where they are missing, and its report."""

    def make() -> None:
        make_figures(run)
        make_report(run)

    runner.submit("report", "figures and report", make).result()


def record(run: RunFolder, runner: Runner, tracker: Tracker) -> None:
    """Log the whole run to MLflow, and register its model under a name."""
    before = run.status().tracking
    tracker.close()
    logged = runner.submit("log", "log to MLflow", lambda: log_run(run)).result()
    if logged:
        runner.submit("register", "register the model", lambda: register_model(run)).result()
    if not logged or run.status().tracking != before:  # which the report tells
        make_report(run)
        if logged:
            runner.submit("log", "log to MLflow", lambda: log_run(run)).result()


def no_workers(request: Request) -> Answer:
    """Refuse a request: nothing was to be computed."""
    raise RunError("a run that has its clusters needs no workers: resume it, so that they are found again")


@contextlib.contextmanager
def open_tracker(run: RunFolder, settings: Settings, *, live: bool) -> Iterator[Tracker | None]:
    """Yield a tracker that keeps MLflow up to date, if the settings ask for it; MLflow shows if the run stopped early.

    Args:
        run: the run's folder.
        settings: of the run.
        live: whether rounds will be done, which MLflow shows as they end.
    """
    if not settings.tracking.mlflow:
        yield None
        return
    tracker = Tracker(run, settings)
    if live:
        tracker.start()
    try:
        yield tracker
        tracker.close()
    except BaseException as error:
        tracker.stop("FAILED" if isinstance(error, Exception) else "KILLED")
        raise


@contextlib.contextmanager
def workers_of(run: RunFolder, settings: Settings, given: Pool | None, stages: Sequence[str]) -> Iterator[Pool | None]:
    """Yield the workers to use, None where the stages need none; close a run's own ones at the end."""
    if given is not None:
        yield given
        return
    if ROUNDS not in stages and (CLUSTERS not in stages or has_clusters(run)):
        yield None
        return
    lineage = run.lineage()
    if lineage.sites and settings.workers.runner != "sites":
        raise RunError(
            f"the samples of run {run.name} lie at sites ({', '.join(lineage.sites)}): set workers.runner=sites"
        )
    device = lineage.resolved.device
    with open_pool(settings.workers, device) as pool:
        yield pool
