"""The comparison of a challenger with the champion at sites: each scores both on its own held-out samples.

The lead gets scores, and the length of the interval of their difference. It takes means by held-out samples; the
interval of a mean is that of independent sites. Both states are judged as states of the challenger's run.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shoal.engine.messages.wire import Call, Failed
from shoal.engine.rounds.site_evaluation import SiteEvaluation
from shoal.engine.sites.held_out import Compare
from shoal.engine.store.checkpoint import load_index
from shoal.engine.store.codec import save_server
from shoal.engine.store.kept_state import read_state
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_facts import RunFacts
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.warm_start import take_over_model
from shoal.review.served.judging import Decision, HeldOutScores, JudgingError, decided, deciding_score, unopposed


def compare_at_sites(
    challenger: RunFolder, champion: RunFolder | None, score: str, margin: float, call: Call
) -> Decision:
    """Decide as `shoal.review.served.judging.compare` does.

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
    sites = SiteEvaluation(facts, call)
    states = sites.states(RoundPaths(challenger.path, round).server, round, load_index(challenger, round))
    answers = sites.ask_all([Compare(*state, path, site=site) for site, state in states])
    if isinstance(answers, Failed):
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
