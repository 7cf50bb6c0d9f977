"""The champion of a registered name: its run, and how a challenger takes its place or a rollback takes it back.

A decision is first kept as an event of the challenger's run. The tags and the alias in MLflow follow from that event,
and can be set again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shoal.core.errors import ShoalError
from shoal.core.records import record_from_json
from shoal.engine.settings.run_settings import Settings, make_settings
from shoal.engine.store.run_folder import SETTINGS, RunFolder
from shoal.engine.store.run_order import in_order
from shoal.engine.store.user_name import user_name
from shoal.review.mlflow_log.champions import (
    APPROVED,
    PROMOTED,
    Move,
    champion_version,
    make_champion,
    return_to_previous,
)
from shoal.review.mlflow_log.experiments import NIGHT_DECISION
from shoal.review.mlflow_log.model_registry import CHAMPION, registered_name
from shoal.review.mlflow_log.tracking import open_client, reason_of, shown_uri
from shoal.review.results.stable_names import DECIDED
from shoal.review.served.drift import Drift
from shoal.review.served.judging import WAITS, Decision

DRIFTED = "drift"
MOVED = "champion_moved"
"""Events of a run: drift of new samples; and that it became the champion by approval or a rollback."""
NO_REASON = "no reason was given"
NOTES = ("message", "drift")
"""Facts in the event of a decision that are no part of it."""


class PromotionError(ShoalError):
    """The registry cannot be asked for the champion, or cannot change it."""


def champion_with_version(settings: Settings, runs: Path) -> tuple[RunFolder | None, str | None]:
    """Return the run of the champion of the name that these settings register under, and its version.

    Returns:
        None and None where there is no champion.

    Raises:
        PromotionError: MLflow does not answer, or the run's folder is not there.
    """
    name = name_of_model(settings)
    with registry_client(settings) as client:
        version = champion_version(client, name)
        if version is None:
            return None, None
        run = run_of_version(client, name, version, runs)
    if not (run.path / SETTINGS).is_file():
        raise PromotionError(
            f"the champion models:/{name}@{CHAMPION} comes from run {run.name}, whose folder is not in {runs}: "
            "restore the folder, or give the alias to a version whose run is there"
        )
    return run, version


def run_of_version(client: Any, name: str, version: str, runs: Path) -> RunFolder:
    """Return the run that a version comes from, whose folder may be gone; `unknown` where MLflow does not know it."""
    return RunFolder(runs / client.get_model_version(name, version).tags.get("shoal.run", "unknown"))


def name_of_model(settings: Settings) -> str:
    """Return the registered name of these settings.

    Raises:
        PromotionError: they want none.
    """
    name = registered_name(settings)
    if name is None:
        raise PromotionError(
            "tracking.register_as is none, and a champion needs a registered name: set it to auto or a name"
        )
    return name


@contextlib.contextmanager
def registry_client(settings: Settings) -> Iterator[Any]:
    """Yield a client of the MLflow that these settings name.

    Raises:
        PromotionError: MLflow does not answer, or refuses the request.
    """
    try:
        yield open_client(settings)
    except ShoalError:
        raise
    except Exception as error:  # whatever MLflow raises
        reason = reason_of(error, settings)
        raise PromotionError(f"MLflow at {shown_uri(settings)} did not say or set the champion ({reason})") from error


def user() -> str:
    """Return who acts: the user of MLflow where one is set, else that of this machine."""
    return os.environ.get("MLFLOW_TRACKING_USERNAME") or user_name()


def keep_decision(run: RunFolder, decision: Decision, drift: Sequence[Drift]) -> None:
    """Write a decision to the events of the challenger's run, from which everything else follows."""
    message = f"{decision.outcome}: {decision.why}"
    run.event(DECIDED, message=message, **asdict(decision), drift=[comparison.sentence() for comparison in drift])


def decision_of(run: RunFolder) -> Decision | None:
    """Return the decision on a run; None where it was not judged."""
    for event in reversed(run.whole_events()):
        if event.kind == DECIDED:
            return record_from_json(Decision, {name: fact for name, fact in event.facts.items() if name not in NOTES})
    return None


def execute_decision(run: RunFolder) -> str | None:
    """Record the decision on a run in MLflow: tags, and the alias `champion` after a promotion; it can be repeated.

    A promotion that was taken back since stays taken back.

    Returns:
        The version of the run's model.

    Raises:
        PromotionError: MLflow does not answer, or has no model of the run.
    """
    settings = run.settings()
    decision = decision_of(run)
    name = registered_name(settings)
    if decision is None or name is None:
        return None
    with registry_client(settings) as client:
        version = version_of(client, run, name)
        before = client.get_model_version(name, version).tags.get(NIGHT_DECISION)
        if decision.promoted and before not in (decision.outcome, APPROVED):
            make_champion(client, name, version, PROMOTED, f"a night of {user()}", decision.why)
        _tag(client, run, name, version, {NIGHT_DECISION: decision.outcome, "shoal.night.why": decision.why})
    return version


def version_of(client: Any, run: RunFolder, name: str) -> str:
    """Return the version of a run's model.

    Raises:
        PromotionError: MLflow has none.
    """
    run_id = run.status().tracking.mlflow_run
    versions = client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'")
    if versions:
        return str(versions[0].version)
    raise PromotionError(f"MLflow has no model {name!r} of run {run.name}: `shoal run --resume {run.name}` logs it")


def _tag(client: Any, run: RunFolder, name: str, version: str, tags: dict[str, str]) -> None:
    """Set tags of a version and of the MLflow run that it comes from."""
    run_id = run.status().tracking.mlflow_run
    for key, value in tags.items():
        client.set_tag(run_id, key, value)
        client.set_model_version_tag(name, version, key, value)


@dataclass(frozen=True)
class ChampionMove:
    """A move of the champion.

    Args:
        name: the registered name.
        version: the champion now.
        run: the name of its run.
        before: the version before; None where there was none.
        move: who moved it and why; None where it was the champion already.
    """

    name: str
    version: str
    run: str
    before: str | None
    move: Move | None


def approve(run: RunFolder, why: str) -> ChampionMove:
    """Make a run's model the champion of its name, and record who did so and why.

    Args:
        run: a finished run whose model is registered.
        why: the reason; may be empty.

    Raises:
        PromotionError: MLflow does not answer, or has no model of the run.
    """
    settings = run.settings()
    name = name_of_model(settings)
    with registry_client(settings) as client:
        version = version_of(client, run, name)
        before = champion_version(client, name)
        if before == version:
            before = None
        move = make_champion(client, name, version, APPROVED, user(), why or NO_REASON)
        if client.get_model_version(name, version).tags.get(NIGHT_DECISION) == WAITS:
            _tag(client, run, name, version, {NIGHT_DECISION: APPROVED})
    if move is not None:
        run.event(MOVED, message=f"{move.who} made models:/{name}/{version} the champion: {move.why}")
    return ChampionMove(name, version, run.name, before, move)


def roll_back(which: str | None, runs: Path, why: str = "") -> ChampionMove:
    """Make the version that was the champion before the champion again, and record who did so and why.

    Args:
        which: a registered name; None: the only name that has a champion.
        runs: folder of the runs.
        why: the reason.

    Raises:
        PromotionError: MLflow does not answer, or there is no champion or none before it.
    """
    settings, name = _model(which, runs)
    with registry_client(settings) as client:
        before = champion_version(client, name)
        move = return_to_previous(client, name, user(), why or NO_REASON)
        if move is None:
            raise PromotionError(
                f"{name!r} had no champion before version {before or 'none'}: there is nothing to return to; "
                "`shoal model promote RUN` makes the model of another run the champion, and these have one: "
                + (", ".join(_names(client)) or "none")
            )
        run = run_of_version(client, name, move.version, runs)
    if (run.path / SETTINGS).is_file():
        message = f"{move.who} returned from models:/{name}/{before} to models:/{name}/{move.version}: {move.why}"
        run.event(MOVED, message=message)
    return ChampionMove(name, move.version, run.name, before, move)


def _model(which: str | None, runs: Path) -> tuple[Settings, str]:
    """Return settings that say where MLflow is, and the registered name that is meant.

    They are those of the newest run under that name. Damaged ones are skipped.
    """
    settings = make_settings({})
    for path in reversed(in_order(runs)):
        with contextlib.suppress(ShoalError):
            settings = RunFolder(path.parent).settings()
            if which in (None, registered_name(settings)):
                break
    if which is not None:
        return settings, which
    with registry_client(settings) as client:
        names = _names(client)
    if len(names) != 1:
        raise PromotionError(f"{len(names)} models have a champion, and one has to be named: {', '.join(names)}")
    return settings, names[0]


def _names(client: Any) -> list[str]:
    """Return the registered names that have a champion."""
    return sorted(model.name for model in client.search_registered_models() if CHAMPION in model.aliases)
