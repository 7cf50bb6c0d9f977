"""The flow of a night: take in new data, train from the champion, compare both models, promote the better one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.events import emit_event

from shoal.core.errors import ShoalError
from shoal.core.records import record_to_json
from shoal.data.sets.prepared import open_prepared
from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.warm_start import WarmStart, WarmStartError
from shoal.flows.tell import tell_failure
from shoal.lifecycle.claim import claimed, claimed_nights, claimed_run, is_done
from shoal.lifecycle.driving import CLUSTERS, ROUNDS, VIEWS
from shoal.lifecycle.night_settings import NightSettings
from shoal.lifecycle.nights import (
    champion_in_use,
    check_settings,
    earlier_method,
    judged_run,
)
from shoal.lifecycle.notification import APPROVAL, LEFT_OUT, notify
from shoal.lifecycle.taking_in import MAX_NAMED, TakenIn
from shoal.review.results.clusters import cluster_facts
from shoal.review.results.stable_names import CHANGED, NIGHT, ClusterChange
from shoal.review.results.summary import counted
from shoal.review.served.drift import Drift
from shoal.review.served.judging import Decision, check_held_out
from shoal.review.served.promotion import DRIFTED, keep_decision
from shoal.tasks.compare import compare
from shoal.tasks.decide import decide
from shoal.tasks.drift import drift
from shoal.tasks.prefect.stages import (
    UNIT_RUNNER,
    drive_as_task_runs,
    tag_flow_run,
    wait_for_sites,
    without_tags,
)
from shoal.tasks.take_in import take_in

NOTHING_NEW = "nothing new"


@dataclass(frozen=True)
class Night:
    """The result of a night.

    Args:
        outcome: `nothing new`, `promoted`, `waits for approval`, or `champion kept`.
        why: the reason, in a sentence.
        data: digest of the data set.
        new: number of new samples.
        run: name of the challenger's run; of the champion's, where nothing is new.
        drift: how new samples differ from the old ones, a sentence each.
        clusters: what became of the champion's clusters, a sentence each.
    """

    outcome: str
    why: str
    data: str
    new: int
    run: str
    drift: list[str] = field(default_factory=list)
    clusters: list[str] = field(default_factory=list)


@flow(
    name="nightly",
    flow_run_name="night of {settings.data.name}",
    task_runner=UNIT_RUNNER,  # type: ignore[arg-type]
    on_failure=[tell_failure],
    on_crashed=[tell_failure],
)
def nightly(settings: Settings, night: NightSettings = NightSettings()) -> dict[str, Any]:
    """Take in new data, train from the champion's state, compare both models, and promote the better one.

    Where nothing is new and there is a champion, nothing is trained. Where new data are broken or wrong, the night
    fails and everything stays as it was. The next night resumes a night that was cut short.

    Args:
        settings: Settings of the training: method, data set, rounds and so on.
        night: Where new data come from, and how models are judged.

    Returns:
        The result of the night (`Night`), as JSON.
    """
    check_settings(settings)
    tag_flow_run(settings)
    wait_for_sites(settings)
    with claimed_nights(settings.data.name), without_tags():
        return asdict(one_night(settings, night))


def one_night(settings: Settings, night: NightSettings) -> Night:
    """Do the work of a night within its flow run."""
    log = get_run_logger()
    settings = earlier_method(settings)
    champion = champion_in_use(settings)
    taken = take_in(settings, night)
    log.info(taken.message)
    tell_left_out(settings, taken, log)
    judged = judged_run(settings, taken.digest)
    if judged is not None and not is_done(judged):  # cut short before MLflow had the decision
        with claimed(judged):
            report_and_decide(judged)
        champion = champion_in_use(settings)
    if judged is not None and champion is not None and not night.force:
        why = f"{taken.message}; run {judged.name} was judged on this data, and {champion.name} stays the champion"
        log.info(why)
        return Night(NOTHING_NEW, why, taken.digest, taken.new, champion.name)
    check_held_out(open_prepared(Path(taken.folder)))  # before hours of training that nobody could judge
    drifts: list[Drift] = []
    if settings.workers.runner == "sites":
        log.info("drift is not looked for, and clusters get no names that nights keep: both need samples of sites")
    elif champion is not None and judged is None:
        compared = drift(str(champion.path), taken.folder, night, settings.seed)
        drifts = [each for each in compared if each.found]
        emit_drift(settings, drifts, log)
    with night_run(settings, night, champion, taken.digest) as run:
        decision = train_and_decide(run, champion, taken.folder, night, drifts)
    log.info(f"{run.name}: {decision.why}")
    show_decision(settings, run, decision, drifts)
    if decision.waits:
        tell_waiting(run, decision, log)
    return Night(
        decision.outcome,
        decision.why,
        taken.digest,
        taken.new,
        run.name,
        drift=[each.sentence() for each in drifts],
        clusters=[each.sentence() for each in changes_of(run)],
    )


def tell_left_out(settings: Settings, taken: TakenIn, log: Any) -> None:
    """Notify the user of new files that were left out."""
    if taken.left_out:
        name = settings.data.name
        count = counted(len(taken.left_out), "new file")
        others = len(taken.left_out) - MAX_NAMED
        more = f"; and {others} more (`shoal data show {name}`)" * (others > 0)
        tell(f"{name}: {count} left out: {'; '.join(taken.left_out[:MAX_NAMED])}{more}", LEFT_OUT, log)


def tell_waiting(run: RunFolder, decision: Decision, log: Any) -> None:
    """Tell the user that a better challenger waits, and how to approve it."""
    message = f"{run.name} waits for approval ({decision.why}): `shoal model promote {run.name}` makes it the champion"
    tell(message, APPROVAL, log)


def tell(message: str, kind: str, log: Any) -> None:
    """Log a warning, and notify the user; the night continues if that fails."""
    log.warning(message)
    try:
        notify(message, kind)
    except ShoalError as error:
        log.warning(str(error))


@contextlib.contextmanager
def night_run(settings: Settings, night: NightSettings, champion: RunFolder | None, data: str) -> Iterator[RunFolder]:
    """Claim the night's run, resumed or new; it starts from the champion's state where the night asks for that.

    A champion whose state does not fit is left out. An event of the run says what it started from.

    Args:
        settings: of the training.
        night: sets where to start.
        champion: the run of the model in use; None where there is none.
        data: digest of the data set.
    """
    origin: WarmStart | None = None
    message = "starts from the method's own state: night.start is scratch"
    if champion is None:
        message = "starts from the method's own state: there is no champion"
    with contextlib.ExitStack() as claim:
        try:
            if champion is not None and night.start == "champion":
                origin = WarmStart.from_run(champion)
                message = f"starts from the state of the champion, run {origin.run}"
            run = claim.enter_context(claimed_run(settings, origin=origin, data=data))
        except WarmStartError as error:
            if settings.workers.runner == "sites":
                raise  # they could not judge its state either
            message = f"starts from the method's own state: {error}"
            run = claim.enter_context(claimed_run(settings, data=data))
        run.event(NIGHT, message=message, champion=champion and champion.name)
        yield run


def train_and_decide(
    run: RunFolder, champion: RunFolder | None, data: str, night: NightSettings, drifts: Sequence[Drift]
) -> Decision:
    """Train the challenger, compare it with the champion, decide, and report.

    Args:
        run: of the challenger.
        champion: the run of the model in use; None where there is none.
        data: folder of the data set.
        night: sets the score and the margin.
        drifts: the drift that was found.
    """
    for each in drifts:
        run.event(DRIFTED, **{**asdict(each), "message": each.sentence()})
    drive_as_task_runs(run, (ROUNDS, CLUSTERS))
    record_changes(run)
    wait_for_sites(run.settings())
    champion_path = None if champion is None else str(champion.path)
    decision = compare(str(run.path), champion_path, data, night)
    keep_decision(run, decision, drifts)
    report_and_decide(run)
    return decision


def record_changes(run: RunFolder) -> None:
    """Write to the run's events what became of the champion's clusters: the report shows them."""
    recorded = {event.message for event in run.events() if event.kind == CHANGED}
    for change in changes_of(run):
        if change.sentence() not in recorded:
            facts = record_to_json(change)
            run.event(CHANGED, message=change.sentence(), change=facts.pop("kind"), **facts)


def changes_of(run: RunFolder) -> tuple[ClusterChange, ...]:
    """Return what became of the champion's clusters in a night's run."""
    facts = cluster_facts(run)
    if facts is None or facts.names is None:
        return ()
    return facts.names.changes


def report_and_decide(run: RunFolder) -> None:
    """Write the report of a judged run, which shows the decision, log and register its model, and move the alias."""
    drive_as_task_runs(run, (VIEWS,))
    decide(str(run.path))


def emit_drift(settings: Settings, drifts: Sequence[Drift], log: Any) -> None:
    """Log how new samples differ from the old ones, and emit a Prefect event `shoal.drift` for each way."""
    resource = {"prefect.resource.id": f"shoal.data.{settings.data.name}", "prefect.resource.name": settings.data.name}
    for each in drifts:
        log.warning(each.sentence())
        with contextlib.suppress(Exception):  # Prefect is out of reach: the run's events have it
            emit_event("shoal.drift", resource=resource, payload={"message": each.sentence()})


def show_decision(settings: Settings, run: RunFolder, decision: Decision, drifts: Sequence[Drift]) -> None:
    """Show the decision on the page of the flow run, with the drift below it."""
    paragraphs = [f"**{run.name}**: {decision.outcome}. {decision.why}"]
    paragraphs += [f"drift: {each.sentence()}" for each in drifts]
    paragraphs += [each.sentence() for each in changes_of(run)]
    with contextlib.suppress(Exception):  # Prefect is out of reach: the run's folder has everything
        create_markdown_artifact("\n\n".join(paragraphs), f"night-{settings.data.name.replace('_', '-')}")
