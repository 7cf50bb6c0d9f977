"""The runs of a night: which settings it accepts, which champion is in use, which run was judged, and by sites how."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shoal.engine.messages.wire import Call, Failure
from shoal.engine.rounds.site_evaluation import SiteEvaluation
from shoal.engine.settings import places
from shoal.engine.settings.run_settings import Settings, resolve
from shoal.engine.sites.held_out import Compare
from shoal.engine.store.checkpoint import load_index
from shoal.engine.store.codec import save_server
from shoal.engine.store.kept_state import read_state
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_facts import RunFacts
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.run_order import in_order
from shoal.engine.store.warm_start import take_over_model
from shoal.lifecycle.claim import is_done
from shoal.lifecycle.starting import runs_with
from shoal.lifecycle.taking_in import NightError
from shoal.methods.registry import METHODS
from shoal.review.mlflow_log.model_registry import registered_name
from shoal.review.results.stable_names import NIGHT
from shoal.review.served.judging import Decision, HeldOutScores, JudgingError, decided, deciding_score, unopposed
from shoal.review.served.promotion import champion_with_version, decision_of


def check_settings(settings: Settings) -> None:
    """Refuse settings with which a night could not name or judge its model.

    Raises:
        NightError: the model would have no name, or no samples or clusters to judge it by.
    """
    tracking = settings.tracking
    if not (tracking.mlflow and tracking.model) or registered_name(settings) is None:
        raise NightError(
            "a night names its champion in MLflow's registry: set tracking.mlflow and tracking.model to true, and "
            "tracking.register_as to a name or auto"
        )
    if settings.chooses_method:
        return
    method = METHODS[settings.method.name]
    if method.learns_from_labels:
        raise NightError(
            f"a night judges clusters of samples, and method {settings.method.name} learns from labels: choose a "
            "method that clusters"
        )
    if settings.workers.runner == "sites" and settings.privacy.secret and method.totals:
        raise NightError(
            "a night judges two models, and noise covers all that sites tell of rows: schedule the deployment "
            "`on-demand`"
        )


def earlier_method(settings: Settings) -> Settings:
    """Return settings that leave the method open with the method that an earlier night of the data set chose.

    The nights of a data set keep their method, so that each can train from the champion of the one before.
    """
    if not settings.chooses_method:
        return settings
    for path in reversed(in_order(places.runs(), f"*_{settings.data.name}_*")):
        run = RunFolder(path.parent)
        choice = run.lineage().method_chosen
        if choice is not None and any(event.kind == NIGHT for event in run.events()):
            return resolve(settings, method=choice.settings)
    return settings


def champion_in_use(settings: Settings) -> RunFolder | None:
    """Return the run of the champion; None where no champion was judged yet, or the method is not chosen yet.

    MLflow names the first model of a name champion as soon as it is logged. Where that night was cut short before the
    model was judged, the next night resumes it as one that has no champion.
    """
    if settings.chooses_method:
        return None
    return judged_champion(champion_with_version(settings, places.runs())[0])


def judged_champion(champion: RunFolder | None) -> RunFolder | None:
    """Return the champion unless its night was cut short before it was judged."""
    if champion is None or (decision_of(champion) is None and not is_done(champion)):
        return None
    return champion


def judged_run(settings: Settings, data: str) -> RunFolder | None:
    """Return the newest run of these settings that was judged on a version of the data set; None where there is none.

    Args:
        settings: of the training.
        data: digest of the data set.
    """
    for run in runs_with(settings):
        if run.lineage().data.digest == data and decision_of(run) is not None:
            return run
    return None


def compare_at_sites(
    challenger: RunFolder, champion: RunFolder | None, score: str, margin: float, call: Call
) -> Decision:
    """Decide as `shoal.review.served.judging.compare` does; each site scores both models on its own held-out samples.

    The lead takes means by held-out samples; their interval is that of independent sites. Both states are judged as
    states of the challenger's run.

    Args:
        challenger: a finished run at sites.
        champion: the run of the model in use; None where there is none.
        score, margin: of the night.
        call: has a site do a request.

    Raises:
        JudgingError: a site failed, or none tells scores. WarmStartError: the champion's state does not fit.
        SiteLost: a site did not answer.
    """
    facts = RunFacts(challenger)
    if champion is None or champion.name == challenger.name:
        return unopposed(HeldOutScores(challenger.name, facts.spec.test, {}), margin, first=champion is None)
    fresh = facts.method.init_server(facts.federation)
    path = challenger.path / "champion.safetensors"
    save_server(path, take_over_model(fresh, read_state(champion).judged.tensors, facts.method, champion.name))
    round = challenger.status().round
    server = RoundPaths(challenger.path, round).server
    answers = SiteEvaluation(facts, call, server, round, load_index(challenger, round)).ask(Compare, path)
    path.unlink()
    if isinstance(answers, Failure):
        raise JudgingError(f"run {challenger.name} cannot be compared with the champion: {answers.error}")
    told = [answer.sums for answer in answers if answer.sums]
    if not told:
        raise JudgingError(f"each site holds out too few samples of {facts.spec.name!r} to tell scores: add samples")
    samples = np.array([int(sums["samples"][0]) for sums in told])
    weights = samples / samples.sum()
    scores = {name: np.stack([sums[name] for sums in told], 1) for name in told[0] if name != "samples"}
    new, old = (
        HeldOutScores(run.name, int(samples.sum()), {name: float(weights @ rows[row]) for name, rows in scores.items()})
        for row, run in enumerate((challenger, champion))
    )
    name = deciding_score(score, new, facts.spec.name)
    gain = new.scores[name] - old.scores[name]
    half = float(np.linalg.norm(weights * scores[name][2])) / 2
    decision = decided(name, margin, new, old, (gain - half, gain + half))
    return replace(decision, why=f"{decision.why}, means of {len(told)} sites")
