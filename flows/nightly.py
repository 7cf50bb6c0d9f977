"""The flow of a night: take in what is new, train on from the champion, judge both, and promote the better one."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from shoal.tasks.prefect.environment import quiet

quiet()

from prefect import flow, get_run_logger, runtime, tags  # noqa: E402 (its environment comes first)
from prefect.artifacts import create_table_artifact  # noqa: E402
from prefect.events import emit_event  # noqa: E402

from shoal.engine.settings import places  # noqa: E402
from shoal.engine.settings.run_settings import Settings  # noqa: E402
from shoal.engine.store.run_folder import RunFolder, in_order  # noqa: E402
from shoal.engine.store.warm_start import WarmStart, WarmStartError  # noqa: E402
from shoal.flows.claim import alone, claimed, claimed_run, finished  # noqa: E402
from shoal.flows.lost_flow_runs import end_lost_flow_runs, end_lost_night  # noqa: E402
from shoal.flows.names import night_title  # noqa: E402
from shoal.flows.parts import log_warnings  # noqa: E402
from shoal.flows.pipeline import report_on, train_and_judge  # noqa: E402
from shoal.flows.task_runs import untagged  # noqa: E402
from shoal.flows.tell import tell_failure  # noqa: E402
from shoal.lifecycle.night_settings import NightSettings  # noqa: E402
from shoal.lifecycle.preparing import settled  # noqa: E402
from shoal.lifecycle.starting import same_settings  # noqa: E402
from shoal.lifecycle.taking_in import NightError  # noqa: E402
from shoal.methods.registry import METHODS  # noqa: E402
from shoal.review.mlflow_log.model_registry import registered_name  # noqa: E402
from shoal.review.served.drift import Drift  # noqa: E402
from shoal.review.served.judging import Decision  # noqa: E402
from shoal.review.served.promotion import DRIFTED, champion_run, decision_of, keep_decision  # noqa: E402
from shoal.tasks.compare import compare, decide, drift  # noqa: E402
from shoal.tasks.take_in import take_in  # noqa: E402

STARTS = "night_starts"
"""Event of a run: where a night had it start from."""
NOTHING_NEW, PROMOTED, KEPT = "nothing new", "promoted", "champion kept"


@dataclass(frozen=True)
class Night:
    """What a night came to.

    Args:
        outcome: nothing new, promoted, or champion kept.
        why: in a sentence.
        data: digest of the data set.
        new: samples that came tonight.
        run: name of the challenger's run; of the champion's, where nothing is new.
        drift: what was unlike before, a sentence each.
    """

    outcome: str
    why: str
    data: str
    new: int
    run: str
    drift: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@flow(name="nightly", flow_run_name=night_title, on_failure=[tell_failure], on_crashed=[tell_failure])
def nightly(settings: Settings, night: NightSettings = NightSettings()) -> dict[str, Any]:
    """Take in what is new, train on from the champion, judge both models, and promote the better one.

    Where nothing is new and there is a champion, nothing is trained. Where new data are broken or wrong, the night
    fails and everything stays as it was. A night that was cut short is gone on with by the next.

    Args:
        settings: of the training.
        night: where new data come from, and how models are judged.

    Returns:
        What the night came to (`Night`), as JSON.
    """
    check_settings(settings)
    with alone(settings.data.name, str(runtime.flow_run.id)) as last:
        end_lost_night(last, settings.data.name)
        return carried_out(settings, night).to_json()


def carried_out(settings: Settings, night: NightSettings) -> Night:
    """A night, within its flow run."""
    seconds = night.minutes * 60
    log = get_run_logger()
    champion = in_use(champion_run(settings, places.runs()))
    with untagged():
        taken = take_in.with_options(timeout_seconds=seconds)(settings, night)
    log.info(taken.message)
    judged = judged_run(settings, taken.digest)
    if judged is not None and not finished(judged):  # cut short before MLflow was told
        with claimed(judged):
            end_lost_flow_runs(judged)
            report_and_decide(judged, seconds)
        champion = champion_run(settings, places.runs())
    if judged is not None and champion is not None and not night.force:
        why = f"{taken.message}; run {judged.name} was judged on this data, and {champion.name} stays the champion"
        log.info(why)
        return Night(NOTHING_NEW, why, taken.digest, taken.new, champion.name)
    found: list[Drift] = []
    if champion is not None and judged is None:
        with untagged():
            compared = drift.with_options(timeout_seconds=seconds)(
                str(champion.path), taken.folder, night, settings.seed
            )
        found = [each for each in compared if each.found]
        tell_drift(settings, found, log)
    with begun(settings, night, champion, taken.digest) as folder:
        before = len(folder.events())
        for each in found:
            folder.event(DRIFTED, **{**each.to_json(), "message": each.told()})
        with tags(settings.method.name, settings.data.name):
            train_and_judge(folder, seconds)
        with untagged():
            known = None if champion is None else str(champion.path)
            decision = compare.with_options(timeout_seconds=seconds)(str(folder.path), known, taken.folder, night)
        keep_decision(folder, decision, found)
        report_and_decide(folder, seconds)
        log_warnings(log, folder.events()[before:])
    log.info(f"{folder.name}: {decision.why}")
    show(settings, folder, decision, found)
    outcome = PROMOTED if decision.promoted else KEPT
    return Night(outcome, decision.why, taken.digest, taken.new, folder.name, [each.told() for each in found])


def report_and_decide(folder: RunFolder, seconds: float) -> None:
    """Write the report of a run that was judged, which shows the decision, log and register it, and tell MLflow.

    Args:
        folder: of the challenger's run.
        seconds: time limit of each part.
    """
    report_on(folder, seconds)
    with untagged():
        decide.with_options(timeout_seconds=seconds)(str(folder.path))


def check_settings(settings: Settings) -> None:
    """Refuse settings with which a night could not name or judge its model.

    Raises:
        NightError: the model would have no name, or no clusters to judge it by.
    """
    tracking = settings.tracking
    if not (tracking.mlflow and tracking.model) or registered_name(settings) is None:
        raise NightError(
            "a night names its champion in MLflow's registry: set tracking.mlflow and tracking.model to true, and "
            "tracking.register_as to a name or auto"
        )
    if METHODS[settings.method.name].learns_from_labels:
        raise NightError(f"a night judges clusters of samples, and method {settings.method.name} learns from labels")


def in_use(champion: RunFolder | None) -> RunFolder | None:
    """The champion, unless its night was cut short before it was judged: the first of a name is one as it is logged.

    That night is gone on with, as one that has no champion yet.
    """
    if champion is None or (decision_of(champion) is None and not finished(champion)):
        return None
    return champion


def judged_run(settings: Settings, data: str) -> RunFolder | None:
    """The newest run of these settings on a version of the data set that was judged; None where there is none.

    Args:
        settings: of the training.
        data: digest of the data set.
    """
    digest = settled(settings).digest()
    for path in reversed(in_order(places.runs(), f"*_{digest[:8]}*")):
        run = RunFolder(path.parent)
        if same_settings(run, digest) and run.lineage().data.digest == data and decision_of(run) is not None:
            return run
    return None


@contextlib.contextmanager
def begun(settings: Settings, night: NightSettings, champion: RunFolder | None, data: str) -> Iterator[RunFolder]:
    """The night's run, new or gone on with, from the champion's state where it is to and can be; an event says which.

    Args:
        settings: of the training.
        night: says where to start.
        champion: the run of the model in use; None where there is none.
        data: digest of the data set.
    """
    origin, anew = None, "there is no champion" if champion is None else "the night is set to"
    with contextlib.ExitStack() as held:
        try:
            if champion is not None and night.start == "champion":
                origin = WarmStart.from_run(champion)
            folder = held.enter_context(claimed_run(settings, origin=origin, data=data))
        except WarmStartError as error:
            origin, anew = None, str(error)
            folder = held.enter_context(claimed_run(settings, data=data))
        start = f"starts anew: {anew}" if origin is None else f"starts from the state of the champion, run {origin.run}"
        folder.event(STARTS, message=start)
        yield folder


def tell_drift(settings: Settings, found: Sequence[Drift], log: Any) -> None:
    """Say in Prefect that new samples are unlike the old ones: an event `shoal.drift` for each way they are."""
    for each in found:
        log.warning(each.told())
        with contextlib.suppress(Exception):  # Prefect is out of reach: the run's events have it
            whose = {
                "prefect.resource.id": f"shoal.data.{settings.data.name}",
                "prefect.resource.name": settings.data.name,
            }
            emit_event("shoal.drift", resource=whose, payload={**each.to_json(), "message": each.told()})


def show(settings: Settings, folder: RunFolder, decision: Decision, found: Sequence[Drift]) -> None:
    """The decision as a table on the page of the flow run, with what drifted below it."""
    fate = f"**{folder.name}** is the champion" if decision.promoted else f"**{folder.name}** is not promoted"
    about = [f"{fate}: {decision.why}", *(f"drift: {each.told()}" for each in found)]
    key = f"night-{re.sub('[^a-z0-9]+', '-', settings.data.name.lower()).strip('-')}"
    with contextlib.suppress(Exception):  # Prefect is out of reach: the run's folder has everything
        create_table_artifact(key=key, table=decision.rows(), description="\n\n".join(about))
