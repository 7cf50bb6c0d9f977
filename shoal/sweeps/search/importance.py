"""The importance of each setting for the scores of trials, by fANOVA, beside the share that chance gives it.

Functional ANOVA (Hutter, Hoos and Leyton-Brown 2014) fits a random forest and splits the variance of its predictions by
settings. The forest is fitted to the ranks of trials instead of scores, for two reasons: one very bad trial does not
decide, and stopped trials count, which rank behind the finished ones, those with more rounds first. With few trials a
forest finds shares for settings that do nothing. So the ranks are shuffled over the trials many times, and the largest
share of a setting among the shuffles stands beside its own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from shoal.core.streams import Streams, stream_seed
from shoal.sweeps.search.definition import SearchDefinition
from shoal.sweeps.search.proposals import SEED_LIMIT, distributions_of, import_optuna
from shoal.sweeps.search.result import TrialRow

MIN_TRIALS = 4
"""With fewer ranked trials no importance is computed."""
TRIALS_PER_SETTING = 10
"""With fewer trials for each setting importances are rough."""
SHUFFLES = 19
"""Random orders of the ranks: by chance, one share in twenty is above all of them."""
TREES = 16
MAX_DEPTH = 6


@dataclass(frozen=True)
class Importance:
    """The importance of one setting.

    Attributes:
        setting: its dotted key.
        share: of the variance of the trials' ranks that the setting explains; the shares of all settings add to 1.
        by_chance: the largest share of the setting with shuffled ranks.
    """

    setting: str
    share: float
    by_chance: float

    @property
    def above_chance(self) -> bool:
        """Whether the share is larger than chance makes it."""
        return self.share > self.by_chance


def importances(definition: SearchDefinition, trials: Sequence[TrialRow]) -> list[Importance]:
    """Return the importance of each setting that varies, the largest first; empty where too few trials have a rank.

    Args:
        definition: of the search.
        trials: all trials; failed ones have no rank.
    """
    ranked = [trial for trial in trials if trial.score is not None or trial.curve]
    places = [sort_key(trial, definition.maximises) for trial in ranked]
    if len(definition.vary) < 2 or len(ranked) < MIN_TRIALS or len(set(places)) < 2:
        return []
    order = sorted(set(places))
    ranks = pd.Series([order.index(place) for place in places]).rank().to_numpy()  # equal trials share a rank
    shares = shares_of(definition, ranked, ranks)
    chance = dict.fromkeys(shares, 0.0)
    for number in range(SHUFFLES):
        drawn = Streams(definition.seed, round=number).numpy("search: importance by chance")
        for setting, share in shares_of(definition, ranked, drawn.permutation(ranks)).items():
            chance[setting] = max(chance[setting], share)
    found = [Importance(setting, share, chance[setting]) for setting, share in shares.items()]
    return sorted(found, key=lambda each: (-each.share, each.setting))


def sort_key(trial: TrialRow, maximises: bool) -> tuple[int, float]:
    """Return the key that sorts trials, the best first: finished ones by score, then stopped by rounds and score."""
    sign = 1
    if maximises:
        sign = -1
    if trial.score is not None:
        return -sys.maxsize, sign * trial.score
    last = max(trial.curve)
    return -last, sign * trial.curve[last]


def shares_of(
    definition: SearchDefinition, trials: Sequence[TrialRow], ranks: Sequence[float] | np.ndarray
) -> dict[str, float]:
    """Return the share of each setting, given the ranks of the trials."""
    optuna: Any = import_optuna()
    study = optuna.create_study()
    space = distributions_of(definition)
    study.add_trials(
        optuna.trial.create_trial(params=trial.values, distributions=space, value=float(rank))
        for trial, rank in zip(trials, ranks, strict=True)
    )
    seed = stream_seed(definition.seed, "search: importance") % SEED_LIMIT
    evaluator = optuna.importance.FanovaImportanceEvaluator(n_trees=TREES, max_depth=MAX_DEPTH, seed=seed)
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {setting: float(found.get(setting, 0.0)) for setting in definition.vary}
