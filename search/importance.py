"""How much of the score each setting decides, by fANOVA, beside what chance would give it.

Functional ANOVA (Hutter, Hoos and Leyton-Brown 2014) fits a random forest to the scores and splits the variance of what
it predicts by settings. With few trials a forest finds shares for settings that do nothing: so the same is done with
the scores dealt out to the trials at random, again and again, and the largest share among them stands beside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.streams import Streams, stream_seed
from search.definition import SearchDefinition
from search.proposals import distributions_of, optuna_here
from search.result import TrialRow

LEAST = 4
"""Finished trials, at least."""
FEW = 10
"""Of fewer finished trials a setting, importances are rough."""
SHUFFLES = 19
"""Times that scores are dealt out at random: one share in twenty is above all of them by chance."""
TREES = 16
DEEPEST = 6


@dataclass(frozen=True)
class Importance:
    """One setting.

    Attributes:
        setting: its dotted key.
        share: of the variance of the scores that it explains; all shares together are 1.
        by_chance: the largest share of it with scores dealt out at random.
    """

    setting: str
    share: float
    by_chance: float

    @property
    def seen(self) -> bool:
        """Whether the share is more than chance gives."""
        return self.share > self.by_chance


def importances(definition: SearchDefinition, finished: Sequence[TrialRow]) -> list[Importance]:
    """The importance of each setting that varies, the largest first; none where too few trials are finished.

    Args:
        definition: of the search.
        finished: trials with a score.
    """
    scores = np.array([trial.score for trial in finished], dtype=float)
    if len(definition.vary) < 2 or len(finished) < LEAST or np.ptp(scores) == 0:
        return []
    shares = shares_of(definition, finished, scores)
    chance = dict.fromkeys(shares, 0.0)
    for number in range(SHUFFLES):
        drawn = Streams(definition.seed, round=number).numpy("search: importance by chance")
        for setting, share in shares_of(definition, finished, drawn.permutation(scores)).items():
            chance[setting] = max(chance[setting], share)
    found = [Importance(setting, share, chance[setting]) for setting, share in shares.items()]
    return sorted(found, key=lambda each: (-each.share, each.setting))


def shares_of(
    definition: SearchDefinition, finished: Sequence[TrialRow], scores: Sequence[float] | np.ndarray
) -> dict[str, float]:
    """The share of each setting, with these scores of the finished trials."""
    optuna: Any = optuna_here()
    study = optuna.create_study()
    space = distributions_of(definition)
    study.add_trials(
        optuna.trial.create_trial(params=trial.values, distributions=space, value=float(score))
        for trial, score in zip(finished, scores, strict=True)
    )
    seed = stream_seed(definition.seed, "search: importance") % 2**32
    judge = optuna.importance.FanovaImportanceEvaluator(n_trees=TREES, max_depth=DEEPEST, seed=seed)
    found = optuna.importance.get_param_importances(study, evaluator=judge)
    return {setting: float(found.get(setting, 0.0)) for setting in definition.vary}
