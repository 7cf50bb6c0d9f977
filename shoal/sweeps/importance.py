"""How much each setting decides which trials are good, by fANOVA, beside what chance would give it.

Functional ANOVA (Hutter, Hoos and Leyton-Brown 2014) fits a random forest and splits the variance of what it predicts
by settings. It is fitted to the ranks of trials rather than to scores, so that one very bad trial does not decide, and
so that stopped trials count: they stand behind the finished ones, those that came further first. With few trials a
forest finds shares for settings that do nothing: so the same is done with the ranks dealt out to the trials at random,
again and again, and the largest share among them stands beside.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata

from shoal.core.streams import Streams, stream_seed
from shoal.sweeps.definition import SearchDefinition
from shoal.sweeps.proposals import distributions_of, optuna_here
from shoal.sweeps.result import TrialRow

LEAST = 4
"""Trials, at least."""
FEW = 10
"""Of fewer trials a setting, importances are rough."""
SHUFFLES = 19
"""Times that ranks are dealt out at random: one share in twenty is above all of them by chance."""
TREES = 16
DEEPEST = 6


@dataclass(frozen=True)
class Importance:
    """One setting.

    Attributes:
        setting: its dotted key.
        share: of the variance of the trials' ranks that it explains; all shares together are 1.
        by_chance: the largest share of it with ranks dealt out at random.
    """

    setting: str
    share: float
    by_chance: float

    @property
    def seen(self) -> bool:
        """Whether the share is more than chance gives."""
        return self.share > self.by_chance


def importances(definition: SearchDefinition, trials: Sequence[TrialRow]) -> list[Importance]:
    """The importance of each setting that varies, the largest first; none where too few trials can be ranked.

    Args:
        definition: of the search.
        trials: all of them; failed ones are left out.
    """
    ranked = [trial for trial in trials if trial.score is not None or trial.curve]
    places = [place_of(trial, definition.maximises) for trial in ranked]
    if len(definition.vary) < 2 or len(ranked) < LEAST or len(set(places)) < 2:
        return []
    ranks = rankdata([sorted(set(places)).index(place) for place in places])  # equal trials share a rank
    shares = shares_of(definition, ranked, ranks)
    chance = dict.fromkeys(shares, 0.0)
    for number in range(SHUFFLES):
        drawn = Streams(definition.seed, round=number).numpy("search: importance by chance")
        for setting, share in shares_of(definition, ranked, drawn.permutation(ranks)).items():
            chance[setting] = max(chance[setting], share)
    found = [Importance(setting, share, chance[setting]) for setting, share in shares.items()]
    return sorted(found, key=lambda each: (-each.share, each.setting))


def place_of(trial: TrialRow, maximises: bool) -> tuple[int, float]:
    """What trials are ranked by, the best first: finished ones by score, then stopped ones by rounds and score."""
    sign = -1 if maximises else 1
    if trial.score is not None:
        return -sys.maxsize, sign * trial.score
    last = max(trial.curve)
    return -last, sign * trial.curve[last]


def shares_of(
    definition: SearchDefinition, trials: Sequence[TrialRow], ranks: Sequence[float] | np.ndarray
) -> dict[str, float]:
    """The share of each setting, with these ranks of trials."""
    optuna: Any = optuna_here()
    study = optuna.create_study()
    space = distributions_of(definition)
    study.add_trials(
        optuna.trial.create_trial(params=trial.values, distributions=space, value=float(rank))
        for trial, rank in zip(trials, ranks, strict=True)
    )
    seed = stream_seed(definition.seed, "search: importance") % 2**32
    judge = optuna.importance.FanovaImportanceEvaluator(n_trees=TREES, max_depth=DEEPEST, seed=seed)
    found = optuna.importance.get_param_importances(study, evaluator=judge)
    return {setting: float(found.get(setting, 0.0)) for setting in definition.vary}
