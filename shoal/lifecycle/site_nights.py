"""Nights of sites: each takes its own new samples in, and judges two models on samples that it holds out."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np

from shoal.core.errors import ShoalError
from shoal.engine.messages.wire import Call, Failure
from shoal.engine.rounds.site_evaluation import SiteEvaluation
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.sites.held_out import Compare
from shoal.engine.store.checkpoint import load_index
from shoal.engine.store.codec import save_server
from shoal.engine.store.kept_state import read_state
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_facts import RunFacts
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.warm_start import take_over_model
from shoal.lifecycle.night_settings import NightSettings
from shoal.lifecycle.taking_in import take_in
from shoal.review.served.judging import Decision, HeldOutScores, JudgingError, decided, deciding_score, unopposed


def take_in_at_site(name: str, folder: str) -> None:
    """Append what is new in a folder to a site's own set; what is wrong with it is said here, and not to the lead."""
    try:
        settings = make_settings({"data": {"name": name}, "method": {"name": "auto"}, "model": {"clusters": 2}})
        said = take_in(settings, NightSettings(watch=folder)).message
    except ShoalError as error:
        said = f"nothing new of {name!r} is taken: {error}"
    print(said, file=sys.stderr, flush=True)


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
