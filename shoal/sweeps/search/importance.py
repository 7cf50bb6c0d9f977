"""The importance of each setting for the scores of trials: Optuna's fANOVA over finished trials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.core.streams import stream_seed
from shoal.sweeps.search.definition import SearchDefinition
from shoal.sweeps.search.proposals import SEED_LIMIT, import_optuna

if TYPE_CHECKING:
    import optuna

MIN_TRIALS = 4
"""With fewer finished trials no importance is computed."""


def evaluator_of(definition: SearchDefinition) -> Any:
    """Return Optuna's fANOVA (Hutter, Hoos and Leyton-Brown 2014) with a random forest of the search's seed."""
    seed = stream_seed(definition.seed, "search: importance") % SEED_LIMIT
    return import_optuna().importance.FanovaImportanceEvaluator(seed=seed)


def importances(definition: SearchDefinition, study: optuna.study.Study) -> dict[str, float]:
    """Return the share of the scores' variance that each setting explains, the largest first; they add to 1.

    Empty where a single setting varies, fewer than `MIN_TRIALS` trials are finished, or all have one score.
    """
    scores = [trial.value for trial in study.trials if trial.state.name == "COMPLETE"]
    if len(definition.vary) < 2 or len(scores) < MIN_TRIALS or len(set(scores)) < 2:
        return {}
    evaluator = evaluator_of(definition)
    result: dict[str, float] = import_optuna().importance.get_param_importances(study, evaluator=evaluator)
    return result
