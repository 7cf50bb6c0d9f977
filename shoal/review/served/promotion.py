"""The champion of a registered name: its run, and how a challenger takes its place.

A decision is first kept as an event of the challenger's run. The tags and the alias in MLflow follow from that event,
and can be set again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.core.errors import ShoalError, brief
from shoal.core.records import record_from_json
from shoal.engine.settings import places
from shoal.engine.settings.addresses import masked
from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.embedded_store import ready_store, store_uri
from shoal.review.mlflow_log.model_registry import CHAMPION, registered_name, set_champion
from shoal.review.mlflow_log.tracking import shown_uri, tracking_uri
from shoal.review.mlflow_log.trouble import check_installed, is_no_answer
from shoal.review.served.drift import Drift
from shoal.review.served.judging import Decision

DECIDED = "night_decided"
DRIFTED = "drift"
"""Events of a run: the decision between it and the champion; and drift of new samples."""


class PromotionError(ShoalError):
    """The registry cannot be asked for the champion, or cannot change it."""


def champion_run(settings: Settings, runs: Path) -> RunFolder | None:
    """Return the run of the champion of the name that these settings register under; None where there is none.

    Raises:
        PromotionError: MLflow does not answer, or the run's folder is not there.
    """
    name, version = _champion(settings)
    if version is None:
        return None
    run = str(version.tags.get("shoal.run", ""))
    if not run or not (runs / run / "settings.yaml").is_file():
        raise PromotionError(
            f"the champion models:/{name}@{CHAMPION} comes from run {run or 'unknown'}, whose folder is not in {runs}: "
            "restore the folder, or give the alias to a version whose run is there"
        )
    return RunFolder(runs / run)


def _champion(settings: Settings) -> tuple[str, Any]:
    name = registered_name(settings)
    if name is None:
        raise PromotionError(
            "tracking.register_as is none, and a champion needs a registered name: set it to auto or a name"
        )
    try:
        client = _client(settings)
        if not client.search_registered_models(f"name = '{name}'"):
            return name, None
        version = client.get_registered_model(name).aliases.get(CHAMPION)
        if version is None:
            return name, None
        return name, client.get_model_version(name, version)
    except ShoalError:
        raise
    except Exception as error:  # whatever MLflow raises
        raise _unreachable(settings, error) from error


def _client(settings: Settings) -> Any:
    check_installed()
    from mlflow import MlflowClient

    store = places.mlflow_store()
    uri = tracking_uri(settings, store)
    if uri == store_uri(store):
        ready_store(store)
    return MlflowClient(tracking_uri=uri)


def _unreachable(settings: Settings, error: Exception) -> PromotionError:
    address = shown_uri(settings, places.mlflow_store())
    reason = masked(brief(error), settings.tracking.uri)
    if is_no_answer(error):
        return PromotionError(f"MLflow at {address} did not answer ({reason}): start it")
    return PromotionError(f"MLflow at {address} refused a request about the champion ({reason}): see its log")


def keep_decision(run: RunFolder, decision: Decision, drift: Sequence[Drift]) -> None:
    """Write a decision to the events of the challenger's run, from which everything else follows."""
    outcome = "promoted" if decision.promoted else "kept the champion"
    run.event(
        DECIDED, message=f"{outcome}: {decision.why}", **decision.to_json(), drift=[each.sentence() for each in drift]
    )


def decision_of(run: RunFolder) -> Decision | None:
    """Return the decision on a run; None where it was not judged."""
    found = next((event for event in reversed(run.whole_events()) if event.kind == DECIDED), None)
    if found is None:
        return None
    facts = {name: fact for name, fact in found.facts.items() if name not in ("message", "drift")}
    return record_from_json(Decision, facts)


def execute_decision(run: RunFolder) -> str | None:
    """Record the decision on a run in MLflow: tags, and the alias `champion` after a promotion; it can be repeated.

    Returns:
        The version of the run's model.

    Raises:
        PromotionError: MLflow does not answer, or has no model of the run.
    """
    settings = run.settings()
    decision = decision_of(run)
    run_id = run.lineage().mlflow_run
    name = registered_name(settings)
    if decision is None or name is None:
        return None
    try:
        client = _client(settings)
        version = None
        if run_id:
            versions = client.search_model_versions(f"run_id = '{run_id}'")
            version = next((str(each.version) for each in versions if each.name == name), None)
        if version is None:
            raise PromotionError(
                f"MLflow has no model {name!r} of run {run.name}: `shoal run --resume {run.name}` logs it"
            )
        if decision.promoted:
            set_champion(client, name, version)
        for key, value in decision_tags(decision).items():
            client.set_tag(run_id, key, value)
            client.set_model_version_tag(name, version, key, value)
    except ShoalError:
        raise
    except Exception as error:
        raise _unreachable(settings, error) from error
    return version


def decision_tags(decision: Decision) -> dict[str, str]:
    """Return a decision as tags: the outcome, the reason, the score and margin, and the scores of both."""
    tags = {
        "shoal.night.decision": ("champion kept", "promoted")[decision.promoted],
        "shoal.night.why": decision.why,
        "shoal.night.score": decision.score or "none",
        "shoal.night.margin": f"{decision.margin:g}",
        "shoal.night.held_out": str(decision.challenger.samples),
    }
    for who, judged in (("challenger", decision.challenger), ("champion", decision.champion)):
        if judged is not None:
            tags |= {f"shoal.night.{who}.{name}": f"{value:.6f}" for name, value in judged.scores.items()}
            tags[f"shoal.night.{who}.run"] = judged.run
    return tags
